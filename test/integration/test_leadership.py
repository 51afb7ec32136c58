# SPDX-License-Identifier: Apache-2.0
"""Leadership in this process, on a real API server: terms, what stays between them, the way out."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ClassVar

import anyio
import pytest
from prometheus_client import CollectorRegistry

from flexinfer.builder import controller_for
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.direct import DirectClient
from flexinfer.client.protocol import Patch
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.envtest.eventually import eventually
from flexinfer.errors import FlexInferError
from flexinfer.leaderelection import FencingToken, LeaderElectionOptions, Leadership
from flexinfer.manager import Manager, ManagerOptions
from flexinfer.meta.object import Object
from flexinfer.meta.resource import GroupVersionKind, NamespacedName, Resource
from flexinfer.meta.selector import Selector
from flexinfer.reconcile import Request, Result

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.meta.envelope import Tree


class ConfigMap(Object):
    resource: ClassVar = Resource(GroupVersionKind("", "v1", "ConfigMap"), "configmaps")


def path(namespace: str, name: str = "lock") -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"


def user_agent(namespace: str) -> str:
    return f"test-of-{namespace}"


@asynccontextmanager
async def connected(plane: ControlPlane, namespace: str) -> AsyncIterator[Transport]:
    credentials = StaticCredentials(
        plane.url, token=plane.admin_token, context=client_context(plane.ca_file.read_text())
    )
    async with Transport(credentials, user_agent=user_agent(namespace)) as transport:
        yield transport


class Bench:
    """Be a leadership, the registry of its metric, and the exit codes it asked for."""

    def __init__(self, plane: ControlPlane, namespace: str, *, identity: str = "me") -> None:
        self.plane = plane
        self.namespace = namespace
        self.registry = CollectorRegistry()
        self.exits: list[int] = []
        options = LeaderElectionOptions(
            name="lock",
            namespace=namespace,
            identity=identity,
            lease_duration=3,
            renew_deadline=2,
            retry_period=0.4,
        )
        self.leadership = Leadership(
            options,
            lambda: connected(plane, namespace),
            end_process=self.exits.append,
            registry=self.registry,
        )

    def is_master(self) -> bool:
        labels = {"name": "lock"}
        return self.registry.get_sample_value("leader_election_master_status", labels) == 1

    def lease(self) -> Tree:
        return self.plane.admin.get(path(self.namespace))

    def usurp(self, *, seconds: int = 1) -> None:
        """Write another holder into the Lease, as nobody may while it is held."""
        spec = {"holderIdentity": "usurper", "leaseDurationSeconds": seconds}
        self.plane.admin.merge(path(self.namespace), {"spec": spec})


class Work:
    """Be what needs leadership; end when told to."""

    def __init__(self, leadership: Leadership) -> None:
        self.leadership = leadership
        self.tokens: list[FencingToken | None] = []
        self.cancelled = 0
        self.finish = anyio.Event()

    async def run(self) -> None:
        self.tokens.append(self.leadership.token)
        try:
            await self.finish.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise


async def test_work_runs_term_after_term_each_with_a_larger_token(
    control_plane: ControlPlane, namespace: str
) -> None:
    bench = Bench(control_plane, namespace)
    work = Work(bench.leadership)
    with anyio.fail_after(60):
        async with bench.leadership, anyio.create_task_group() as group:
            assert not bench.is_master()
            group.start_soon(bench.leadership.lead, work.run)
            await eventually(lambda: len(work.tokens) == 1)
            assert bench.is_master()
            bench.usurp()
            await eventually(lambda: work.cancelled == 1)
            assert not bench.is_master()
            assert bench.leadership.token is None
            await eventually(lambda: len(work.tokens) == 2)
            control_plane.admin.delete(path(namespace))
            await eventually(lambda: len(work.tokens) == 3)
            assert work.cancelled == 2
            assert bench.leadership.token == work.tokens[2]
            work.finish.set()
        assert bench.lease()["spec"]["holderIdentity"] == ""
    first, second, third = work.tokens
    assert first is not None
    assert second is not None
    assert third is not None
    assert first.uid == second.uid != third.uid
    assert second.transitions == first.transitions + 1
    assert not bench.is_master()
    assert bench.exits == []


async def test_work_that_does_not_stop_after_a_loss_ends_the_process(
    control_plane: ControlPlane, namespace: str
) -> None:
    bench = Bench(control_plane, namespace)
    release = anyio.Event()

    async def stubborn() -> None:
        with anyio.CancelScope(shield=True):
            await release.wait()

    with anyio.fail_after(60):
        async with bench.leadership, anyio.create_task_group() as group:
            group.start_soon(bench.leadership.lead, stubborn)
            await eventually(bench.is_master)
            bench.usurp(seconds=60)
            await eventually(lambda: bench.exits == [1])
            bench.leadership.resign()
            release.set()
    assert bench.lease()["spec"]["holderIdentity"] == "usurper"


async def test_an_error_of_the_work_leaves_lead_and_releases_the_lease(
    control_plane: ControlPlane, namespace: str
) -> None:
    bench = Bench(control_plane, namespace)

    async def broken() -> None:
        raise ValueError("boom")

    with anyio.fail_after(60), pytest.raises(ValueError, match="boom"):
        async with bench.leadership:
            await bench.leadership.lead(broken)
    assert bench.lease()["spec"]["holderIdentity"] == ""


async def test_cancelling_releases_the_lease(control_plane: ControlPlane, namespace: str) -> None:
    bench = Bench(control_plane, namespace)
    work = Work(bench.leadership)

    async def everything() -> None:
        async with bench.leadership:
            await bench.leadership.lead(work.run)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(everything)
            await eventually(lambda: len(work.tokens) == 1)
            group.cancel_scope.cancel()
    assert work.cancelled == 1
    assert bench.lease()["spec"]["holderIdentity"] == ""


async def test_a_release_reaches_the_standby_in_milliseconds_by_its_watch(
    control_plane: ControlPlane, namespace: str
) -> None:
    first, second = (Bench(control_plane, namespace, identity=name) for name in ("a", "b"))
    works = [Work(bench.leadership) for bench in (first, second)]
    with anyio.fail_after(60):
        async with second.leadership, anyio.create_task_group() as group:
            async with first.leadership, anyio.create_task_group() as inner:
                inner.start_soon(first.leadership.lead, works[0].run)
                await eventually(first.is_master)
                group.start_soon(second.leadership.lead, works[1].run)
                await eventually(lambda: watches(control_plane, namespace) == 1)
                mark = control_plane.audit_log.mark()
                works[0].finish.set()
            await eventually(second.is_master)
            works[1].finish.set()
    sent = control_plane.audit(mark).of("leases").at(namespace)
    # From the release on the standby asked for nothing but the Lease itself.
    writes = [event.body["responseStatus"]["code"] for event in sent.verbs("update")]
    assert set(writes) == {200}
    assert sent.verbs("get", "list") == ()


def watches(plane: ControlPlane, namespace: str) -> int:
    return len(plane.audit().of("leases").at(namespace).verbs("watch"))


# --- with a manager


class Blocking:
    """Reconcile objects of one namespace; wait in those named `slow` until released."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.started: list[str] = []
        self.ended: list[str] = []
        self.release = anyio.Event()

    async def reconcile(self, request: Request) -> Result:
        if request.namespace != self.namespace or request.name == "kube-root-ca.crt":
            return Result()
        self.started.append(request.name)
        if request.name == "slow":
            await self.release.wait()
        self.ended.append(request.name)
        return Result()


