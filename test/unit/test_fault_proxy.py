# SPDX-License-Identifier: Apache-2.0
"""The fault proxy passes on what it is told to, and breaks the rest as its script says."""

from __future__ import annotations

import json
import ssl
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp
import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from flexinfer.envtest.eventually import eventually
from flexinfer.envtest.faults import (
    Bookmarks,
    CutInside,
    Drop,
    FaultProxy,
    Footprint,
    Forward,
    Hold,
    Insert,
    Rewrite,
)
from flexinfer.envtest.script import (
    Answer,
    Close,
    HalfClose,
    Hang,
    Lines,
    Reset,
    Until,
    status_answer,
)
from flexinfer.envtest.scripted import ScriptedServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from anyio.from_thread import BlockingPortal

    from flexinfer.envtest.certs import CertificateAuthority
    from flexinfer.envtest.script import Rupture
    from flexinfer.meta.envelope import Tree

WATCH = {"watch": "true"}
LIST = {"watch": None}


@dataclass(frozen=True)
class Upstream:
    url: str
    ca_file: Path


@dataclass(frozen=True)
class Rig:
    """A client, a proxy and a scripted server behind it."""

    server: ScriptedServer
    proxy: FaultProxy
    client: aiohttp.ClientSession
    portal: BlockingPortal

    def release(self, event: str) -> None:
        self.portal.call(self.server.release, event)

    async def get(self, target: str = "/x", **headers: str) -> tuple[int, bytes]:
        async with self.client.get(f"{self.proxy.url}{target}", headers=headers) as response:
            return response.status, await response.read()

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[aiohttp.StreamReader]:
        target = f"{self.proxy.url}/x?watch=true&resourceVersion=3"
        async with self.client.get(target) as response:
            try:
                yield response.content
            finally:
                if response.connection is not None and response.connection.transport is not None:
                    response.connection.transport.abort()


@asynccontextmanager
async def rig(authority: CertificateAuthority) -> AsyncIterator[Rig]:
    # In a thread of its own, as a real server is elsewhere: the proxy's end blocks this one.
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(ScriptedServer.start(authority)) as server,
        FaultProxy.start(Upstream(server.url, authority.ca_pem)) as proxy,
    ):
        context = ssl.create_default_context(cadata=proxy.ca_pem)
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context), timeout=aiohttp.ClientTimeout(total=10)
        ) as client:
            server.script("GET", "/x", Answer(body={"kind": "Thing"}), query=LIST)
            yield Rig(server, proxy, client, portal)
            await client.close()
            await eventually(lambda: not proxy._relay.going_on)


def event(kind: str, name: str, version: int) -> Tree:
    metadata = {"name": name, "resourceVersion": str(version)}
    return {"type": kind, "object": {"metadata": metadata}}


async def received(content: aiohttp.StreamReader, count: int) -> list[tuple[str, str, str]]:
    told = []
    for _ in range(count):
        line = json.loads(await content.readline())
        metadata = line["object"].get("metadata", {})
        told.append((line["type"], metadata.get("name", ""), metadata.get("resourceVersion", "")))
    return told


async def test_what_no_route_names_passes_unchanged(authority: CertificateAuthority) -> None:
    async with rig(authority) as r:
        r.server.script("POST", "/x", Answer(201, {"X-Thing": "yes"}, b"made"))
        async with r.client.post(
            f"{r.proxy.url}/x?a=%2C&b=", data=b"body", headers={"Authorization": "Bearer t"}
        ) as response:
            assert (response.status, await response.read()) == (201, b"made")
            assert response.headers["X-Thing"] == "yes"
        (asked,) = r.server.requests
        assert (asked.query, asked.body) == ({"a": ",", "b": ""}, b"body")
        assert asked.headers["authorization"] == "Bearer t"
        (exchange,) = r.proxy.traffic
        await eventually(lambda: (exchange.status, exchange.is_open) == (201, False))


