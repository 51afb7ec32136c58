# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.model import names
from controllers.model.placement import (
    Placement,
    Spread,
    choose_spread,
    is_same_template,
    patience_ends,
    template_hash,
)
from flexinfer.kinds.deployment import Deployment
from flexinfer.kinds.pod import Pod
from flexinfer.meta.envelope import meta_from
from internal.gpu.accelerator import Accelerator, Vendor

if TYPE_CHECKING:
    from flexinfer.meta.envelope import Tree

INTENT: Tree = {"spec": {"template": {"spec": {"containers": [{"image": "a"}]}}}}


def deployment(**annotations: str) -> Deployment:
    meta = meta_from({"name": "m", "namespace": "ns", "annotations": annotations})
    return Deployment.model_validate({"metadata": meta})


def pod(status: str = "False", since: str | None = "2026-01-01T00:00:00Z") -> Pod:
    condition = {"type": "PodScheduled", "status": status} | (
        {"lastTransitionTime": since} if since is not None else {}
    )
    return Pod.model_validate(
        {"metadata": meta_from({"name": "p"}), "status": {"conditions": [condition]}}
    )


@given(
    st.builds(
        Placement,
        accelerator=st.builds(
            Accelerator,
            vendor=st.sampled_from(Vendor),
            count=st.integers(0, 8),
            architecture=st.text(max_size=9),
        ),
        spread=st.sampled_from(Spread),
    )
)
def test_a_placement_is_read_back_as_it_was_recorded(placement: Placement) -> None:
    recorded = deployment(**{names.PLACEMENT_ANNOTATION: placement.encode()})
    assert Placement.of(recorded) == placement


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{",
        "{}",
        '{"vendor":"intel","count":1,"architecture":"","spread":"required"}',
        '{"vendor":["nvidia"],"count":1,"architecture":"","spread":"required"}',
        '{"vendor":"nvidia","count":null,"architecture":"","spread":"required"}',
        '{"vendor":"nvidia","count":"x","architecture":"","spread":"required"}',
        '{"vendor":"nvidia","count":1,"architecture":"","spread":"maybe"}',
    ],
)
def test_what_we_cannot_have_recorded_counts_as_nothing(text: str) -> None:
    assert Placement.of(deployment(**{names.PLACEMENT_ANNOTATION: text})) is None


@pytest.mark.parametrize(
    ("replicas", "fitting", "modes", "spread", "says"),
    [
        (1, 0, None, Spread.PREFERRED, ""),
        (2, 2, None, Spread.REQUIRED, ""),
        (2, 9, ("ReadWriteMany",), Spread.REQUIRED, ""),
        (2, 9, ("ReadWriteOnce", "ReadOnlyMany"), Spread.REQUIRED, ""),
        (3, 2, None, Spread.PREFERRED, "2 nodes fit 3 replicas"),
        (2, 1, None, Spread.PREFERRED, "1 node fits 2 replicas, so that replicas may share"),
        (2, 9, ("ReadWriteOnce",), Spread.PREFERRED, "PersistentVolumeClaim c has ReadWriteOnce"),
        (2, 9, (), Spread.PREFERRED, "no access mode"),
    ],
)
def test_replicas_keep_apart_where_that_is_possible(
    replicas: int, fitting: int, modes: tuple[str, ...] | None, spread: Spread, says: str
) -> None:
    found, note = choose_spread(replicas, fitting, "c", modes)
    assert found is spread
    assert says in note
    assert bool(says) == bool(note)


def test_the_template_alone_decides_whether_pods_change() -> None:
    recorded = deployment(**{names.TEMPLATE_ANNOTATION: template_hash(INTENT["spec"]["template"])})
    other = {"spec": {"template": {"spec": {"containers": [{"image": "b"}]}}}}
    assert is_same_template(recorded, INTENT | {"metadata": {"name": "x"}})
    assert not is_same_template(recorded, other)
    assert not is_same_template(deployment(), INTENT)


def test_the_pod_that_waits_longest_ends_the_patience() -> None:
    pods = [pod(since="2026-01-01T00:01:00Z"), pod(), pod("True"), pod(since="soon"), pod()]
    assert patience_ends(pods) == datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)


@pytest.mark.parametrize("waiting", [pod("True"), pod(since=None), pod(since="never")])
def test_without_a_pod_that_waits_patience_lasts(waiting: Pod) -> None:
    assert patience_ends([waiting]) is None


def test_a_time_without_a_zone_is_taken_for_utc() -> None:
    ends = patience_ends([pod(since="2026-01-01T00:00:00")])
    assert ends == datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC)
