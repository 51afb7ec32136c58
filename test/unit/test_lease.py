# SPDX-License-Identifier: Apache-2.0
"""What a Lease says, whoever wrote it, and how we write it (C50)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexinfer.errors import ConfigurationError
from flexinfer.leaderelection.lease import Claim, FencingToken, Lease, format_time, parse_time
from flexinfer.leaderelection.options import LeaderElectionOptions, new_identity
from flexinfer.meta.envelope import decode_object, encode

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def lease(spec: object, **meta: Any) -> Lease:
    metadata = {"name": "lock", "namespace": "ns", "uid": "u", "resourceVersion": "7", **meta}
    return Lease.read(decode_object(encode({"metadata": metadata, "spec": spec})))


@pytest.mark.parametrize(
    "text",
    [
        "2026-03-01T12:00:00.000000Z",  # client-go, and we
        "2026-03-01T12:00:00Z",
        "2026-03-01T12:00:00+00:00",
        "2026-03-01T12:00:00.000+00:00",
        "2026-03-01T12:00:00.000000000Z",
        "2026-03-01T13:30:00.000000+01:30",
    ],
)
def test_c50_every_way_to_write_a_time_is_read(text: str) -> None:
    assert parse_time(text) == NOON


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rubbish",
        "2026-03-01T12:00:00",
        "2026-13-01T12:00:00Z",
        None,
        5,
        {},
        "0001-01-01T00:00:00+14:00",
    ],
)
def test_c50_what_is_no_time_is_none(text: object) -> None:
    assert parse_time(text) is None


@given(st.integers(-2_000_000_000_000_000, 200_000_000_000_000_000), st.integers(-14, 14))
def test_c50_we_write_six_digits_of_utc_and_read_them_back(microseconds: int, hours: int) -> None:
    time = (NOON + timedelta(microseconds=microseconds)).astimezone(
        timezone(timedelta(hours=hours))
    )
    text = format_time(time)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", text)
    assert parse_time(text) == time


def test_c50_a_record_of_client_go_is_read() -> None:
    found = lease(
        {
            "holderIdentity": "host_1",
            "leaseDurationSeconds": 15,
            "acquireTime": "2026-03-01T12:00:00.000000Z",
            "renewTime": "2026-03-01T12:00:04.000000Z",
            "leaseTransitions": 3,
        }
    )
    assert found.claim == Claim("host_1", NOON, 3)
    assert found.duration == 15
    assert found.token == FencingToken("u", 3)
    assert found.version == "7"


@pytest.mark.parametrize(
    "spec",
    [
        None,
        "text",
        [],
        {},
        {"holderIdentity": None, "leaseDurationSeconds": None, "leaseTransitions": None},
        {"leaseDurationSeconds": "15", "leaseTransitions": -1, "acquireTime": 7},
        {"leaseDurationSeconds": True, "leaseTransitions": 1.5, "renewTime": []},
    ],
)
def test_c50_what_cannot_be_read_is_as_if_absent(spec: object) -> None:
    found = lease(spec)
    assert found.claim == Claim("", None, 0)
    assert found.duration == 0


def test_c50_a_holder_of_another_type_is_a_holder() -> None:
    assert lease({"holderIdentity": 7}).claim.holder == "7"


def test_c50_a_record_that_cannot_be_read_is_seen_to_change() -> None:
    first, second = lease({"renewTime": "rubbish"}), lease({"renewTime": "more rubbish"})
    assert first.claim == second.claim
    assert not first.says_the_same(second)
    assert first.says_the_same(lease({"renewTime": "rubbish"}, labels={"a": "b"}))
    assert not first.says_the_same(lease({"renewTime": "rubbish"}, uid="other"))


def test_what_others_put_into_the_object_stays() -> None:
    found = lease(
        {"holderIdentity": "a", "strategy": "OldestEmulationVersion"}, labels={"team": "x"}
    )
    claim = Claim("b", NOON, 4)
    spec = claim.spec(duration=15.0, renewed=NOON + timedelta(seconds=2))
    tree = found.replaced(spec)
    assert tree["metadata"] == {
        "name": "lock",
        "namespace": "ns",
        "uid": "u",
        "resourceVersion": "7",
        "labels": {"team": "x"},
    }
    assert tree["kind"] == "Lease"
    assert tree["spec"] == {
        "holderIdentity": "b",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-03-01T12:00:00.000000Z",
        "renewTime": "2026-03-01T12:00:02.000000Z",
        "leaseTransitions": 4,
        "strategy": "OldestEmulationVersion",
    }
    assert Lease.read(decode_object(encode(tree))).claim == claim


def test_the_defaults_are_client_gos_and_the_identity_is_unique() -> None:
    made = LeaderElectionOptions(name="lock", namespace="ns")
    assert (made.lease_duration, made.renew_deadline, made.retry_period) == (15, 10, 2)
    assert made.attempt_timeout == 5
    assert made.stop_grace == 5
    assert made.identity != new_identity()
    assert "_" in made.identity


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"name": ""}, "name of the leader election is empty"),
        ({"namespace": ""}, "namespace of the leader election is empty"),
        ({"identity": ""}, "identity of the leader election is empty"),
        ({"lease_duration": 0}, "lease_duration is 0: use whole seconds"),
        ({"lease_duration": 15.5}, "lease_duration is 15.5: use whole seconds"),
        ({"lease_duration": float("inf")}, "lease_duration is inf"),
        ({"lease_duration": float("nan")}, "lease_duration is nan"),
        ({"renew_deadline": 15}, "renew_deadline is 15: use less than lease_duration"),
        ({"renew_deadline": float("nan")}, "renew_deadline is nan"),
        ({"retry_period": 8.5}, "retry_period is 8.5: 1.2 times it must be less"),
        ({"retry_period": 0.01}, "retry_period is 0.01: use at least 0.1"),
        ({"retry_period": float("nan")}, "retry_period is nan"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(complaint)):
        LeaderElectionOptions(**{"name": "lock", "namespace": "ns", **settings})
