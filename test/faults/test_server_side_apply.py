# SPDX-License-Identifier: Apache-2.0
"""Server-side apply where it goes wrong for others: who owns what, keys, numbers, the deleted.

The API server is a real one, and its audit log says what was sent.
"""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import pytest
from pydantic import Field

from flexinfer.apply import Applier, Outcome, StatusWriter
from flexinfer.client.auth import StaticCredentials
from flexinfer.client.direct import DirectClient
from flexinfer.client.protocol import Patch
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.crd.generate import crd_for
from flexinfer.crd.markers import ListSet, PreserveUnknown, Rule, resource
from flexinfer.errors import (
    ConfigurationError,
    ConflictError,
    InvalidError,
    NotFoundError,
    NotOursError,
    TerminalError,
)
from flexinfer.kinds.deployment import Deployment
from flexinfer.kinds.persistentvolumeclaim import PersistentVolumeClaim
from flexinfer.kinds.service import Service
from flexinfer.kinds.structure import Merge
from flexinfer.meta.envelope import decode_tree, meta_from
from flexinfer.meta.object import Model, Object
from flexinfer.meta.resource import GroupVersionKind, NamespacedName, Resource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from flexinfer.envtest.controlplane import ControlPlane
    from flexinfer.envtest.eventually import Eventually
    from flexinfer.meta.envelope import StoredObject, Tree

    Connect = Callable[[], AbstractAsyncContextManager["Bench"]]

AGENT = "faults-apply"
MANAGER = "test-controller"
EXACT = 2**53 + 1  # the first integer that a double cannot hold
CONFIG_MAP = Resource(GroupVersionKind("", "v1", "ConfigMap"), "configmaps")
SECRET = Resource(GroupVersionKind("", "v1", "Secret"), "secrets")


class GadgetSpec(Model):
    """What is asked of a gadget."""

    model: Annotated[str, Rule("self == oldSelf", "model is immutable")] = Field("", max_length=20)
    """A model that cannot change."""
    size: int = 0
    """A size that can."""
    free: Annotated[dict[str, Any], PreserveUnknown()] = Field(default_factory=dict)
    """Whatever its author likes."""


class GadgetStatus(Model):
    """What a gadget came to."""

    phase: str = ""
    """Where it stands."""
    nodes: Annotated[tuple[str, ...], ListSet()] = Field(default=(), max_length=100)
    """Where it runs, in no order."""


@resource(group="faults.example.com", version="v1", plural="gadgets")
class Gadget(Object):
    """An owner, and a child with everything that custom resources have."""

    resource: ClassVar[Resource]
    spec: GadgetSpec = GadgetSpec()
    """What is asked for."""
    status: GadgetStatus | None = None
    """What it came to."""


class Client(DirectClient):
    """Ask the server each time; `meanwhile` happens once, just before the next apply."""

    meanwhile: Callable[[], object] | None = None

    async def apply(
        self,
        resource: Resource,
        intent: Tree,
        *,
        field_manager: str,
        force: bool = True,
        subresource: str = "",
    ) -> StoredObject:
        happen, self.meanwhile = self.meanwhile, None
        if happen is not None:
            happen()
        return await super().apply(
            resource, intent, field_manager=field_manager, force=force, subresource=subresource
        )


