# SPDX-License-Identifier: Apache-2.0
"""A control plane that refuses everybody for a while, as during an upgrade, and then does not."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest

from flexinfer.cache.informer import Informer, InformerOptions
from flexinfer.cache.timing import Timing
from flexinfer.client.auth import ServiceAccountCredentials
from flexinfer.client.transport import Transport
from flexinfer.envtest.eventually import eventually
from flexinfer.envtest.script import Answer, Close, Lines, Until, status_answer
from flexinfer.envtest.scripted import ScriptedServer
from flexinfer.errors import FlexInferError
from flexinfer.meta.resource import GroupVersionKind, Resource
from flexinfer.metrics import Registry

if TYPE_CHECKING:
    from pathlib import Path

    from flexinfer.envtest.certs import CertificateAuthority
    from flexinfer.meta.envelope import Tree

WIDGETS = Resource(GroupVersionKind("test.io", "v1", "Widget"), "widgets")
PATH = "/apis/test.io/v1/widgets"
REFUSALS = {
    401: status_answer(401, "Unauthorized", "Unauthorized"),
    403: status_answer(403, "Forbidden", "widgets.test.io is forbidden"),
    500: status_answer(500, "InternalError", "etcdserver: leader changed"),
    503: Answer(503, body="apiserver is shutting down"),
}


@pytest.fixture
def folder(tmp_path: Path, authority: CertificateAuthority) -> Path:
    (tmp_path / "token").write_text("first")
    (tmp_path / "namespace").write_text("n")
    (tmp_path / "ca.crt").write_text(authority.ca_pem.read_text())
    return tmp_path


def widget(version: int) -> Tree:
    metadata = {
        "name": "a",
        "namespace": "default",
        "uid": "u-1",
        "resourceVersion": str(version),
    }
    return {"apiVersion": "test.io/v1", "kind": "Widget", "metadata": metadata}


def listing(version: int) -> Answer:
    metadata = {"resourceVersion": str(version)}
    return Answer(body={"kind": "WidgetList", "metadata": metadata, "items": [widget(version)]})


@pytest.mark.parametrize("status", [401, 403, 500, 503])
async def test_c70_an_informer_backs_off_and_recovers(
    authority: CertificateAuthority, folder: Path, status: int
) -> None:
    refusal = REFUSALS[status]
    silence = Answer(body=[Until("never")])
    changed = Answer(body=[Lines({"type": "MODIFIED", "object": widget(6)})], then=Close())
    async with ScriptedServer.start(authority) as server:
        server.script("GET", PATH, changed, *[refusal] * 10, silence, query={"watch": "true"})
        server.script("GET", PATH, *[refusal] * 10, listing(5), *[refusal] * 5, listing(7))
        timing = Timing(backoff_first=0.001, backoff_most=0.01)
        async with (
            Transport(ServiceAccountCredentials(folder, server.url)) as transport,
            anyio.create_task_group() as group,
        ):
            informer = Informer(
                transport, WIDGETS, options=InformerOptions(timing=timing, registry=Registry())
            )
            group.start_soon(informer.run)
            await informer.wait_synced(20)
            await eventually(partial(_is_quiet, server, informer), within=20)
            group.cancel_scope.cancel()


def _is_quiet(server: ScriptedServer, informer: Informer) -> None:
    """Claim that all refusals are through and the watch is open again."""
    watches = [r for r in server.requests if r.query.get("watch") == "true"]
    assert len(watches) >= 12
    assert informer.health() is None


async def test_c70_many_calls_while_everybody_is_refused_share_one_reload(
    authority: CertificateAuthority, folder: Path
) -> None:
    async with ScriptedServer.start(authority) as server:
        refused = Answer(401, body=[Until("all are here")])
        server.script("GET", "/x", *[refused] * 50, Answer(body="here"))
        credentials = ServiceAccountCredentials(folder, server.url)
        outcomes: list[bytes | FlexInferError] = []

        async def call() -> None:
            try:
                outcomes.append(await transport.request("GET", "/x"))
            except FlexInferError as error:
                outcomes.append(error)

        async with Transport(credentials) as transport, anyio.create_task_group() as calls:
            for _ in range(50):
                calls.start_soon(call)
            await server.received(50)
            (folder / "token").write_text("second")
            server.release("all are here")
        assert outcomes == [b"here"] * 50
        assert (await credentials.authorization()) == ("Bearer second", 1)
