# SPDX-License-Identifier: Apache-2.0
"""Events on a real API server: what it accepts, what people see, whose change was taken back."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import anyio
import pytest

from flexinfer.apply import Applier, Outcome
from flexinfer.builder import controller_for
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.direct import DirectClient
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.kinds.deployment import Deployment
from flexinfer.manager import Manager, ManagerOptions
from flexinfer.meta.envelope import meta_from
from flexinfer.meta.object import Object
from flexinfer.meta.resource import GroupVersionKind, Resource
from flexinfer.metrics import Registry
from flexinfer.reconcile import Request, Result
from flexinfer.recorder import EventBroadcaster, EventType, ObjectReference, announce

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.envtest.eventually import Eventually
    from flexinfer.meta.envelope import Tree
    from flexinfer.recorder import EventRecorder

MANAGER = "test-controller"


class ConfigMap(Object):
    resource: ClassVar[Resource] = Resource(GroupVersionKind("", "v1", "ConfigMap"), "configmaps")


class Event(Object):
    resource: ClassVar[Resource] = Resource(
        GroupVersionKind("events.k8s.io", "v1", "Event"), "events"
    )
    regarding: dict[str, str]
    note: str = ""


class View:
    """Be the administrator's view of a namespace."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace, self.admin = plane, namespace, plane.admin

    def subject(self, name: str = "subject") -> ConfigMap:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
        made = self.admin.create(ConfigMap.resource.collection_path(self.namespace), body)
        return ConfigMap(metadata=meta_from(made["metadata"]))

    def events(self, name: str = "subject", namespace: str = "") -> list[Tree]:
        path = Event.resource.collection_path(namespace or self.namespace)
        items = self.admin.get(path)["items"]
        return [item for item in items if item["regarding"]["name"] == name]

    def has_settled(self, watcher: Watcher, count: int) -> bool:
        return watcher.runs == len(self.events()) == count


class Bench(View):
    """Be a recorder that sends what it records, and the administrator's view of it."""

    def __init__(self, plane: ControlPlane, client: DirectClient, namespace: str) -> None:
        super().__init__(plane, namespace)
        self.client = client
        self.registry = Registry()
        self.broadcaster = EventBroadcaster(client, refresh=0.2, registry=self.registry)

    def dropped(self) -> dict[str, float]:
        """Return how many events were dropped, by reason."""
        (family,) = (f for f in self.registry.collect() if f.name == "flexinfer_events_dropped")
        return {s.labels["reason"]: s.value for s in family.samples if s.value}


def emit(recorder: EventRecorder, about: Object | ObjectReference, **fields: Any) -> None:
    defaults = {"type": EventType.NORMAL, "reason": "Made", "action": "Make", "note": "made it"}
    recorder.emit(about, **defaults | fields)


@asynccontextmanager
async def bench(plane: ControlPlane, namespace: str) -> AsyncIterator[Bench]:
    async with connected(plane) as transport, anyio.create_task_group() as group:
        b = Bench(plane, DirectClient(transport), namespace)
        group.start_soon(b.broadcaster.run)
        yield b
        group.cancel_scope.cancel()


@asynccontextmanager
async def connected(plane: ControlPlane) -> AsyncIterator[Transport]:
    credentials = StaticCredentials(
        plane.url, token=plane.admin_token, context=client_context(plane.ca_file.read_text())
    )
    async with Transport(credentials) as transport:
        yield transport


@pytest.fixture
def node(control_plane: ControlPlane) -> Iterator[str]:
    """Give a cluster-scoped object, with a name that is none for an event."""
    name = "system:event:subject"
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    body = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}
    control_plane.admin.create(roles, body | {"metadata": {"name": name}})
    yield name
    control_plane.admin.delete(f"{roles}/{name}")


async def test_people_see_the_event_where_they_look(
    control_plane: ControlPlane, namespace: str, eventually: Eventually
) -> None:
    async with bench(control_plane, namespace) as b:
        subject = b.subject()
        emit(b.broadcaster.recorder(MANAGER), subject, note="made a «thing» ✓", related=subject)
        await eventually(lambda: len(b.events()) == 1)
        (event,) = b.events()
        assert event["regarding"]["uid"] == event["related"]["uid"] == subject.metadata.uid
        shown = b.plane.kubectl("-n", namespace, "describe", "configmap", "subject")
        assert "made a «thing» ✓" in shown
        assert MANAGER in shown


