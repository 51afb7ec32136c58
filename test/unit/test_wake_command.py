# SPDX-License-Identifier: Apache-2.0
"""What `flexinfer wake --wait` makes of what it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from api.flexinfer.v1alpha2.model_types import Model
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.direct import DirectClient
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.cmd.wake import State, _follow, _wake, state_of
from flexinfer.envtest.script import Answer, status_answer
from flexinfer.envtest.scripted import ScriptedServer
from flexinfer.meta.duration import Duration
from flexinfer.meta.envelope import meta_from
from flexinfer.meta.resource import NamespacedName

if TYPE_CHECKING:
    from flexinfer.envtest.certs import CertificateAuthority
    from flexinfer.envtest.script import Action
    from flexinfer.meta.envelope import Tree

KEY = NamespacedName("ns", "chat")
PATH = "/apis/ai.flexinfer/v1alpha2/namespaces/ns/models/chat"
UNSEEN = "the manager has not looked at it yet; is it running?"


def tree(phase: str = "", *, generation: int = 1, status: str = "False") -> Tree:
    condition = {
        "type": "Ready",
        "status": status,
        "reason": "R",
        "message": "words",
        "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    return {
        "metadata": {"name": "chat", "namespace": "ns", "generation": generation},
        "spec": {"backend": "ollama", "source": "ollama://m:1"},
        "status": {"phase": phase, "conditions": [condition]} if phase else {},
    }


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (tree(), State(UNSEEN, is_idle=True)),
        (tree("Ready", status="True", generation=2), State(UNSEEN, is_idle=True)),
        (tree("Ready", status="True"), State("Ready: words", is_ready=True)),
        (tree("Loading"), State("Loading: words")),
        (tree("Idle"), State("Idle: words", is_idle=True)),
    ],
)
def test_how_a_model_is_doing(found: Tree, state: State) -> None:
    model = Model.model_validate({**found, "metadata": meta_from(found["metadata"])})
    assert state_of(model) == state


def test_what_was_just_woken_is_idle_without_a_word_and_said_when_it_is_idle_again() -> None:
    idle, loading = State("Idle: a", is_idle=True), State("Loading: b")
    assert not State("Idle: c", is_idle=True).is_news_after(idle)
    assert loading.is_news_after(idle)
    assert not loading.is_news_after(loading)
    assert idle.is_news_after(loading)


async def follow(authority: CertificateAuthority, *answers: Action) -> list[NamespacedName]:
    async with ScriptedServer.start(authority) as server:
        server.script("GET", PATH, *answers)
        credentials = StaticCredentials(server.url, context=client_context(server.ca_pem))
        async with Transport(credentials) as transport:
            return await _follow(DirectClient(transport), [KEY], Duration.parse("30s"))


async def test_a_passing_trouble_is_said_and_borne(
    authority: CertificateAuthority, capsys: pytest.CaptureFixture[str]
) -> None:
    away = status_answer(500, "InternalError", "etcd is away")
    assert await follow(authority, away, Answer(body=tree("Ready", status="True"))) == [KEY]
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        f"chat: cannot tell: GET {PATH}: etcd is away",
        "chat: Ready: words",
    ]
    assert said.err == ""


async def test_a_model_that_is_deleted_is_not_waited_for(
    authority: CertificateAuthority, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = status_answer(404, "NotFound", "not found")
    assert await follow(authority, gone) == []
    assert capsys.readouterr().err == "flexinfer wake: chat is not ready: it was deleted\n"


async def test_a_cluster_without_models_is_told_from_one_without_this_model(
    authority: CertificateAuthority, capsys: pytest.CaptureFixture[str]
) -> None:
    async with ScriptedServer.start(authority) as server:
        plain = {"Content-Type": "text/plain"}
        server.script("GET", PATH, Answer(404, plain, body="404 page not found"))
        credentials = StaticCredentials(server.url, context=client_context(server.ca_pem))
        async with Transport(credentials) as transport:
            assert not await _wake(DirectClient(transport), KEY)
    assert "this cluster has no models.ai.flexinfer" in capsys.readouterr().err