class Bench:
    """Be a namespace with an owner in it, and the audit log's view of what we send there."""

    def __init__(self, plane: ControlPlane, client: Client, namespace: str) -> None:
        self.plane, self.client, self.namespace = plane, client, namespace
        self.admin = plane.admin
        made = self.admin.create(
            Gadget.resource.collection_path(namespace), self.intent(Gadget.resource, "owner")
        )
        self.owner = Gadget(metadata=meta_from(made["metadata"]))
        self._mark = plane.audit_log.mark()

    def intent(self, resource: Resource, name: str, **fields: object) -> Tree:
        return {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": name, "namespace": self.namespace},
            **fields,
        }

    def service(self, *ports: Tree) -> Tree:
        spec = {"selector": {"app": "m"}, "ports": list(ports)}
        return self.intent(Service.resource, "web", spec=spec)

    def path(self, resource: Resource, name: str) -> str:
        return resource.object_path(NamespacedName(self.namespace, name))

    def get(self, resource: Resource, name: str) -> Tree:
        return self.admin.get(self.path(resource, name))

    def owned(self, intent: Tree) -> Tree:
        """Return *intent* with the owner reference that an Applier gives it."""
        reference = {
            "apiVersion": Gadget.resource.api_version,
            "kind": "Gadget",
            "name": "owner",
            "uid": self.owner.metadata.uid,
            "controller": True,
        }
        return intent | {"metadata": intent["metadata"] | {"ownerReferences": [reference]}}

    def wrote_as(self, manager: str, method: str, intent: Tree, path: str) -> Tree:
        """Write as another program, or an older one, does: PUT, merge patch or apply."""
        types = {"PATCH": "application/merge-patch+json", "APPLY": "application/apply-patch+yaml"}
        return self.admin.request(
            "PATCH" if method == "APPLY" else method,
            path,
            params={"fieldManager": manager} | ({"force": "true"} if method == "APPLY" else {}),
            body=intent,
            content_type=types.get(method, "application/json"),
        )

    def managers(self, resource: Resource, name: str) -> list[tuple[str, str]]:
        entries = self.get(resource, name)["metadata"]["managedFields"]
        return [(e["manager"], e["operation"]) for e in entries if not e.get("subresource")]

    def sent(self) -> list[tuple[str, str, int]]:
        """Return verb, plural and answer of what we sent since the last look."""
        trail = self.plane.audit(self._mark).at(self.namespace)
        self._mark = self.plane.audit_log.mark()
        return [(e.verb, e.resource, e.code) for e in trail if e.user_agent == AGENT]

    def writes(self) -> list[tuple[str, str, int]]:
        return [sent for sent in self.sent() if sent[0] != "get"]


@pytest.fixture(scope="module")
def gadgets(control_plane: ControlPlane) -> str:
    crd = crd_for(Gadget)
    name = crd["metadata"]["name"]
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
    control_plane.admin.apply(path, crd)
    control_plane.wait_established(name)
    return path


@pytest.fixture
def bench(
    control_plane: ControlPlane, namespace: str, gadgets: str, eventually: Eventually
) -> Connect:
    assert gadgets

    @asynccontextmanager
    async def connected() -> AsyncIterator[Bench]:
        credentials = StaticCredentials(
            control_plane.url,
            token=control_plane.admin_token,
            context=client_context(control_plane.ca_file.read_text()),
        )
        collection = Gadget.resource.collection_path(namespace)
        await eventually(lambda: control_plane.admin.get(collection))
        async with Transport(credentials, user_agent=AGENT) as transport:
            yield Bench(control_plane, Client(transport), namespace)

    return connected


def deployment(b: Bench, *, selector: str = "m", **container: object) -> Tree:
    """Write what the server normalises in every way it has."""
    labels = {"app": selector}
    server: Tree = {
        "name": "server",
        "image": "flexinfer.local/none",
        "env": [],
        "ports": [{"name": "http", "containerPort": 8000}],
        "readinessProbe": {"httpGet": {"path": "/", "port": "http"}},
        "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}},
        **container,
    }
    pod = {
        "nodeSelector": {"none": "such"},
        "containers": [server],
        "volumes": [{"name": "model", "emptyDir": {}}],
    }
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    return b.intent(Deployment.resource, "web", spec=spec)


async def test_c14_a_list_whose_order_means_nothing_is_written_once(bench: Connect) -> None:
    async with bench() as b:
        writer = StatusWriter(
            b.client,
            field_manager=MANAGER,
            structures={Gadget.resource: {"status.nodes": Merge.SET}},
        )
        nodes = [f"node-{number}" for number in range(10)]
        for _ in range(30):
            random.shuffle(nodes)
            status: Tree = {"phase": "Ready", "nodes": list(nodes)}
            await writer.write(Gadget.resource, b.owner.metadata, status)
        assert b.writes() == [("patch", "gadgets", 200)]
        version = b.get(Gadget.resource, "owner")["metadata"]["resourceVersion"]
        restarted = StatusWriter(
            b.client,
            field_manager=MANAGER,
            structures={Gadget.resource: {"status.nodes": Merge.SET}},
        )
        status = {"phase": "Ready", "nodes": sorted(nodes, reverse=True)}
        assert await restarted.write(Gadget.resource, b.owner.metadata, status) == Outcome.UNCHANGED
        assert b.get(Gadget.resource, "owner")["metadata"]["resourceVersion"] == version
        assert b.writes() == []


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_c52_what_was_written_by_update_under_our_name_becomes_ours(
    bench: Connect, method: str
) -> None:
    async with bench() as b:
        path = b.path(CONFIG_MAP, "settings")
        b.admin.create(
            CONFIG_MAP.collection_path(b.namespace), b.owned(b.intent(CONFIG_MAP, "settings"))
        )
        old = b.owned(b.intent(CONFIG_MAP, "settings", data={"kept": "old", "removed": "x"}))
        b.wrote_as(MANAGER, method, old, path)
        assert (MANAGER, "Update") in b.managers(CONFIG_MAP, "settings")
        b.wrote_as(
            "somebody", "APPLY", b.intent(CONFIG_MAP, "settings", data={"theirs": "y"}), path
        )

        intent = b.intent(CONFIG_MAP, "settings", data={"kept": "new"})
        applied = await Applier(b.client, field_manager=MANAGER).apply(
            CONFIG_MAP, intent, owner=b.owner
        )
        assert applied.outcome is Outcome.UPDATED
        assert b.get(CONFIG_MAP, "settings")["data"] == {"kept": "new", "theirs": "y"}
        managers = b.managers(CONFIG_MAP, "settings")
        assert (MANAGER, "Apply") in managers
        assert (MANAGER, "Update") not in managers
        assert ("somebody", "Apply") in managers
        update = [("patch", "configmaps", 200)]
        assert b.sent() == [("get", "configmaps", 200), *update, *update]