async def test_c64_identical_events_are_one_series_that_goes_on(
    control_plane: ControlPlane, namespace: str, eventually: Eventually
) -> None:
    async with bench(control_plane, namespace) as b:
        subject, recorder = b.subject(), b.broadcaster.recorder(MANAGER)
        emit(recorder, subject)
        await eventually(lambda: len(b.events()) == 1)
        mark = b.plane.audit_log.mark()
        for _ in range(9_999):
            emit(recorder, subject)
        await eventually(lambda: b.events()[0]["series"]["count"] == 10_000)
        emit(recorder, subject)
        await eventually(lambda: b.events()[0]["series"]["count"] == 10_001)
        assert len(b.events()) == 1
        writes = b.plane.audit(mark).at(namespace).of("events").writes()
        assert [event.verb for event in writes] == ["patch", "patch"]
        assert all(event.code == 200 for event in writes)


async def test_c64_a_hundred_reasons_about_one_object_are_all_seen(
    control_plane: ControlPlane, namespace: str, eventually: Eventually
) -> None:
    async with bench(control_plane, namespace) as b:
        subject, recorder = b.subject(), b.broadcaster.recorder(MANAGER)
        for number in range(100):
            emit(recorder, subject, reason=f"Reason{number}")
        await eventually(lambda: len({event["reason"] for event in b.events()}) == 100)
        emit(recorder, subject, reason="OneTooMany")
        assert b.dropped() == {"object_limit": 1}


async def test_c65_whatever_is_recorded_is_accepted(
    control_plane: ControlPlane, namespace: str, node: str, eventually: Eventually
) -> None:
    async with bench(control_plane, namespace) as b:
        role = ObjectReference("rbac.authorization.k8s.io/v1", "ClusterRole", "", node)
        subject = b.subject("n" * 253)
        names = ["c" * 200, "flexinfer.ai/model", "Ünï cödé", "d.e/" + "x" * 100, "-"]
        for name in names:
            recorder = b.broadcaster.recorder(name)
            for about in (role, subject):
                emit(recorder, about, note="é" * 5000, reason="r" * 300, action="")
        emit(b.broadcaster.recorder("odd"), role, note="\ud800\0", reason="", action=" ")
        await eventually(lambda: len(b.events("n" * 253)) == len(names))
        await eventually(lambda: len(b.events(node, "default")) == len(names) + 1)
        assert b.dropped() == {}
        for event in b.events(node, "default"):
            b.admin.delete(
                f"{Event.resource.collection_path('default')}/{event['metadata']['name']}"
            )


async def test_c63_an_event_that_the_server_lost_is_made_anew(
    control_plane: ControlPlane, namespace: str, eventually: Eventually
) -> None:
    async with bench(control_plane, namespace) as b:
        subject, recorder = b.subject(), b.broadcaster.recorder(MANAGER)
        emit(recorder, subject)
        await eventually(lambda: len(b.events()) == 1)
        (event,) = b.events()
        b.admin.delete(f"{Event.resource.collection_path(namespace)}/{event['metadata']['name']}")
        emit(recorder, subject)
        await eventually(lambda: [e["series"]["count"] for e in b.events()] == [2])


class Watcher:
    """Watch events and record one about each: about the event itself, and about its object."""

    def __init__(self, manager: Manager, namespace: str) -> None:
        self.client, self.recorder = manager.client, manager.recorder("watcher")
        self.namespace = namespace
        self.runs = 0

    async def reconcile(self, request: Request) -> Result:
        event = await self.client.get(Event, request)
        if event is not None and request.namespace == self.namespace:
            self.runs += 1
            emit(self.recorder, event, reason="SawEvent")
            regarding = ObjectReference("v1", "ConfigMap", self.namespace, event.regarding["name"])
            emit(self.recorder, regarding, reason="SawEvent")
        return Result()


@asynccontextmanager
async def managed(plane: ControlPlane) -> AsyncIterator[Manager]:
    options = ManagerOptions(
        metrics_address="0", probe_address="0", grace=10, cache_sync_timeout=60, signals=()
    )
    async with connected(plane) as transport:
        yield Manager(transport, options=options, registry=Registry())


