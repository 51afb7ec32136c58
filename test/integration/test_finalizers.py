# SPDX-License-Identifier: Apache-2.0
"""Finalizers on a real API server: no foreign one is ever lost or doubled."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest

from flexinfer import finalizers
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.direct import DirectClient
from flexinfer.client.protocol import Patch
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.errors import ConflictError, InvalidError, NotFoundError, TerminalError
from flexinfer.finalizers import Stage
from flexinfer.meta.envelope import meta_from
from flexinfer.meta.resource import GroupVersionKind, Resource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.envtest.eventually import Eventually
    from flexinfer.meta.envelope import ObjectMeta, Tree

CONFIG_MAP = Resource(GroupVersionKind("", "v1", "ConfigMap"), "configmaps")
OURS, THEIRS, FOREIGN = "example.com/ours", "example.org/theirs", "example.net/foreign"
# The full count is 1000; `make soak-cases` asks for it.
ROUNDS = int(os.environ.get("FLEXINFER_CASE_ROUNDS", "100"))


class Bench:
    """Be one object, a client, and the administrator's view."""

    def __init__(self, plane: ControlPlane, client: DirectClient, path: str) -> None:
        self.plane, self.client, self.path = plane, client, path

    def meta(self) -> ObjectMeta:
        return meta_from(self.plane.admin.get(self.path)["metadata"])

    def set(self, *names: str) -> ObjectMeta:
        body = {"metadata": {"finalizers": list(names)}}
        return meta_from(self.plane.admin.merge(self.path, body)["metadata"])

    def delete(self) -> ObjectMeta:
        self.plane.admin.delete(self.path)
        return self.meta()

    async def add(self, meta: ObjectMeta, name: str = OURS) -> ObjectMeta:
        return await finalizers.add(self.client, CONFIG_MAP, meta, name, field_manager="test")

    async def remove(self, meta: ObjectMeta, name: str = OURS) -> None:
        await finalizers.remove(self.client, CONFIG_MAP, meta, name, field_manager="test")


@pytest.fixture
def path(control_plane: ControlPlane, namespace: str) -> Iterator[str]:
    collection = CONFIG_MAP.collection_path(namespace)
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "subject"}}
    control_plane.admin.create(collection, body)
    made = f"{collection}/subject"
    yield made
    try:
        control_plane.admin.merge(made, {"metadata": {"finalizers": None}})
    except NotFoundError:
        return


@asynccontextmanager
async def bench(plane: ControlPlane, path: str) -> AsyncIterator[Bench]:
    credentials = StaticCredentials(
        plane.url, token=plane.admin_token, context=client_context(plane.ca_file.read_text())
    )
    async with Transport(credentials) as transport:
        yield Bench(plane, DirectClient(transport), path)


@pytest.mark.parametrize("others", [(), (FOREIGN,), (FOREIGN, THEIRS)])
async def test_a_finalizer_comes_and_goes_beside_others(
    control_plane: ControlPlane, path: str, others: tuple[str, ...]
) -> None:
    async with bench(control_plane, path) as b:
        added = await b.add(b.set(*others))
        assert added.finalizers == (*others, OURS) == b.meta().finalizers
        await b.remove(added)
        assert b.meta().finalizers == others
        again = await b.add(b.meta())
        assert again.finalizers == (*others, OURS)


async def test_what_is_there_already_costs_no_request(
    control_plane: ControlPlane, path: str
) -> None:
    async with bench(control_plane, path) as b:
        added, mark = await b.add(b.meta()), b.plane.audit_log.mark()
        assert await b.add(added) is added
        await b.remove(added, THEIRS)
        assert b.plane.audit(mark).at(path.split("/")[4], "subject").writes() == ()


async def test_a_stale_view_neither_loses_nor_doubles(
    control_plane: ControlPlane, path: str
) -> None:
    async with bench(control_plane, path) as b:
        stale = b.meta()
        b.set(FOREIGN)
        assert (await b.add(stale)).finalizers == (FOREIGN, OURS)
        assert (await b.add(stale)).finalizers == (FOREIGN, OURS)
        seen = b.meta()
        b.set(THEIRS, FOREIGN, OURS)
        await b.remove(seen)
        assert b.meta().finalizers == (THEIRS, FOREIGN)
        await b.remove(seen)
        assert b.meta().finalizers == (THEIRS, FOREIGN)
        b.set(THEIRS)
        await b.remove(seen)
        assert b.meta().finalizers == (THEIRS,)


