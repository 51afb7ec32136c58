# SPDX-License-Identifier: Apache-2.0
"""The builder: what is wired to what, and what is refused."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import TYPE_CHECKING, ClassVar

import anyio
import pytest
from prometheus_client import CollectorRegistry

from flexinfer.builder import controller_for
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.transport import Transport
from flexinfer.controller import Controller, ControllerOptions
from flexinfer.errors import ConfigurationError
from flexinfer.manager import Manager, ManagerOptions
from flexinfer.meta.envelope import ObjectMeta, OwnerReference, StoredObject
from flexinfer.meta.object import Object
from flexinfer.meta.resource import GroupVersionKind, Resource
from flexinfer.predicate import generation_changed
from flexinfer.reconcile import Request, Result
from flexinfer.workqueue import ExponentialBackoff

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flexinfer.cache.informer import Informer


class Model(Object):
    resource: ClassVar = Resource(GroupVersionKind("example.org", "v1", "Model"), "models")


class Secret(Object):
    resource: ClassVar = Resource(GroupVersionKind("", "v1", "Secret"), "secrets")


class Service(Object):
    resource: ClassVar = Resource(GroupVersionKind("", "v1", "Service"), "services")


class Node(Object):
    resource: ClassVar = Resource(GroupVersionKind("", "v1", "Node"), "nodes", namespaced=False)


class Recording:
    def __init__(self) -> None:
        self.seen: list[Request] = []

    async def reconcile(self, request: Request) -> Result:
        self.seen.append(request)
        return Result()


def manager(options: ControllerOptions | None = None) -> Manager:
    return Manager(
        Transport(StaticCredentials("https://127.0.0.1:1")),
        options=ManagerOptions(
            metrics_address="0",
            probe_address="0",
            signals=(),
            controller=options or ControllerOptions(),
        ),
        registry=CollectorRegistry(),
    )


def stored(name: str, *, uid: str = "u", version: int = 1, **meta: object) -> StoredObject:
    fields = {"namespace": "ns", "name": name, "uid": uid, "resource_version": str(version)}
    return StoredObject(ObjectMeta(**(fields | meta)), b"{}")  # type: ignore[arg-type] # a test varies single fields


def owned(name: str, *, owner: str, uid: str) -> StoredObject:
    reference = OwnerReference(
        api_version="example.org/v1", kind="Model", name=owner, uid=uid, controller=True
    )
    return stored(name, owner_references=(reference,))


def models_named_by_label(item: StoredObject) -> Iterable[Request]:
    return [Request("ns", name) for name in item.meta.labels.values()]


async def reconciled(controller: Controller, reconciler: Recording) -> list[Request]:
    """Run the controller on what it has heard of, and return what it did."""
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(controller.run)
            await anyio.wait_all_tasks_blocked()
            seen, reconciler.seen = reconciler.seen, []
            controller.shut_down()
    return sorted(seen)


def informer(made: Manager, kind: type[Object]) -> Informer:
    return made.informers.informer(kind.resource)


async def test_its_own_objects_are_reconciled() -> None:
    made, reconciler = manager(), Recording()
    built = controller_for(made, Model).complete(reconciler)
    informer(made, Model).changed("ADDED", stored("a"))
    assert await reconciled(built, reconciler) == [Request("ns", "a")]


async def test_owned_and_watched_objects_lead_to_theirs() -> None:
    made, reconciler = manager(), Recording()
    built = (
        controller_for(made, Model)
        .owns(Secret, Service)
        .watches(Node, map_to=models_named_by_label)
        .complete(reconciler)
    )
    informer(made, Secret).changed("ADDED", owned("s", owner="a", uid="u"))
    informer(made, Service).changed("ADDED", owned("s", owner="b", uid="u"))
    informer(made, Node).changed("ADDED", stored("n", namespace="", labels={"for": "c"}))
    assert await reconciled(built, reconciler) == [Request("ns", name) for name in "abc"]


async def test_a_child_of_an_earlier_owner_does_not_wake_the_new_one() -> None:
    made, reconciler = manager(), Recording()
    built = controller_for(made, Model, predicate=lambda _: False).owns(Secret).complete(reconciler)
    informer(made, Model).changed("ADDED", stored("a", uid="new"))
    informer(made, Secret).changed("ADDED", owned("orphan", owner="a", uid="old"))
    assert await reconciled(built, reconciler) == []


async def test_an_owner_that_is_not_cached_is_woken() -> None:
    made, reconciler = manager(), Recording()
    built = controller_for(made, Model).owns(Secret).complete(reconciler)
    informer(made, Secret).changed("ADDED", owned("s", owner="a", uid="u"))
    assert await reconciled(built, reconciler) == [Request("ns", "a")]


async def test_what_is_heard_before_there_are_workers_is_reconciled_once() -> None:
    made, reconciler = manager(), Recording()
    built = controller_for(made, Model).owns(Secret).complete(reconciler)
    built.subscribe()
    built.subscribe()
    informer(made, Model).changed("ADDED", stored("a"))
    informer(made, Secret).changed("ADDED", owned("s", owner="a", uid="u"))
    assert await reconciled(built, reconciler) == [Request("ns", "a")]


def test_each_step_returns_a_new_builder() -> None:
    first = controller_for(manager(), Model)
    second = first.owns(Secret)
    third = second.named("other").with_options(workers=4)
    assert first.others == ()
    assert (first.name, second.name, third.name) == ("model", "model", "other")
    assert (first.options.workers, third.options.workers) == (1, 4)


def test_the_managers_defaults_hold_unless_changed() -> None:
    options = ControllerOptions(workers=3, reconcile_timeout=7, jitter=lambda: 0.5)
    built = controller_for(manager(options), Model).with_options(reconcile_timeout=9)
    assert built.options == replace(options, reconcile_timeout=9)
    controller = built.with_options(rate_limiter=ExponentialBackoff()).complete(Recording())
    assert (controller.name, controller.options.workers) == ("model", 3)


def test_every_setting_of_a_controller_can_be_changed() -> None:
    options = ControllerOptions(workers=2, reconcile_timeout=7, hot_loop=5, jitter=lambda: 0.5)
    given = {field.name: getattr(options, field.name) for field in fields(options)}
    assert controller_for(manager(), Model).with_options(**given).options == options


def test_informers_are_shared_between_controllers() -> None:
    made = manager()
    controller_for(made, Model).owns(Secret).complete(Recording())
    controller_for(made, Service).owns(Secret).complete(Recording())
    resources = sorted(str(one.resource) for one in made.informers)
    assert resources == ["models.example.org", "secrets", "services"]


def test_predicates_are_those_given() -> None:
    built = controller_for(manager(), Model, predicate=generation_changed).owns(
        Secret, predicate=generation_changed
    )
    assert built.predicate is generation_changed
    assert built.others[0].predicate is generation_changed


def test_impossible_settings_are_refused() -> None:
    made = manager()
    builder = controller_for(made, Model)
    with pytest.raises(ConfigurationError, match=r"owns\(\) has no kinds"):
        builder.owns()
    with pytest.raises(ConfigurationError, match="model owns secrets already"):
        builder.owns(Secret).owns(Secret)
    with pytest.raises(ConfigurationError, match="model cannot own nodes: they are cluster-scoped"):
        builder.owns(Node)
    with pytest.raises(ConfigurationError, match="workers is 0"):
        builder.with_options(workers=0)
    with pytest.raises(ConfigurationError, match="reconcile_timeout is nan"):
        builder.with_options(reconcile_timeout=math.nan)
    with pytest.raises(ConfigurationError, match="hot_loop is 0"):
        builder.with_options(hot_loop=0)
    with pytest.raises(ConfigurationError, match="name of the work queue is empty"):
        builder.named("").complete(Recording())

    with pytest.raises(ConfigurationError, match="labels of nodes is a dict: give a Selector"):
        builder.watches(Node, map_to=lambda _: [], labels={"a": "b"})  # type: ignore[arg-type] # untyped

    async def waits(_item: StoredObject) -> Iterable[Request]:
        return []

    with pytest.raises(ConfigurationError, match="map_to of nodes is a coroutine function"):
        builder.watches(Node, map_to=waits)  # type: ignore[arg-type] # the mistake
    builder.complete(Recording())
    with pytest.raises(ConfigurationError, match="there is a controller 'model' already"):
        builder.complete(Recording())
