# SPDX-License-Identifier: Apache-2.0
"""What is not changed is not sent: to the first apply, after a restart, beside others' fields."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from flexinfer.apply import Outcome
from flexinfer.kinds.deployment import Deployment
from flexinfer.kinds.service import Service

if TYPE_CHECKING:
    from flexinfer.envtest.eventually import Eventually
    from flexinfer.meta.envelope import Tree
    from test.integration.apply.conftest import Connect


async def test_an_unchanged_child_is_applied_once_however_the_server_spells_it(
    bench: Connect, eventually: Eventually
) -> None:
    async with bench() as b:
        intent = b.deployment()
        before = copy.deepcopy(intent)
        first = await b.applier.apply(Deployment.resource, intent, owner=b.owner)
        assert first.outcome is Outcome.CREATED
        assert intent == before
        child = b.get(Deployment.resource, "web")
        assert child["metadata"]["ownerReferences"] == [
            {
                "apiVersion": "apply.example.com/v1",
                "kind": "Widget",
                "name": "owner",
                "uid": b.owner.metadata.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]

        def is_observed() -> Tree:
            found = b.get(Deployment.resource, "web")
            assert found["status"]["conditions"]
            return found

        await eventually(is_observed)
        assert b.writes() == [("patch", "deployments", 201)]
        for _ in range(3):
            again = await b.applier.apply(Deployment.resource, b.deployment(), owner=b.owner)
            assert (again.outcome, again.drift) == (Outcome.UNCHANGED, ())
        assert b.writes() == []
        assert b.get(Deployment.resource, "web")["metadata"]["generation"] == 1


async def test_another_intent_for_the_same_object_is_one_update(bench: Connect) -> None:
    async with bench() as b:
        await b.applier.apply(Deployment.resource, b.deployment(), owner=b.owner)
        changed = b.deployment(args=["--more"])
        updated = await b.applier.apply(Deployment.resource, changed, owner=b.owner)
        assert updated.outcome is Outcome.UPDATED
        assert updated.object.meta.generation == 2
        reworded = copy.deepcopy(changed)
        reworded["spec"]["template"]["spec"]["hostname"] = None
        again = await b.applier.apply(Deployment.resource, reworded, owner=b.owner)
        assert again.outcome is Outcome.UNCHANGED
        assert len(b.writes()) == 2


async def test_a_foreign_change_costs_one_apply_where_it_is_ours_else_none(
    bench: Connect,
) -> None:
    async with bench() as b:
        intent = b.deployment()

        async def applied() -> Outcome:
            return (await b.applier.apply(Deployment.resource, intent, owner=b.owner)).outcome

        await applied()
        b.writes()
        path = b.path(Deployment.resource, "web")
        b.admin.merge(path, {"metadata": {"annotations": {"theirs": "1"}}})
        b.admin.merge(path, {"spec": {"revisionHistoryLimit": 3}})
        assert [await applied(), await applied()] == [Outcome.UNCHANGED] * 2
        assert b.writes() == []

        b.admin.merge(path, {"spec": {"replicas": 5}})
        assert [await applied(), await applied()] == [Outcome.UPDATED, Outcome.UNCHANGED]
        b.admin.merge(path, {"spec": {"template": {"spec": {"nodeSelector": {"added": "x"}}}}})
        assert [await applied(), await applied()] == [Outcome.UPDATED, Outcome.UNCHANGED]
        assert b.writes() == [("patch", "deployments", 200)] * 2
        live = b.get(Deployment.resource, "web")
        assert live["spec"]["replicas"] == 1
        assert live["spec"]["template"]["spec"]["nodeSelector"] == {"none": "such"}
        assert live["spec"]["revisionHistoryLimit"] == 3


async def test_after_a_restart_one_apply_a_child_changes_nothing(bench: Connect) -> None:
    async with bench() as b:
        intent = b.service()
        await b.applier.apply(Service.resource, intent, owner=b.owner)
        before = b.get(Service.resource, "web")
        restarted = b.new_applier()
        b.writes()
        for _ in range(2):
            again = await restarted.apply(Service.resource, intent, owner=b.owner)
            assert again.outcome is Outcome.UNCHANGED
        assert b.writes() == [("patch", "services", 200)]
        assert b.get(Service.resource, "web") == before


async def test_a_forgotten_owner_is_a_restart_for_its_children(bench: Connect) -> None:
    async with bench() as b:
        intent = b.service()
        await b.applier.apply(Service.resource, intent, owner=b.owner)
        b.applier.forget(b.owner.resource, b.owner.key)
        b.writes()
        await b.applier.apply(Service.resource, intent, owner=b.owner)
        assert b.writes() == [("patch", "services", 200)]


async def test_large_integers_and_whole_floats_survive_and_settle(bench: Connect) -> None:
    async with bench() as b:
        spec = {"large": 2**53 + 1, "whole": 1.0, "text": "80", "nothing": {}}
        intent = b.widget(**spec)
        await b.applier.apply(b.owner.resource, intent, owner=b.owner)
        assert b.get(b.owner.resource, "child")["spec"]["large"] == 2**53 + 1
        again = await b.applier.apply(b.owner.resource, intent, owner=b.owner)
        assert again.outcome is Outcome.UNCHANGED