async def test_a_script_names_requests_by_order_method_path_and_query(
    authority: CertificateAuthority,
) -> None:
    async with rig(authority) as r:
        busy = status_answer(429, "TooManyRequests", "later", headers={"Retry-After": "1"})
        r.proxy.script("GET", "/*", Forward(), busy, Forward(), query={"watch": None})
        assert [(await r.get())[0] for _ in range(4)] == [200, 429, 200, 200]
        r.proxy.heal()
        assert (await r.get())[0] == 200
        assert len(r.server.requests) == 4
        assert r.proxy.traffic.routes() == {("GET", "/x"): 5}
        assert r.proxy.traffic.peak_per_second() == 5
        assert r.proxy.traffic.connections() == r.proxy.connections == 1


async def test_an_answer_is_changed_on_its_way(authority: CertificateAuthority) -> None:
    async with rig(authority) as r:
        r.proxy.script(
            "GET",
            "/x",
            Forward(
                ask=lambda query: {**query, "resourceVersion": "9"},
                status=203,
                headers={"X-New": "1"},
                body=lambda tree: {**tree, "more": True},
            ),
        )
        assert await r.get("/x?a=1") == (203, b'{"kind":"Thing","more":true}')
        assert r.server.requests[0].query == {"a": "1", "resourceVersion": "9"}


async def test_an_answer_is_cut_after_so_many_bytes(authority: CertificateAuthority) -> None:
    async with rig(authority) as r:
        r.proxy.script("GET", "/x", Forward(cut_after=4, then=Close()))
        with pytest.raises(aiohttp.ClientPayloadError):
            await r.get()


@pytest.mark.parametrize("ending", [Close(), Reset(), HalfClose()])
async def test_a_request_gets_no_answer(authority: CertificateAuthority, ending: Rupture) -> None:
    async with rig(authority) as r:
        r.proxy.script("POST", "/x", ending)
        with pytest.raises((aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)):
            await r.client.post(f"{r.proxy.url}/x")
        assert r.server.requests == []


async def test_what_hangs_can_be_struck(authority: CertificateAuthority) -> None:
    async with rig(authority) as r:
        r.proxy.script("POST", "/x", Hang())
        async with anyio.create_task_group() as group:

            async def ask() -> None:
                with pytest.raises(aiohttp.ClientOSError):
                    await r.client.post(f"{r.proxy.url}/x")

            group.start_soon(ask)
            await eventually(lambda: len(r.proxy.traffic) == 1)
            assert r.proxy.strike(Reset(), path="/y") == 0
            assert r.proxy.strike(Reset(), path="/x") == 1


async def test_connections_are_refused_until_it_is_healed(authority: CertificateAuthority) -> None:
    async with rig(authority) as r:
        r.proxy.refuse(Reset())
        with pytest.raises(aiohttp.ClientConnectorError):
            await r.get()
        r.proxy.heal()
        assert (await r.get())[0] == 200


async def test_a_server_that_is_away_looks_so(authority: CertificateAuthority) -> None:
    async with rig(authority) as r:
        r.server.script("POST", "/x", Reset())
        with pytest.raises(aiohttp.ClientOSError):
            await r.client.post(f"{r.proxy.url}/x")


async def test_lines_of_a_watch_are_edited(authority: CertificateAuthority) -> None:
    lines = Lines(event("ADDED", "a", 4), event("DELETED", "a", 5), event("ADDED", "b", 6))
    async with rig(authority) as r:
        r.server.script("GET", "/x", Answer(body=(lines, Until("end"))), query=WATCH)

        def rename(change: Tree) -> Tree:
            return event("MODIFIED", "c", 7) if change["type"] == "ADDED" else change

        edits = (Drop("DELETED"), Rewrite(rename, name="b"), Insert(event("ERROR", "", 0), 0.2))
        r.proxy.script("GET", "/x", Forward(lines=edits), query=WATCH)
        async with r.watch() as content:
            assert await received(content, 3) == [
                ("ADDED", "a", "4"),
                ("MODIFIED", "c", "7"),
                ("ERROR", "", "0"),
            ]
            assert r.proxy.insert(event("ADDED", "d", 8), path="/x") == 1
            assert await received(content, 1) == [("ADDED", "d", "8")]
            r.release("end")
            assert await content.read() == b""
        (exchange,) = r.proxy.traffic.watches()
        assert exchange.lines == 4