async def test_c52_it_happens_once_and_costs_nothing_afterwards(bench: Connect) -> None:
    async with bench() as b:
        path = b.path(CONFIG_MAP, "settings")
        intent = b.intent(CONFIG_MAP, "settings", data={"key": "a"})
        applier = Applier(b.client, field_manager=MANAGER)
        await applier.apply(CONFIG_MAP, intent, owner=b.owner)
        b.wrote_as(MANAGER, "PATCH", {"data": {"added": "by the old version"}}, path)
        restarted = Applier(b.client, field_manager=MANAGER)
        b.sent()
        assert (await restarted.apply(CONFIG_MAP, intent, owner=b.owner)).outcome == Outcome.UPDATED
        assert b.get(CONFIG_MAP, "settings")["data"] == {"key": "a"}
        assert b.sent() == [("get", "configmaps", 200)] + 2 * [("patch", "configmaps", 200)]
        again = await restarted.apply(CONFIG_MAP, intent, owner=b.owner)
        assert again.outcome is Outcome.UNCHANGED
        assert b.writes() == []
        third = Applier(b.client, field_manager=MANAGER)
        b.sent()
        assert (await third.apply(CONFIG_MAP, intent, owner=b.owner)).outcome == Outcome.UNCHANGED
        assert b.sent() == [("get", "configmaps", 200), ("patch", "configmaps", 200)]


class Slow(Client):
    """Be late: something happens between the look at an object and the next write."""

    def __init__(self, client: Client, happen: Callable[[], object]) -> None:
        super().__init__(client._transport)
        self.happen = happen

    async def live_tree(self, resource: Resource, key: NamespacedName) -> Tree | None:
        tree = await super().live_tree(resource, key)
        self.happen()
        return tree


def written_by_update(b: Bench) -> str:
    """Make a ConfigMap with a field that our name wrote by update; return its path."""
    path = b.path(CONFIG_MAP, "settings")
    old = b.owned(b.intent(CONFIG_MAP, "settings"))
    b.admin.create(CONFIG_MAP.collection_path(b.namespace), old)
    b.wrote_as(MANAGER, "PUT", old | {"data": {"removed": "x"}}, path)
    return path


async def test_c52_a_writer_that_comes_between_is_not_overwritten(bench: Connect) -> None:
    async with bench() as b:
        path = written_by_update(b)
        late = {"data": {"late": "y"}}
        slow = Slow(b.client, lambda: b.wrote_as("somebody", "PATCH", late, path))
        intent = b.intent(CONFIG_MAP, "settings", data={"key": "a"})
        applier = Applier(slow, field_manager=MANAGER)
        with pytest.raises(ConflictError):
            await applier.apply(CONFIG_MAP, intent, owner=b.owner)
        assert b.get(CONFIG_MAP, "settings")["data"] == {"removed": "x", "late": "y"}
        await Applier(b.client, field_manager=MANAGER).apply(CONFIG_MAP, intent, owner=b.owner)
        assert b.get(CONFIG_MAP, "settings")["data"] == {"key": "a", "late": "y"}