@asynccontextmanager
async def managing(bench: Bench) -> AsyncIterator[Manager]:
    options = ManagerOptions(metrics_address="0", probe_address="0", grace=10, signals=())
    async with connected(bench.plane, bench.namespace) as transport:
        yield Manager(
            transport, options=options, leadership=bench.leadership, registry=bench.registry
        )


def create(bench: Bench, name: str) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    bench.plane.admin.create(f"/api/v1/namespaces/{bench.namespace}/configmaps", body)


async def test_a_loss_keeps_the_caches_and_the_next_term_takes_up_what_was_cancelled(
    control_plane: ControlPlane, namespace: str
) -> None:
    bench = Bench(control_plane, namespace)
    create(bench, "slow")
    reconciler = Blocking(namespace)
    async with managing(bench) as made:
        controller_for(made, ConfigMap).complete(reconciler)
        elected, other = Work(bench.leadership), Work(bench.leadership)
        made.add(elected)
        made.add(other, needs_leadership=False)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(made.run)
                await eventually(lambda: reconciler.started == ["slow"])
                mark = control_plane.audit_log.mark()
                bench.usurp(seconds=2)
                await eventually(lambda: elected.cancelled == 1)
                create(bench, "meanwhile")
                assert made.readyz.reason("leader-election") is None
                reconciler.release.set()
                await eventually(lambda: len(reconciler.ended) == 2)
                made.stop()
        assert sorted(reconciler.ended) == ["meanwhile", "slow"]
        assert reconciler.started.count("slow") == 2
        assert len(elected.tokens) == 2
        assert len(other.tokens) == 1
    agent = user_agent(namespace)
    sent = [event for event in control_plane.audit(mark) if event.user_agent == agent]
    assert [event.verb for event in sent if event.resource == "configmaps"] == []
    assert bench.lease()["spec"]["holderIdentity"] == ""


