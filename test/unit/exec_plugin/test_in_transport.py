# SPDX-License-Identifier: Apache-2.0
"""Exec plugins under the calls of a transport: one run for all, renewed when refused."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import pytest
import structlog

from flexinfer.client.transport import Transport
from flexinfer.envtest.eventually import eventually
from flexinfer.envtest.script import Answer, Bytes, Until, status_answer
from flexinfer.envtest.scripted import ScriptedServer
from flexinfer.errors import CredentialError

if TYPE_CHECKING:
    from flexinfer.envtest.certs import CertificateAuthority
    from test.unit.exec_plugin.conftest import Plugin

OK = Answer(body="here")


async def test_c67_one_run_serves_fifty_requests_at_once(
    plugin: Plugin, authority: CertificateAuthority
) -> None:
    plugin.does("time.sleep(0.2); answer(token=f'token-{runs}')")
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", OK)
        async with Transport(plugin.credentials(server)) as transport:
            async with anyio.create_task_group() as calls:
                for _ in range(50):
                    calls.start_soon(transport.request, "GET", "/x")
            assert {r.headers["authorization"] for r in server.requests} == {"Bearer token-1"}
        assert (len(server.requests), len(plugin.runs)) == (50, 1)


async def test_c70_fifty_refusals_at_once_are_one_run_and_no_call_fails(
    plugin: Plugin, authority: CertificateAuthority
) -> None:
    plugin.does("answer(token=f'token-{runs}')")
    async with ScriptedServer.start(authority) as server:
        refused = Answer(401, body=[Until("all are here")])
        server.script("GET", "/x", *[refused] * 50, OK)
        answers: list[bytes] = []

        async def call() -> None:
            answers.append(await transport.request("GET", "/x"))

        async with (
            Transport(plugin.credentials(server)) as transport,
            anyio.create_task_group() as calls,
        ):
            for _ in range(50):
                calls.start_soon(call)
            await server.received(50)
            server.release("all are here")
        assert answers == [b"here"] * 50
        sent = [r.headers["authorization"] for r in server.requests]
        assert sent == ["Bearer token-1"] * 50 + ["Bearer token-2"] * 50
        assert len(plugin.runs) == 2


async def test_c67_a_request_that_gives_up_does_not_stop_the_run_that_others_wait_for(
    plugin: Plugin, authority: CertificateAuthority
) -> None:
    plugin.does("""
        while not (folder / "go").exists():
            time.sleep(0.01)
        answer(token="t")
    """)
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", OK)
        async with (
            Transport(plugin.credentials(server)) as transport,
            anyio.create_task_group() as calls,
        ):
            calls.start_soon(transport.request, "GET", "/x")
            with pytest.raises(TimeoutError), anyio.fail_after(0.2):
                await transport.request("GET", "/x")
            await eventually(lambda: bool(plugin.runs), within=10)
            (plugin.folder / "go").touch()
        assert (len(server.requests), len(plugin.runs)) == (1, 1)


async def test_c67_an_error_reaches_the_caller_and_the_next_run_heals(
    plugin: Plugin, authority: CertificateAuthority
) -> None:
    plugin.does("""
        if runs == 1:
            sys.exit("no network")
        answer(token="t")
    """)
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", OK)
        with structlog.testing.capture_logs() as logs:
            async with Transport(plugin.credentials(server)) as transport:
                for _ in range(20):
                    with pytest.raises(CredentialError, match=r"ended with 1: no network"):
                        await transport.request("GET", "/x")
                # Nobody hammers a plugin that fails: these twenty were one run.
                assert len(plugin.runs) == 1

                async def answered() -> None:
                    assert await transport.request("GET", "/x") == b"here"

                with anyio.fail_after(20):
                    while True:
                        with suppress(CredentialError):
                            await answered()
                            break
                        await anyio.sleep(0.05)
        assert len(plugin.runs) == 2
        assert [e["event"] for e in logs if e["log_level"] == "warning"] == [
            "credential not renewed"
        ]


async def test_c67_client_certificates_are_shown_and_replaced_when_refused(
    plugin: Plugin, authority: CertificateAuthority
) -> None:
    for number in (1, 2):
        certificate, key = authority.issue(["x"], common_name=f"user-{number}")
        (plugin.folder / f"{number}.crt").write_bytes(certificate.read_bytes())
        (plugin.folder / f"{number}.key").write_bytes(key.read_bytes())
    plugin.does("""
        answer(
            clientCertificateData=(folder / f"{runs}.crt").read_text(),
            clientKeyData=(folder / f"{runs}.key").read_text(),
        )
    """)
    async with ScriptedServer.start(authority) as server:
        server.script("GET", "/x", OK, status_answer(401, "Unauthorized", "expired"), OK)
        async with Transport(plugin.credentials(server)) as transport:
            for _ in range(2):
                assert await transport.request("GET", "/x") == b"here"
        assert [r.client for r in server.requests] == ["user-1", "user-1", "user-2"]
        assert all("authorization" not in r.headers for r in server.requests)
        assert len(plugin.runs) == 2


async def test_c70_certificates_that_change_under_many_calls_close_nothing_under_them(
    plugin: Plugin, authority: CertificateAuthority
) -> None:
    for number in (1, 2):
        certificate, key = authority.issue(["x"], common_name=f"user-{number}")
        (plugin.folder / f"{number}.crt").write_bytes(certificate.read_bytes())
        (plugin.folder / f"{number}.key").write_bytes(key.read_bytes())
    plugin.does("""
        answer(
            clientCertificateData=(folder / f"{runs}.crt").read_text(),
            clientKeyData=(folder / f"{runs}.key").read_text(),
        )
    """)
    async with ScriptedServer.start(authority) as server:
        slow = Answer(body=[Until("renewed"), Bytes(b"here")])
        server.script("GET", "/slow", slow)
        server.script("GET", "/x", *[Answer(401, body=[Until("all are here")])] * 20, OK)
        answers: list[bytes] = []

        async def call(path: str) -> None:
            answers.append(await transport.request("GET", path))

        async with (
            Transport(plugin.credentials(server)) as transport,
            anyio.create_task_group() as calls,
        ):
            for path in ["/slow"] * 10 + ["/x"] * 20:
                calls.start_soon(call, path)
            await server.received(30)
            server.release("all are here")
            await server.received(40, path="/x")
            server.release("renewed")
        assert answers == [b"here"] * 30
        assert len(plugin.runs) == 2


async def test_c67_a_certificate_without_its_key_is_an_error_of_the_plugin(
    plugin: Plugin, authority: CertificateAuthority
) -> None:
    certificate, _ = authority.issue(["x"], common_name="a")
    _, key = authority.issue(["x"], common_name="b")
    plugin.does(f"""
        pem = [pathlib.Path(name).read_text() for name in ({str(certificate)!r}, {str(key)!r})]
        answer(clientCertificateData=pem[0], clientKeyData=pem[1])
    """)
    async with (
        ScriptedServer.start(authority) as server,
        Transport(plugin.credentials(server)) as transport,
    ):
        with pytest.raises(CredentialError, match="do not belong together"):
            await transport.request("GET", "/x")


async def test_c67_a_run_ends_with_its_transport(
    plugin: Plugin, authority: CertificateAuthority
) -> None:
    plugin.does("time.sleep(600)")
    async with (
        ScriptedServer.start(authority) as server,
        Transport(plugin.credentials(server)) as transport,
    ):
        with pytest.raises(TimeoutError), anyio.fail_after(0.5):
            await transport.request("GET", "/x")
        await eventually(lambda: bool(plugin.runs), within=10)
        assert plugin.is_alive(plugin.runs[0])
    await eventually(lambda: not any(map(plugin.is_alive, plugin.runs)), within=5)