async def test_c52_what_is_deleted_meanwhile_is_not_made_again(bench: Connect) -> None:
    async with bench() as b:
        path = written_by_update(b)
        slow = Slow(b.client, lambda: b.admin.delete(path))
        intent = b.intent(CONFIG_MAP, "settings", data={"key": "a"})
        with pytest.raises(ConflictError, match="settings is gone; read it again"):
            await Applier(slow, field_manager=MANAGER).apply(CONFIG_MAP, intent, owner=b.owner)
        with pytest.raises(NotFoundError):
            b.get(CONFIG_MAP, "settings")


async def test_c52_an_object_that_is_not_ours_keeps_its_managers(bench: Connect) -> None:
    async with bench() as b:
        path = b.path(CONFIG_MAP, "settings")
        foreign = b.intent(CONFIG_MAP, "settings", data={"key": "theirs"})
        b.admin.create(CONFIG_MAP.collection_path(b.namespace), foreign)
        b.wrote_as(MANAGER, "PUT", foreign | {"data": {"key": "also theirs"}}, path)
        assert (MANAGER, "Update") in b.managers(CONFIG_MAP, "settings")
        before = b.get(CONFIG_MAP, "settings")
        applier = Applier(b.client, field_manager=MANAGER, former_managers=["envtest"])
        with pytest.raises(NotOursError, match="is left untouched"):
            await applier.apply(CONFIG_MAP, foreign, owner=b.owner)
        assert b.get(CONFIG_MAP, "settings") == before
        assert b.writes() == []


@pytest.mark.parametrize("method", ["APPLY", "PUT"])
async def test_c53_a_field_of_a_former_manager_goes_when_the_intent_is_without_it(
    bench: Connect, method: str
) -> None:
    async with bench() as b:
        path = b.path(CONFIG_MAP, "settings")
        old = b.owned(b.intent(CONFIG_MAP, "settings", data={"kept": "a", "removed": "x"}))
        b.admin.create(
            CONFIG_MAP.collection_path(b.namespace), b.owned(b.intent(CONFIG_MAP, "settings"))
        )
        b.wrote_as("ctrl-v1", method, old, path)
        intent = b.intent(CONFIG_MAP, "settings", data={"kept": "a"})

        unaware = Applier(b.client, field_manager="ctrl-v2")
        await unaware.apply(CONFIG_MAP, intent, owner=b.owner)
        assert "removed" in b.get(CONFIG_MAP, "settings")["data"]

        aware = Applier(b.client, field_manager="ctrl-v2", former_managers=["ctrl-v0", "ctrl-v1"])
        await aware.apply(CONFIG_MAP, intent, owner=b.owner)
        assert b.get(CONFIG_MAP, "settings")["data"] == {"kept": "a"}
        managers = dict(b.managers(CONFIG_MAP, "settings"))
        assert managers["ctrl-v2"] == "Apply"
        assert "ctrl-v1" not in managers


def immutable_cases(b: Bench) -> list[tuple[Resource, Tree, Tree, tuple[str, ...]]]:
    """Return kind, first intent, changed intent, and the paths where the live object differs."""
    claim: Tree = {"accessModes": ["ReadWriteOnce"], "storageClassName": "none"}

    def sized(size: str) -> Tree:
        return claim | {"resources": {"requests": {"storage": size}}}

    port = {"name": "http", "port": 80}
    service = {"selector": {"app": "a"}, "ports": [port]}
    labelled = {"labels": {"rest": "applied"}}

    def changed(intent: Tree) -> Tree:
        return intent | {"metadata": intent["metadata"] | labelled}

    return [
        (
            Deployment.resource,
            deployment(b, selector="old"),
            changed(deployment(b, selector="new")),
            (),
        ),
        (
            Service.resource,
            b.intent(Service.resource, "web", spec=service),
            changed(b.intent(Service.resource, "web", spec=service | {"clusterIP": ""})),
            (),
        ),
        (
            PersistentVolumeClaim.resource,
            b.intent(PersistentVolumeClaim.resource, "web", spec=sized("2Gi")),
            changed(b.intent(PersistentVolumeClaim.resource, "web", spec=sized("1Gi"))),
            ("spec.resources.requests.storage",),
        ),
        (
            SECRET,
            b.intent(SECRET, "web", type="Opaque"),
            changed(b.intent(SECRET, "web", type="example.com/other")),
            ("type",),
        ),
        (
            Gadget.resource,
            b.intent(Gadget.resource, "web", spec={"model": "a", "size": 1}),
            changed(b.intent(Gadget.resource, "web", spec={"model": "b", "size": 1})),
            ("spec.model",),
        ),
    ]