async def test_a_watch_is_cut_inside_a_line(authority: CertificateAuthority) -> None:
    lines = Lines(event("ADDED", "a", 4), event("ADDED", "b", 5))
    async with rig(authority) as r:
        r.server.script("GET", "/x", Answer(body=(lines, Until("end"))), query=WATCH)
        r.proxy.script("GET", "/x", Forward(lines=(CutInside(7, name="b"),)), query=WATCH)
        async with r.watch() as content:
            assert await received(content, 1) == [("ADDED", "a", "4")]
            with pytest.raises(aiohttp.ClientPayloadError):
                await content.read()
        await eventually(lambda: not any(e.is_open for e in r.proxy.traffic))


async def test_held_lines_come_late_and_in_order(authority: CertificateAuthority) -> None:
    lines = Lines(event("ADDED", "a", 4), event("ADDED", "b", 5))
    async with rig(authority) as r:
        r.server.script("GET", "/x", Answer(body=(lines,)), query=WATCH)
        r.proxy.script("GET", "/x", Forward(lines=(Hold(0.3),)), query=WATCH)
        started = anyio.current_time()
        async with r.watch() as content:
            assert [name for _, name, _ in await received(content, 2)] == ["a", "b"]
            assert await content.read() == b""
        assert anyio.current_time() - started >= 0.3


async def test_bookmarks_carry_what_the_server_had_an_interval_ago(
    authority: CertificateAuthority,
) -> None:
    async with rig(authority) as r:
        listed = [
            Answer(body={"apiVersion": "v1", "kind": "XList", "metadata": {"resourceVersion": v}})
            for v in ("7", "2", "9")
        ]
        r.server.script("GET", "/x", Answer(body=(Until("end"),)), query=WATCH)
        r.server.script("GET", "/x", *listed, query=LIST)
        r.proxy.script("GET", "/x", Forward(lines=(Bookmarks(0.05),)), query=WATCH)
        async with r.watch() as content:
            assert await received(content, 2) == [("BOOKMARK", "", "7"), ("BOOKMARK", "", "9")]
        assert all(asked.query == {"limit": "1"} for asked in r.server.requests[1:])


@pytest.mark.parametrize("ending", [Close(), Reset(), Hang(), HalfClose()])
async def test_an_open_watch_is_struck(authority: CertificateAuthority, ending: Rupture) -> None:
    async with rig(authority) as r:
        lines = Lines(event("ADDED", "a", 4))
        r.server.script("GET", "/x", Answer(body=(lines, Until("end"))), query=WATCH)
        async with r.watch() as content:
            await received(content, 1)
            assert r.proxy.strike(ending, query=WATCH) == 1
            if isinstance(ending, Hang):
                with anyio.move_on_after(0.1) as scope:
                    await content.read()
                assert scope.cancelled_caught
            else:
                with pytest.raises(aiohttp.ClientError):
                    await content.read()


async def test_a_footprint_counts_the_clients_side_only(authority: CertificateAuthority) -> None:
    async with rig(authority) as r:
        r.server.script("GET", "/x", Answer(body=(Until("end"),)), query=WATCH)
        await r.get()
        before = Footprint.take(r.proxy)
        assert before.sockets == 1
        async with r.watch(), r.watch(), r.watch(), r.watch():
            await r.get()
            during = Footprint.take(r.proxy)
            assert during.sockets == 5
            assert during.descriptors - before.descriptors == 8, "four ends here, four upstream"
            with pytest.raises(AssertionError, match="grew"):
                before.assert_no_growth(during)
        await eventually(lambda: before.assert_no_growth(Footprint.take(r.proxy)))
