# SPDX-License-Identifier: Apache-2.0
"""What cannot be changed is preserved, and told as drift; what is refused is told once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from flexinfer.apply import Applier, Outcome
from flexinfer.errors import InvalidError, TerminalError
from flexinfer.kinds.deployment import Deployment
from flexinfer.kinds.immutable import ImmutableField
from flexinfer.kinds.persistentvolumeclaim import PersistentVolumeClaim
from flexinfer.kinds.service import Service
from flexinfer.kinds.structure import Merge

if TYPE_CHECKING:
    from flexinfer.meta.envelope import Tree
    from test.integration.apply.conftest import Connect


async def test_a_live_selector_is_kept_and_the_pods_go_on_matching(bench: Connect) -> None:
    async with bench() as b:
        await b.applier.apply(Deployment.resource, b.deployment(selector="old"), owner=b.owner)
        for applier in (b.applier, b.new_applier()):
            changed = await applier.apply(
                Deployment.resource, b.deployment(selector="new"), owner=b.owner
            )
            assert changed.drift == ()
        live = Deployment.decode(changed.object)
        assert live.spec.selector.match_labels == {"app": "old"}
        assert live.spec.template.metadata.labels == {"app": "old", "backend": "vllm"}
        assert live.metadata.labels == {"app": "new"}
        assert {code for _, _, code in b.writes()} <= {200, 201}


async def test_a_service_keeps_the_address_that_it_was_given(bench: Connect) -> None:
    async with bench() as b:
        first = await b.applier.apply(Service.resource, b.service(clusterIP=""), owner=b.owner)
        given = Service.decode(first.object).spec
        assert given.cluster_ip
        moved = b.service(port=81, clusterIP="", clusterIPs=[])
        second = await b.applier.apply(Service.resource, moved, owner=b.owner)
        assert (second.outcome, second.drift) == (Outcome.UPDATED, ())
        asked = b.service(port=81, clusterIP="10.255.255.254")
        third = await b.applier.apply(Service.resource, asked, owner=b.owner)
        assert (third.outcome, third.drift) == (Outcome.UNCHANGED, ("spec.clusterIP",))
        spec = Service.decode(third.object).spec
        assert (spec.cluster_ip, spec.cluster_ips) == (given.cluster_ip, given.cluster_ips)
        assert [port.port for port in spec.ports] == [81]
        (entry,) = [
            entry
            for entry in b.get(Service.resource, "web")["metadata"]["managedFields"]
            if entry["manager"] == b.manager
        ]
        assert entry["operation"] == "Apply"
        assert not {"f:clusterIP", "f:clusterIPs", "f:type"} & entry["fieldsV1"]["f:spec"].keys()


async def test_a_claim_that_should_shrink_or_change_its_class_reports_drift(
    bench: Connect,
) -> None:
    async with bench() as b:

        def claim(size: str, storage_class: str, label: str) -> Tree:
            return {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {
                    "name": "cache",
                    "namespace": b.namespace,
                    "labels": {"label": label},
                },
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": storage_class,
                    "resources": {"requests": {"storage": size}},
                },
            }

        resource = PersistentVolumeClaim.resource
        await b.applier.apply(resource, claim("2Gi", "slow", "a"), owner=b.owner)
        changed = await b.applier.apply(resource, claim("1Gi", "fast", "b"), owner=b.owner)
        assert changed.outcome is Outcome.UPDATED
        assert changed.drift == ("spec.storageClassName", "spec.resources.requests.storage")
        again = await b.applier.apply(resource, claim("1Gi", "fast", "b"), owner=b.owner)
        assert (again.outcome, again.drift) == (Outcome.UNCHANGED, changed.drift)
        live = PersistentVolumeClaim.decode(again.object)
        assert live.spec.resources.requests == {"storage": "2Gi"}
        assert live.metadata.labels == {"label": "b"}
        assert [code for _, _, code in b.writes()] == [201, 200]


async def test_a_refused_change_is_sent_once_and_preserved_from_the_next_intent_on(
    bench: Connect,
) -> None:
    async with bench() as b:
        resource = b.owner.resource
        await b.applier.apply(resource, b.widget(model="a", size=1), owner=b.owner)
        b.writes()
        refused = b.widget(model="b", size=1)
        for _ in range(3):
            with pytest.raises(TerminalError, match=r"child: spec\.model cannot be changed; take"):
                await b.applier.apply(resource, refused, owner=b.owner)
            b.admin.merge(b.path(resource, "child"), {"metadata": {"labels": {"theirs": "x"}}})
        assert b.writes() == [("patch", "widgets", 422)]
        for size in (2, 3):
            rest = await b.applier.apply(resource, b.widget(model="b", size=size), owner=b.owner)
            assert (rest.outcome, rest.drift) == (Outcome.UPDATED, ("spec.model",))
        assert b.get(resource, "child")["spec"] == {"model": "a", "size": 3}
        back = await b.applier.apply(resource, b.widget(model="a", size=3), owner=b.owner)
        assert (back.outcome, back.drift) == (Outcome.UNCHANGED, ())
        assert [code for _, _, code in b.writes()] == [200, 200]


async def test_rules_of_the_caller_spare_the_refusal(bench: Connect) -> None:
    async with bench() as b:
        applier = Applier(
            b.client,
            field_manager=b.manager,
            immutable={b.owner.resource: [ImmutableField(path="spec.model")]},
            structures={b.owner.resource: {"spec.nodes": Merge.SET}},
        )
        for model in ("a", "b"):
            applied = await applier.apply(
                b.owner.resource, b.widget(model=model, size=1), owner=b.owner
            )
        assert (applied.outcome, applied.drift) == (Outcome.UNCHANGED, ("spec.model",))
        assert b.writes() == [("patch", "widgets", 201)]


async def test_what_is_wrong_for_another_reason_is_raised_as_the_server_said_it(
    bench: Connect,
) -> None:
    async with bench() as b:
        wrong = b.deployment(image="")
        with pytest.raises(InvalidError):
            await b.applier.apply(Deployment.resource, wrong, owner=b.owner)
        await b.applier.apply(Deployment.resource, b.deployment(), owner=b.owner)
        with pytest.raises(InvalidError) as caught:
            await b.applier.apply(Deployment.resource, wrong, owner=b.owner)
        assert "containers[0].image" in caught.value.causes[0].field