async def test_c54_live_immutable_values_stay_and_the_rest_is_applied(bench: Connect) -> None:
    async with bench() as b:
        applier = Applier(b.client, field_manager=MANAGER)
        for kind, first, changed, drift in immutable_cases(b):
            made = await applier.apply(kind, first, owner=b.owner)
            b.writes()
            if kind is Gadget.resource:  # the rules of a custom resource are learnt, by one 422
                for _ in range(3):
                    with pytest.raises(TerminalError, match=r"spec\.model cannot be changed"):
                        await applier.apply(kind, changed, owner=b.owner)
                assert [code for _, _, code in b.writes()] == [422]
            labels = {"rest": "applied", "next": "generation"}
            following = changed | {"metadata": changed["metadata"] | {"labels": labels}}
            for _ in range(3):
                applied = await applier.apply(kind, following, owner=b.owner)
                assert applied.drift == drift, kind
            live = b.get(kind, "web")
            assert live["metadata"]["labels"] == labels
            assert live["metadata"]["uid"] == made.object.meta.uid
            assert [code for _, _, code in b.writes()] == [200], kind
            if kind is Service.resource:
                (entry,) = [e for e in live["metadata"]["managedFields"] if e["manager"] == MANAGER]
                assert not {"f:clusterIP", "f:clusterIPs"} & entry["fieldsV1"]["f:spec"].keys()
                assert live["spec"]["clusterIP"]


HTTP = {"name": "http", "port": 80}
DNS_TCP = {"name": "dns-tcp", "port": 53, "protocol": "TCP"}
DNS_UDP = {"name": "dns", "port": 53, "protocol": "UDP"}


async def test_c55_a_sole_owner_changes_the_key_of_an_entry(bench: Connect) -> None:
    async with bench() as b:
        applier = Applier(b.client, field_manager=MANAGER)
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
                intent = deployment(b, ports=[port | {"containerPort": number}])
                await applier.apply(Deployment.resource, intent, owner=b.owner)
                pod = b.get(Deployment.resource, "web")["spec"]["template"]["spec"]
                (live_port,) = pod["containers"][0]["ports"]
                assert live_port == {**port, "containerPort": number, "protocol": "TCP"}
        assert {code for _, _, code in b.writes()} == {200, 201}


async def test_c55_who_holds_the_old_entry_too_is_named_and_the_change_waits_for_that(
    bench: Connect,
) -> None:
    async with bench() as b:
        applier = Applier(b.client, field_manager=MANAGER)
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
        applier = Applier(b.client, field_manager=MANAGER)
        await applier.apply(Deployment.resource, deployment(b), owner=b.owner)
        b.wrote_as("somebody", "APPLY", deployment(b), b.path(Deployment.resource, "web"))
        moved = deployment(b, ports=[{"name": "http", "containerPort": 8001}])
        with pytest.raises(TerminalError, match=r'ports \{"containerPort":8000,.*held by somebody'):
            await applier.apply(Deployment.resource, moved, owner=b.owner)


async def test_c55_two_entries_of_one_key_are_refused_without_a_request(bench: Connect) -> None:
    async with bench() as b:
        applier = Applier(b.client, field_manager=MANAGER)
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


async def test_c56_what_the_server_normalises_is_sent_once(bench: Connect) -> None:
    async with bench() as b:
        intents = [
            (Deployment.resource, deployment(b)),
            (Service.resource, b.service(HTTP | {"targetPort": "http"})),
            (Gadget.resource, b.intent(Gadget.resource, "web", spec={"free": {"port": "80"}})),
        ]
        applier = Applier(b.client, field_manager=MANAGER)
        for kind, intent in intents:
            await applier.apply(kind, intent, owner=b.owner)
        assert [code for _, _, code in b.writes()] == [201, 201, 201]
        for kind, intent in intents:
            settled = await applier.apply(kind, intent, owner=b.owner)
            assert settled.outcome is Outcome.UNCHANGED
        assert b.writes() == []
        spec = {kind: b.get(kind, "web")["spec"] for kind, _ in intents}
        for kind, intent in intents:
            restarted = Applier(b.client, field_manager=MANAGER)
            assert (await restarted.apply(kind, intent, owner=b.owner)).outcome == Outcome.UNCHANGED
            assert b.get(kind, "web")["spec"] == spec[kind]