async def test_the_lease_is_held_until_the_last_reconcile_has_ended(
    control_plane: ControlPlane, namespace: str
) -> None:
    bench = Bench(control_plane, namespace)
    create(bench, "slow")
    reconciler = Blocking(namespace)
    async with managing(bench) as made:
        controller_for(made, ConfigMap).complete(reconciler)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(made.run)
                await eventually(lambda: reconciler.started == ["slow"])
                made.stop()
                renewed = bench.lease()["spec"]["renewTime"]
                await eventually(lambda: bench.lease()["spec"]["renewTime"] != renewed)
                assert bench.lease()["spec"]["holderIdentity"] == "me"
                reconciler.release.set()
    assert reconciler.ended == ["slow"]
    assert bench.lease()["spec"]["holderIdentity"] == ""


async def test_an_election_that_fails_stops_the_manager(
    control_plane: ControlPlane, namespace: str
) -> None:
    bench = Bench(control_plane, namespace)

    @asynccontextmanager
    async def broken() -> AsyncIterator[Transport]:
        raise OSError("no way")
        yield

    bench.leadership = Leadership(bench.leadership.options, broken, registry=bench.registry)
    async with managing(bench) as made:
        with anyio.fail_after(60), pytest.raises(FlexInferError, match="no way"):
            await made.run()


async def test_c71_a_hundred_and_twenty_informers_do_not_keep_the_lease_from_being_renewed(
    control_plane: ControlPlane, namespace: str
) -> None:
    bench = Bench(control_plane, namespace)
    work = Work(bench.leadership)
    async with managing(bench) as made:
        for number in range(120):
            made.informers.informer(
                ConfigMap.resource,
                namespace=namespace,
                labels=Selector.from_labels({"number": str(number)}),
            )
        made.add(work)
        with anyio.fail_after(60):
            async with (
                connected(control_plane, namespace) as transport,
                anyio.create_task_group() as group,
            ):
                group.start_soon(made.run)
                await eventually(lambda: len(work.tokens) == 1)
                acquired = bench.lease()["spec"]
                create(bench, "patched")
                await DirectClient(transport).patch(
                    ConfigMap.resource,
                    NamespacedName(namespace, "patched"),
                    {"data": {"a": "b"}},
                    content_type=Patch.MERGE,
                    field_manager="test",
                )
                renewed = acquired["renewTime"]
                for _ in range(3):
                    await eventually(
                        lambda renewed=renewed: bench.lease()["spec"]["renewTime"] != renewed  # type: ignore[misc] # bound early on purpose
                    )
                    renewed = bench.lease()["spec"]["renewTime"]
                made.stop()
        assert len(work.tokens) == 1