async def test_c59_two_controllers_on_one_object_never_lose_or_double_a_finalizer(
    control_plane: ControlPlane, path: str, eventually: Eventually
) -> None:
    async with bench(control_plane, path) as b:
        key, met = b.set(FOREIGN).key, list[int]()

        async def look() -> ObjectMeta:
            stored = await b.client.read(CONFIG_MAP, key)
            assert stored is not None
            names = stored.meta.finalizers
            assert names[0] == FOREIGN
            assert len(set(names)) == len(names)
            met.append(len(names))
            return stored.meta

        meetings = {OURS: 0, THEIRS: 0}

        async def controller(name: str) -> None:
            for number in range(ROUNDS):
                await b.add(await look(), name)
                if number % 10 == 0:  # else the quicker one may be done before the other begins
                    meetings[name] += 1
                    await eventually(lambda: min(meetings.values()) >= meetings[name], every=0.001)
                held = await look()
                assert name in held.finalizers
                await b.remove(held, name)

        with anyio.fail_after(ROUNDS):
            async with anyio.create_task_group() as both:
                both.start_soon(controller, OURS)
                both.start_soon(controller, THEIRS)
        assert b.meta().finalizers == (FOREIGN,)
        assert met.count(3) >= ROUNDS // 10


async def test_nothing_is_added_to_what_is_being_deleted(
    control_plane: ControlPlane, path: str
) -> None:
    async with bench(control_plane, path) as b:
        before = b.set(FOREIGN)
        deleting = b.delete()
        mark = b.plane.audit_log.mark()
        with pytest.raises(TerminalError, match="is being deleted, and no finalizer can be added"):
            await b.add(deleting)
        assert b.plane.audit(mark).at(path.split("/")[4], "subject").writes() == ()
        with pytest.raises(ConflictError, match="is being deleted by now; read it again"):
            await b.add(before)
        assert b.meta().finalizers == (FOREIGN,)


async def test_removing_from_what_is_gone_or_made_anew_is_a_success(
    control_plane: ControlPlane, path: str
) -> None:
    async with bench(control_plane, path) as b:
        held = await b.add(b.meta())
        b.delete()
        await b.remove(held)
        with pytest.raises(NotFoundError):
            b.meta()
        await b.remove(held)
        with pytest.raises(ConflictError, match="is gone or was made anew"):
            await b.add(held, THEIRS)
        successor = {"apiVersion": "v1", "kind": "ConfigMap"}
        metadata: Tree = {"name": "subject", "finalizers": [OURS]}
        b.plane.admin.create(path.rpartition("/")[0], successor | {"metadata": metadata})
        await b.remove(held)
        assert b.meta().finalizers == (OURS,)
        with pytest.raises(ConflictError, match="is gone or was made anew"):
            await b.add(held, THEIRS)


async def test_the_server_names_a_cause_for_an_invalid_object_and_none_for_a_failed_test(
    control_plane: ControlPlane, path: str
) -> None:
    async with bench(control_plane, path) as b:
        with pytest.raises(InvalidError) as raised:
            await b.client.patch(
                CONFIG_MAP,
                b.meta().key,
                [{"op": "add", "path": "/metadata/finalizers", "value": ["x y/z"]}],
                content_type=Patch.JSON,
                field_manager="test",
            )
        assert raised.value.causes
        with pytest.raises(InvalidError) as failed:
            await b.client.patch(
                CONFIG_MAP,
                b.meta().key,
                [{"op": "test", "path": "/metadata/finalizers", "value": ["other"]}],
                content_type=Patch.JSON,
                field_manager="test",
            )
        assert not failed.value.causes


async def test_guard_holds_cleans_up_and_releases(control_plane: ControlPlane, path: str) -> None:
    async with bench(control_plane, path) as b:
        done, calls = False, 0

        async def clean_up() -> bool:
            nonlocal calls
            calls += 1
            await anyio.lowlevel.checkpoint()
            return done

        async def guard(meta: ObjectMeta) -> Stage:
            return await finalizers.guard(
                b.client, CONFIG_MAP, meta, OURS, field_manager="test", clean_up=clean_up
            )

        assert await guard(b.meta()) is Stage.LIVE
        held = b.set(OURS, FOREIGN)
        assert await guard(held) is Stage.LIVE
        assert calls == 0
        deleting = b.delete()
        assert await guard(deleting) is Stage.CLEANING
        assert b.meta().finalizers == (OURS, FOREIGN)
        done = True
        assert await guard(b.meta()) is Stage.RELEASED
        assert b.meta().finalizers == (FOREIGN,)
        assert await guard(b.meta()) is Stage.RELEASED
        assert calls == 2
