# SPDX-License-Identifier: Apache-2.0
"""Entries of lists: keys that change, entries of others, and orders that mean nothing."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from flexinfer.apply import Applier, Outcome, StatusWriter
from flexinfer.errors import InvalidError, TerminalError
from flexinfer.kinds.deployment import Deployment
from flexinfer.kinds.service import Service
from flexinfer.kinds.structure import Merge

if TYPE_CHECKING:
    from flexinfer.meta.envelope import Tree
    from test.faults.apply.conftest import Connect

HTTP = {"name": "http", "port": 80}
DNS_TCP = {"name": "dns-tcp", "port": 53, "protocol": "TCP"}
DNS_UDP = {"name": "dns", "port": 53, "protocol": "UDP"}


async def test_c14_a_list_whose_order_means_nothing_is_written_once(bench: Connect) -> None:
    async with bench() as b:
        writer = StatusWriter(
            b.client,
            field_manager=b.manager,
            structures={b.owner.resource: {"status.nodes": Merge.SET}},
        )
        nodes = [f"node-{number}" for number in range(10)]
        for _ in range(30):
            random.shuffle(nodes)
            status: Tree = {"phase": "Ready", "nodes": list(nodes)}
            await writer.write(b.owner.resource, b.owner.metadata, status)
        assert b.writes() == [("patch", "gadgets", 200)]
        version = b.get(b.owner.resource, "owner")["metadata"]["resourceVersion"]
        restarted = StatusWriter(
            b.client,
            field_manager=b.manager,
            structures={b.owner.resource: {"status.nodes": Merge.SET}},
        )
        status = {"phase": "Ready", "nodes": sorted(nodes, reverse=True)}
        assert (
            await restarted.write(b.owner.resource, b.owner.metadata, status) == Outcome.UNCHANGED
        )
        assert b.get(b.owner.resource, "owner")["metadata"]["resourceVersion"] == version
        assert b.writes() == []


async def test_c55_a_sole_owner_changes_the_key_of_an_entry(bench: Connect) -> None:
    async with bench() as b:
        applier = Applier(b.client, field_manager=b.manager)
        for ports in (
            [HTTP],
            [HTTP | {"port": 81}],
            [HTTP | {"port": 81}, DNS_TCP, DNS_UDP],
            [HTTP | {"port": 82}, DNS_UDP, DNS_TCP | {"port": 54}],
        ):
            await applier.apply(Service.resource, b.service(*ports), owner=b.owner)
            live = b.get(Service.resource, "web")["spec"]["ports"]
            assert {(p["name"], p["port"], p["protocol"]) for p in live} == {
                (p["name"], p["port"], p.get("protocol", "TCP")) for p in ports
            }
        for port in ({"name": "http"}, {"name": "api"}):
            for number in (8000, 8001):
                intent = b.deployment(ports=[port | {"containerPort": number}])
                await applier.apply(Deployment.resource, intent, owner=b.owner)
                pod = b.get(Deployment.resource, "web")["spec"]["template"]["spec"]
                (live_port,) = pod["containers"][0]["ports"]
                assert live_port == {**port, "containerPort": number, "protocol": "TCP"}
        assert {code for _, _, code in b.writes()} == {200, 201}


async def test_c55_who_holds_the_old_entry_too_is_named_and_the_change_waits_for_that(
    bench: Connect,
) -> None:
    async with bench() as b:
        applier = Applier(b.client, field_manager=b.manager)
        await applier.apply(Service.resource, b.service(HTTP), owner=b.owner)
        path = b.path(Service.resource, "web")
        b.wrote_as("somebody", "APPLY", b.service(HTTP), path)
        moved = b.service(HTTP | {"port": 81})
        b.sent()
        with pytest.raises(TerminalError) as caught:
            await applier.apply(Service.resource, moved, owner=b.owner)
        assert str(caught.value) == (
            f'Service {b.namespace}/web: spec.ports {{"port":80,"protocol":"TCP"}} is also held by'
            " somebody: keep the entry, or have it given up there"
        )
        looks = [("get", "services", 200)]
        assert b.sent() == [*looks, ("patch", "services", 422), *looks]
        assert [p["port"] for p in b.get(Service.resource, "web")["spec"]["ports"]] == [80]
        b.wrote_as("somebody", "APPLY", b.intent(Service.resource, "web"), path)
        await applier.apply(Service.resource, moved, owner=b.owner)
        assert [p["port"] for p in b.get(Service.resource, "web")["spec"]["ports"]] == [81]


async def test_c55_it_is_named_in_a_list_below_a_list_too(bench: Connect) -> None:
    async with bench() as b:
        applier = Applier(b.client, field_manager=b.manager)
        await applier.apply(Deployment.resource, b.deployment(), owner=b.owner)
        b.wrote_as("somebody", "APPLY", b.deployment(), b.path(Deployment.resource, "web"))
        moved = b.deployment(ports=[{"name": "http", "containerPort": 8001}])
        with pytest.raises(TerminalError, match=r'ports \{"containerPort":8000,.*held by somebody'):
            await applier.apply(Deployment.resource, moved, owner=b.owner)


async def test_c55_two_entries_of_one_key_are_refused_without_a_request(bench: Connect) -> None:
    async with bench() as b:
        applier = Applier(b.client, field_manager=b.manager)
        with pytest.raises(TerminalError, match="two entries have port=80, protocol=TCP"):
            await applier.apply(
                Service.resource, b.service(HTTP, HTTP | {"name": "other"}), owner=b.owner
            )
        assert b.sent() == []
        # Two of one name are the server's to refuse, and nobody else's doing.
        with pytest.raises(InvalidError):
            await applier.apply(
                Service.resource, b.service(HTTP, HTTP | {"port": 81}), owner=b.owner
            )