async def test_c57_a_child_that_is_deleted_meanwhile_is_not_made_again(bench: Connect) -> None:
    async with bench() as b:
        applier = Applier(b.client, field_manager=MANAGER)
        path = b.path(CONFIG_MAP, "settings")
        intent = b.intent(CONFIG_MAP, "settings", data={"key": "a"})
        await applier.apply(CONFIG_MAP, intent, owner=b.owner)
        b.sent()
        b.client.meanwhile = lambda: b.admin.delete(path)
        changed = b.intent(CONFIG_MAP, "settings", data={"key": "b"})
        with pytest.raises(ConflictError):
            await applier.apply(CONFIG_MAP, changed, owner=b.owner)
        items = b.admin.get(CONFIG_MAP.collection_path(b.namespace))["items"]
        assert "settings" not in {item["metadata"]["name"] for item in items}
        assert b.writes() == [("patch", "configmaps", 409)]
        # What is still wanted is made by the next run, which sees that there is none.
        assert (await applier.apply(CONFIG_MAP, changed, owner=b.owner)).outcome == Outcome.CREATED


async def test_c57_a_status_does_not_bring_back_its_deleted_object(bench: Connect) -> None:
    async with bench() as b:
        writer = StatusWriter(b.client, field_manager=MANAGER)
        b.client.meanwhile = lambda: b.admin.delete(b.path(Gadget.resource, "owner"))
        with pytest.raises(ConflictError):
            await writer.write(Gadget.resource, b.owner.metadata, {"phase": "Ready"})
        assert b.admin.get(Gadget.resource.collection_path(b.namespace))["items"] == []
        assert len(b.writes()) == 1
        with pytest.raises(ConflictError, match="is gone or was made anew"):
            await writer.write(Gadget.resource, b.owner.metadata, {"phase": "Ready"})
        assert b.writes() == []


async def test_c58_every_write_names_its_content_type_and_numbers_stay_exact(
    bench: Connect,
) -> None:
    async with bench() as b:
        key = NamespacedName(b.namespace, "child")
        free: Tree = {
            "large": EXACT,
            "negative": -EXACT,
            "whole": 1.0,
            "half": 0.5,
            "list": [EXACT],
        }

        def numbers(stored: StoredObject) -> Tree:
            found: Tree = decode_tree(stored.body)["spec"]["free"]
            return found

        def check(found: Tree) -> None:
            for name, value in (("large", EXACT), ("negative", -EXACT)):
                assert found[name] == value
                assert type(found[name]) is int
            assert type(found["list"][0]) is int
            assert found["list"] == [EXACT]
            assert (found["whole"], found["half"]) == (1, 0.5)

        intent = b.intent(Gadget.resource, "child", spec={"free": free})
        check(numbers(await b.client.create(Gadget.resource, intent, field_manager=MANAGER)))
        check(numbers(await b.client.apply(Gadget.resource, intent, field_manager=MANAGER)))
        merge: Tree = {"spec": {"free": {"added": EXACT}}}
        merged = await b.client.patch(
            Gadget.resource, key, merge, content_type=Patch.MERGE, field_manager=MANAGER
        )
        check(numbers(merged))
        operations = [{"op": "add", "path": "/spec/free/second", "value": EXACT}]
        patched = await b.client.patch(
            Gadget.resource, key, operations, content_type=Patch.JSON, field_manager=MANAGER
        )
        check(numbers(patched))
        assert (numbers(patched)["added"], numbers(patched)["second"]) == (EXACT, EXACT)
        # A model is written as its wire form; unknown to it or not, the rest stays as it is.
        model = GadgetSpec(size=EXACT)
        patch = {"spec": model.model_dump(by_alias=True, exclude_unset=True)}
        await b.client.patch(
            Gadget.resource, key, patch, content_type=Patch.MERGE, field_manager=MANAGER
        )
        gadget = await b.client.get(Gadget, key)
        assert gadget is not None
        assert gadget.spec.size == EXACT
        check(dict(gadget.spec.free))
        check(b.get(Gadget.resource, "child")["spec"]["free"])
        b.writes()
        for body, content_type in ((merge, Patch.JSON), (operations, Patch.MERGE)):
            with pytest.raises(ConfigurationError, match="a merge patch is a dict"):
                await b.client.patch(
                    Gadget.resource, key, body, content_type=content_type, field_manager=MANAGER
                )
        assert b.sent() == []
