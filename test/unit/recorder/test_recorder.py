# SPDX-License-Identifier: Apache-2.0
"""What a recorder is asked for, and the rights that it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry

from flexinfer.client.auth import StaticCredentials
from flexinfer.client.direct import DirectClient
from flexinfer.client.transport import Transport
from flexinfer.errors import ConfigurationError
from flexinfer.recorder import RULES, EventBroadcaster, EventRecorder, ObjectReference

if TYPE_CHECKING:
    from flexinfer.recorder.series import Identity


def test_impossible_settings_are_refused() -> None:
    client = DirectClient(Transport(StaticCredentials("https://127.0.0.1:1")))
    for refresh in (0.0, -1.0, float("nan"), 301.0):
        with pytest.raises(ConfigurationError, match=r"refresh is .*: use seconds"):
            EventBroadcaster(client, refresh=refresh, registry=CollectorRegistry())
    with pytest.raises(ConfigurationError, match="the controller of a recorder is empty"):
        EventBroadcaster(client, registry=CollectorRegistry()).recorder(" ")


def test_what_is_short_says_type_and_action_by_itself() -> None:
    seen: list[tuple[str, str, str, str]] = []

    class Noting:
        def observe(self, identity: Identity, note: str) -> None:
            seen.append((identity.type, identity.reason, identity.action, note))

    recorder = EventRecorder(Noting(), "c")
    subject = ObjectReference("v1", "ConfigMap", "n", "c")
    recorder.normal(subject, "Copied", "one copy")
    recorder.warning(subject, "Refused", "no copy")
    assert seen == [
        ("Normal", "Copied", "Copied", "one copy"),
        ("Warning", "Refused", "Refused", "no copy"),
    ]


def test_the_rights_that_recording_needs() -> None:
    (needed,) = RULES
    assert needed.groups == ("events.k8s.io",)
    assert (needed.resources, needed.verbs) == (("events",), ("create", "patch"))