@asynccontextmanager
async def running(manager: Manager) -> AsyncIterator[None]:
    async with anyio.create_task_group() as group:
        await group.start(manager.run)
        yield
        manager.stop()


async def test_c64_a_controller_that_watches_events_does_not_feed_itself(
    control_plane: ControlPlane, namespace: str, eventually: Eventually
) -> None:
    async with managed(control_plane) as manager:
        watcher = Watcher(manager, namespace)
        controller_for(manager, Event).complete(watcher)
        async with running(manager):
            view = View(control_plane, namespace)
            mark, subject = control_plane.audit_log.mark(), view.subject()
            for number in range(1, 6):
                emit(manager.recorder("origin"), subject, reason=f"Origin{number}")
                # One event each, and the one that the watcher makes of all of them.
                await eventually(partial(view.has_settled, watcher, number + 1))
            writes = control_plane.audit(mark).at(namespace).of("events").writes()
            assert [event.verb for event in writes] == ["create"] * 6


async def test_c63_what_the_last_reconcile_records_arrives_before_the_manager_ends(
    control_plane: ControlPlane, namespace: str
) -> None:
    class Slow:
        def __init__(self) -> None:
            self.started, self.release = anyio.Event(), anyio.Event()

        async def reconcile(self, request: Request) -> Result:
            if request == Request(namespace, "subject"):
                self.started.set()
                await self.release.wait()
                about = ObjectReference("v1", "ConfigMap", namespace, "subject")
                for number in range(20):
                    emit(recorder, about, reason=f"Last{number}")
            return Result()

    async with managed(control_plane) as manager:
        recorder, slow = manager.recorder("slow"), Slow()
        controller_for(manager, ConfigMap).complete(slow)
        view = View(control_plane, namespace)
        subject = view.subject()
        async with running(manager):
            await slow.started.wait()
            manager.stop()
            slow.release.set()
        assert len(view.events()) == 20
        emit(recorder, subject)
        assert len(view.events()) == 20


# --- whose change was taken back ---


class Fight:
    """Be a Deployment of ours that others change, and the events about it."""

    def __init__(self, b: Bench) -> None:
        self.b = b
        self.owner = b.subject("owner")
        self.applier = Applier(
            b.client,
            field_manager=MANAGER,
            on_reverted=announce(b.broadcaster.recorder(MANAGER)),
        )
        self.path = f"/apis/apps/v1/namespaces/{b.namespace}/deployments/web"
        self.intent = deployment(b.namespace)

    async def apply(self) -> Outcome:
        applied = await self.applier.apply(Deployment.resource, self.intent, owner=self.owner)
        return applied.outcome

    async def revert(self, eventually: Eventually) -> str:
        """Take the change back; return the note of the event about it."""
        assert await self.apply() is Outcome.UPDATED
        await eventually(lambda: len(self.b.events("owner")) == 1)
        (event,) = self.b.events("owner")
        assert (event["type"], event["reason"]) == ("Warning", "ForeignChangeReverted")
        assert (event["related"]["kind"], event["related"]["name"]) == ("Deployment", "web")
        note: str = event["note"]
        return note

    def kubectl(self, *args: str, stdin: str | None = None) -> None:
        self.b.plane.kubectl("-n", self.b.namespace, *args, stdin=stdin)

    def live(self) -> Tree:
        return self.b.admin.get(self.path)


def deployment(namespace: str, **spec: Any) -> Tree:
    labels = {"app": "web"}
    container = {
        "name": "server",
        "image": "flexinfer.local/none",
        "args": ["--model", "tiny"],
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
        "ports": [{"containerPort": 8000}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"nodeSelector": {"none": "such"}, "containers": [container]},
            },
            **spec,
        },
    }


@asynccontextmanager
async def fighting(plane: ControlPlane, namespace: str) -> AsyncIterator[Fight]:
    async with bench(plane, namespace) as b:
        fight = Fight(b)
        assert await fight.apply() is Outcome.CREATED
        yield fight


