# SPDX-License-Identifier: Apache-2.0
"""Values that cannot be changed, that the server normalises, and numbers that stay exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flexinfer.apply import Applier, Outcome
from flexinfer.client.protocol import Patch
from flexinfer.errors import ConfigurationError, TerminalError
from flexinfer.kinds.deployment import Deployment
from flexinfer.kinds.persistentvolumeclaim import PersistentVolumeClaim
from flexinfer.kinds.service import Service
from flexinfer.meta.envelope import decode_tree
from flexinfer.meta.resource import GroupVersionKind, NamespacedName, Resource

if TYPE_CHECKING:
    from flexinfer.meta.envelope import StoredObject, Tree
    from test.faults.apply.conftest import Bench, Connect

EXACT = 2**53 + 1  # the first integer that a double cannot hold
SECRET = Resource(GroupVersionKind("", "v1", "Secret"), "secrets")
HTTP = {"name": "http", "port": 80}


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
            b.deployment(selector="old"),
            changed(b.deployment(selector="new")),
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
            b.owner.resource,
            b.intent(b.owner.resource, "web", spec={"model": "a", "size": 1}),
            changed(b.intent(b.owner.resource, "web", spec={"model": "b", "size": 1})),
            ("spec.model",),
        ),
    ]


async def test_c54_live_immutable_values_stay_and_the_rest_is_applied(bench: Connect) -> None:
    async with bench() as b:
        applier = Applier(b.client, field_manager=b.manager)
        for kind, first, changed, drift in immutable_cases(b):
            made = await applier.apply(kind, first, owner=b.owner)
            b.writes()
            if kind is b.owner.resource:  # the rules of a custom resource are learnt, by one 422
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
                (entry,) = [
                    e for e in live["metadata"]["managedFields"] if e["manager"] == b.manager
                ]
                assert not {"f:clusterIP", "f:clusterIPs"} & entry["fieldsV1"]["f:spec"].keys()
                assert live["spec"]["clusterIP"]


async def test_c56_what_the_server_normalises_is_sent_once(bench: Connect) -> None:
    async with bench() as b:
        intents = [
            (Deployment.resource, b.deployment()),
            (Service.resource, b.service(HTTP | {"targetPort": "http"})),
            (b.owner.resource, b.intent(b.owner.resource, "web", spec={"free": {"port": "80"}})),
        ]
        applier = Applier(b.client, field_manager=b.manager)
        for kind, intent in intents:
            await applier.apply(kind, intent, owner=b.owner)
        assert [code for _, _, code in b.writes()] == [201, 201, 201]
        for kind, intent in intents:
            settled = await applier.apply(kind, intent, owner=b.owner)
            assert settled.outcome is Outcome.UNCHANGED
        assert b.writes() == []
        spec = {kind: b.get(kind, "web")["spec"] for kind, _ in intents}
        for kind, intent in intents:
            restarted = Applier(b.client, field_manager=b.manager)
            assert (await restarted.apply(kind, intent, owner=b.owner)).outcome == Outcome.UNCHANGED
            assert b.get(kind, "web")["spec"] == spec[kind]


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

        intent = b.intent(b.owner.resource, "child", spec={"free": free})
        check(numbers(await b.client.create(b.owner.resource, intent, field_manager=b.manager)))
        check(numbers(await b.client.apply(b.owner.resource, intent, field_manager=b.manager)))
        merge: Tree = {"spec": {"free": {"added": EXACT}}}
        merged = await b.client.patch(
            b.owner.resource, key, merge, content_type=Patch.MERGE, field_manager=b.manager
        )
        check(numbers(merged))
        operations = [{"op": "add", "path": "/spec/free/second", "value": EXACT}]
        patched = await b.client.patch(
            b.owner.resource, key, operations, content_type=Patch.JSON, field_manager=b.manager
        )
        check(numbers(patched))
        assert (numbers(patched)["added"], numbers(patched)["second"]) == (EXACT, EXACT)
        # A model is written as its wire form; unknown to it or not, the rest stays as it is.
        model = type(b.owner.spec)(size=EXACT)
        patch = {"spec": model.model_dump(by_alias=True, exclude_unset=True)}
        await b.client.patch(
            b.owner.resource, key, patch, content_type=Patch.MERGE, field_manager=b.manager
        )
        gadget = await b.client.get(type(b.owner), key)
        assert gadget is not None
        assert gadget.spec.size == EXACT
        check(dict(gadget.spec.free))
        check(b.get(b.owner.resource, "child")["spec"]["free"])
        b.writes()
        for body, content_type in ((merge, Patch.JSON), (operations, Patch.MERGE)):
            with pytest.raises(ConfigurationError, match="a merge patch is a dict"):
                await b.client.patch(
                    b.owner.resource, key, body, content_type=content_type, field_manager=b.manager
                )
        assert b.sent() == []
