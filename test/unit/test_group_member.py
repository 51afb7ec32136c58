# SPDX-License-Identifier: Apache-2.0
"""A member of a shared group as it is read from a Model, and what holds of it alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from api.flexinfer.v1alpha2.model_types import Model
from api.flexinfer.v1alpha2.reasons import Phase
from controllers.model.member import GroupState, Member, group_of, keeps_loading, member_of
from flexinfer.meta.envelope import meta_from
from hack.modelcases import NOW
from hack.modelcases.members import ago, leads

if TYPE_CHECKING:
    from flexinfer.meta.envelope import Tree


def model(status: Tree | None = None, **spec: object) -> Model:
    return Model.model_validate(
        {
            "metadata": meta_from({"name": "m", "namespace": "ns"}),
            "spec": {"backend": "vllm", "source": "HF://o/m", **spec},
            "status": status or {},
        }
    )


def test_a_member_is_read_from_a_model() -> None:
    shared = {"groupName": "g", "state": "Active", "preemptedAt": "2026-01-02T03:00:00Z"}
    status: Tree = {
        "phase": "Loading",
        "lastActiveTime": "2026-01-02T03:04:05Z",
        "sharedGroup": shared,
        "cache": {"ready": True},
    }
    gpu = {"shared": "g", "priority": 7, "swapCooldown": "30s", "forcePromotion": True}
    found = model(status, gpu=gpu, serverless={"minReplicas": 1, "coldStartTimeout": "20m"})
    assert group_of(found) == "g"
    assert member_of(found) == Member(
        name="m",
        priority=7,
        is_forced=True,
        is_warm=True,
        phase=Phase.LOADING,
        state="Active",
        last_active=NOW,
        preempted_at=datetime(2026, 1, 2, 3, 0, tzinfo=UTC),
        cooldown=timedelta(seconds=30),
        cold_start=timedelta(minutes=20),
    )


def test_a_new_model_has_no_weights_yet() -> None:
    found = member_of(model(gpu={"shared": "g"}))
    assert (found.is_cached, found.can_serve, found.state, found.cooldown) == (
        False,
        False,
        "",
        None,
    )
    assert not found.is_warm
    assert not found.is_deleting


def test_how_it_stood_in_another_group_does_not_count() -> None:
    status: Tree = {"sharedGroup": {"groupName": "h", "state": "Active"}}
    assert member_of(model(status, gpu={"shared": "g"})).state == ""
    assert group_of(model()) == ""
    assert member_of(model(status)).state == ""


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [
        ({}, 300),  # vllm's own
        ({"config": {"startupTimeoutSeconds": 1200}}, 1200),
        ({"config": {"startupTimeoutSeconds": 1e300}}, 86400),
        ({"config": {"startupTimeoutSeconds": -5}}, 60),
        ({"config": {"startupTimeout": "soon"}}, 60),
        ({"backend": "none such", "serverless": {"coldStartTimeout": "2m"}}, 120),
    ],
)
def test_how_long_a_start_may_take(spec: Tree, seconds: int) -> None:
    assert member_of(model(**spec)).cold_start == timedelta(seconds=seconds)


def test_a_deleted_model_is_deleting() -> None:
    metadata = meta_from({"name": "m", "deletionTimestamp": "2026-01-02T03:04:05Z"})
    assert member_of(model().model_copy(update={"metadata": metadata})).is_deleting


def test_preserve_active_shared_loading_during_cache_refresh() -> None:
    """Only Active, loading and asked for lately keeps its replicas while the cache is made anew."""
    loading = leads("a", asked=299, phase=Phase.LOADING, is_cached=False)
    assert keeps_loading(loading, NOW)
    assert not keeps_loading(replace(loading, state=GroupState.QUEUED), NOW)
    assert not keeps_loading(replace(loading, phase=Phase.PENDING), NOW)
    assert not keeps_loading(replace(loading, phase=Phase.READY), NOW)
    assert not keeps_loading(replace(loading, last_active=ago(300)), NOW)
    assert not keeps_loading(replace(loading, last_active=None), NOW)
    slow = replace(loading, last_active=ago(300), cold_start=timedelta(minutes=6))
    assert keeps_loading(slow, NOW)