async def test_kubectl_edit_is_named_with_its_fields(
    control_plane: ControlPlane,
    namespace: str,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nsed -i -e 's/value: \"2\"/value: edited/' -e 's/tiny/big/' $1\n")
    editor.chmod(0o755)
    monkeypatch.setenv("KUBE_EDITOR", str(editor))
    async with fighting(control_plane, namespace) as fight:
        fight.kubectl("edit", "deployment", "web")
        assert "edited" in json.dumps(fight.live())
        assert await fight.revert(eventually) == (
            "Deployment web: took back "
            "spec.template.spec.containers[name=server].args, "
            "spec.template.spec.containers[name=server].env[name=B].value, "
            "set by kubectl-edit (Update)"
        )
        assert "edited" not in json.dumps(fight.live())


async def test_a_second_apply_manager_is_named_with_its_fields(
    control_plane: ControlPlane, namespace: str, eventually: Eventually
) -> None:
    async with fighting(control_plane, namespace) as fight:
        theirs: Tree = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web"},
            "spec": {
                "replicas": 3,
                "template": {"spec": {"nodeSelector": {"theirs": "x"}}},
            },
        }
        fight.kubectl(
            "apply", "--server-side", "--force-conflicts", "--field-manager=argocd", "-f", "-",
            stdin=json.dumps(theirs),
        )  # fmt: skip
        assert await fight.revert(eventually) == (
            "Deployment web: took back spec.replicas, spec.template.spec.nodeSelector, "
            "set by argocd (Apply)"
        )
        assert fight.live()["spec"]["replicas"] == 1


async def test_scaling_is_named_with_its_subresource(
    control_plane: ControlPlane, namespace: str, eventually: Eventually
) -> None:
    async with fighting(control_plane, namespace) as fight:
        fight.kubectl("scale", "deployment", "web", "--replicas=4")
        assert await fight.revert(eventually) == (
            "Deployment web: took back spec.replicas, set by kubectl (Update through scale)"
        )


async def test_two_managers_are_both_named(
    control_plane: ControlPlane, namespace: str, eventually: Eventually
) -> None:
    async with fighting(control_plane, namespace) as fight:
        fight.kubectl("scale", "deployment", "web", "--replicas=4")
        fight.kubectl("set", "env", "deployment", "web", "A=changed")
        assert await fight.revert(eventually) == (
            "Deployment web: took back spec.replicas, set by kubectl (Update through scale); "
            "spec.template.spec.containers[name=server].env[name=A].value, "
            "set by kubectl-set (Update)"
        )


async def test_a_removal_leaves_no_trace_but_its_field(
    control_plane: ControlPlane, namespace: str, eventually: Eventually
) -> None:
    async with fighting(control_plane, namespace) as fight:
        path = "/spec/template/spec/containers/0/env/1"
        patch = json.dumps([{"op": "remove", "path": path}])
        fight.kubectl("patch", "deployment", "web", "--type=json", "-p", patch)
        env = "spec.template.spec.containers[name=server].env[name=B]"
        assert await fight.revert(eventually) == (
            f"Deployment web: took back {env}.name, {env}.value, "
            "removed by a manager that left no trace"
        )


async def test_a_fight_is_one_event_and_one_look_a_minute(
    control_plane: ControlPlane, namespace: str, eventually: Eventually
) -> None:
    async with fighting(control_plane, namespace) as fight:
        mark = control_plane.audit_log.mark()
        for replicas in range(2, 7):
            fight.b.admin.merge(fight.path, {"spec": {"replicas": replicas}})
            assert await fight.apply() is Outcome.UPDATED
        await eventually(lambda: len(fight.b.events("owner")) == 1)
        assert "series" not in fight.b.events("owner")[0]
        ours = [
            event
            for event in control_plane.audit(mark).at(namespace, "web").of("deployments")
            if event.user_agent.startswith("flexinfer/")
        ]
        # Each apply reads once: this client has no cache. One more read was the look.
        assert [event.verb for event in ours].count("get") == 6
        assert [event.verb for event in ours].count("patch") == 5


async def test_what_is_no_revert_is_no_event(control_plane: ControlPlane, namespace: str) -> None:
    async with fighting(control_plane, namespace) as fight:
        fight.kubectl("annotate", "deployment", "web", "theirs=1")
        assert await fight.apply() is Outcome.UNCHANGED
        fight.intent = deployment(namespace, replicas=2)
        assert await fight.apply() is Outcome.UPDATED
        await fight.b.broadcaster.flush()
        assert fight.b.events("owner") == []
