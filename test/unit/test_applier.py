# SPDX-License-Identifier: Apache-2.0
"""The decisions of the Applier and the StatusWriter; what they send is shown on a real server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytest

from flexinfer.apply import Applier, LiveClient, StatusWriter
from flexinfer.apply.ownership import ensure_ours, with_owner
from flexinfer.apply.plan import Child, Kind, answer_to, is_answered, plan_for
from flexinfer.apply.request import identify, with_uid
from flexinfer.errors import ConfigurationError, NotOursError
from flexinfer.kinds.deployment import Deployment
from flexinfer.kinds.immutable import ImmutableField
from flexinfer.kinds.namespace import Namespace
from flexinfer.kinds.node import Node
from flexinfer.kinds.structure import ListMap
from flexinfer.meta.envelope import ObjectMeta, OwnerReference, StoredObject, encode, meta_from
from flexinfer.meta.object import Object
from flexinfer.meta.resource import GroupVersionKind, NamespacedName, Resource

if TYPE_CHECKING:
    from flexinfer.meta.envelope import Tree

NO_CLIENT = cast("LiveClient", None)
KEY = NamespacedName("default", "web")


class Thing(Object):
    resource: ClassVar[Resource] = Resource(
        GroupVersionKind("example.com", "v1", "Thing"), "things"
    )


THING = Thing.resource
OWNER = Thing(metadata=ObjectMeta(name="m", namespace="default", uid="owner-uid"))
OURS = OwnerReference(
    api_version="example.com/v1", kind="Thing", name="m", uid="owner-uid", controller=True
)


def intent(**spec: object) -> Tree:
    return {
        "apiVersion": "example.com/v1",
        "kind": "Thing",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": spec,
    }


def stored(*owners: OwnerReference, version: str = "1", **spec: object) -> StoredObject:
    meta = ObjectMeta(
        name="web",
        namespace="default",
        uid="child-uid",
        resource_version=version,
        owner_references=owners,
    )
    return StoredObject(meta, encode({"spec": spec}))


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_a_recreate_timeout_that_cannot_work_is_refused(timeout: float) -> None:
    with pytest.raises(ConfigurationError, match=r"recreate_timeout is .*; give a positive number"):
        Applier(NO_CLIENT, field_manager="m", recreate_timeout=timeout)


@pytest.mark.parametrize("name", ["", "x" * 129, "a\nb"])
def test_a_field_manager_that_the_server_would_not_take_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"field_manager .* one constant name"):
        Applier(NO_CLIENT, field_manager=name)
    with pytest.raises(ConfigurationError, match=r"field_manager .* one constant name"):
        StatusWriter(NO_CLIENT, field_manager=name)


@pytest.mark.parametrize(
    ("resource", "change", "message"),
    [
        (THING, {"kind": "Other"}, "write apiVersion example.com/v1 and kind Thing"),
        (THING, {"metadata": None}, "needs metadata.name and metadata.namespace"),
        (THING, {"metadata": {"name": "web"}}, "needs metadata.name and metadata.namespace"),
        (
            THING,
            {"metadata": {"name": "web", "namespace": "x", "resourceVersion": "1"}},
            "metadata.resourceVersion is the server's; leave it out",
        ),
        (
            Namespace.resource,
            {"apiVersion": "v1", "kind": "Namespace"},
            "needs metadata.name and no metadata.namespace",
        ),
    ],
)
def test_an_intent_for_no_object_is_refused(resource: Resource, change: Tree, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        identify(resource, intent() | change)


def test_a_uid_is_added_to_a_copy() -> None:
    body = intent()
    assert with_uid(body, "u")["metadata"] == {"name": "web", "namespace": "default", "uid": "u"}
    assert body == intent()


def test_the_owner_becomes_the_controller_beside_other_owners() -> None:
    body = intent()
    body["metadata"]["ownerReferences"] = [{"uid": "other"}]
    owned = with_owner(body, OWNER, KEY)
    assert owned["metadata"]["ownerReferences"] == [
        {"uid": "other"},
        {
            "apiVersion": "example.com/v1",
            "kind": "Thing",
            "name": "m",
            "uid": "owner-uid",
            "controller": True,
            "blockOwnerDeletion": True,
        },
    ]
    assert body["metadata"]["ownerReferences"] == [{"uid": "other"}]


@pytest.mark.parametrize("namespace", ["elsewhere", ""])
def test_an_owner_in_another_namespace_is_refused_before_any_request(namespace: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"cannot own .*web: .*labels .* finalizer instead"
    ):
        with_owner(intent(), OWNER, NamespacedName(namespace, "web"))


def test_a_cluster_scoped_owner_may_own_anything_but_needs_a_uid() -> None:
    node = Node(metadata=ObjectMeta(name="n", uid="node-uid"))
    assert with_owner(intent(), node, KEY)["metadata"]["ownerReferences"][0]["apiVersion"] == "v1"
    unread = Thing(metadata=ObjectMeta(name="m", namespace="default"))
    with pytest.raises(ConfigurationError, match="has no UID: pass the owner as it was read"):
        with_owner(intent(), unread, KEY)


@pytest.mark.parametrize(
    ("owners", "owner", "is_known", "message"),
    [
        ((OURS,), OWNER, False, None),
        ((), OWNER, True, None),
        ((), None, False, None),
        (
            (),
            OWNER,
            False,
            (
                "Thing default/web is left untouched: it exists already and has no controller; "
                "delete that Thing, or choose another name for its would-be owner"
            ),
        ),
        (
            (OwnerReference(api_version="v1", kind="Node", name="n", uid="x", controller=True),),
            OWNER,
            True,
            "it is controlled by Node n",
        ),
        ((OURS,), None, True, "it is controlled by Thing m"),
        (
            (
                OwnerReference(
                    api_version="example.com/v2",
                    kind="Thing",
                    name="m",
                    uid="before",
                    controller=True,
                ),
            ),
            OWNER,
            True,
            "Thing default/web is being deleted: an earlier Thing m left it behind",
        ),
    ],
)
def test_an_object_is_ours_by_its_controllers_uid(
    owners: tuple[OwnerReference, ...],
    owner: Object | None,
    is_known: bool,  # noqa: FBT001 - a parameter of the table
    message: str | None,
) -> None:
    live = stored(*owners)
    if message is None:
        ensure_ours(live, THING, owner, is_known=is_known)
        return
    with pytest.raises(NotOursError) as caught:
        ensure_ours(live, THING, owner, is_known=is_known)
    assert message in str(caught.value)


def test_a_child_is_forgotten_with_its_owner_or_by_its_own_name() -> None:
    owned = Child(Kind.of(THING), intent(), OWNER)
    assert owned.owner_id == (THING, NamespacedName("default", "m"))
    alone = Child(Kind.of(THING), intent(), None)
    assert alone.owner_id == alone.id == (THING, KEY)
    assert str(alone) == "Thing default/web"


def test_callers_may_add_rules_and_structure() -> None:
    rule = ImmutableField(path="spec.model")
    kind = Kind.of(THING, rules=[rule], structure={"spec.parts": ListMap(("id",))})
    child = Child(kind, intent(parts=[{"id": 1, "size": 2}], model="b"), None)
    live = stored(parts=[{"id": 2}, {"id": 1, "size": 3}], model="a")
    plan = plan_for(child, live, None)
    assert plan.body["spec"]["model"] == "a"
    assert plan.drift == ("spec.model",)
    more = stored(parts=[{"id": 3}, {"id": 1, "size": 3}], model="a")
    assert is_answered(child, plan, more, answer_to(child, plan, live))


def test_the_same_plan_after_an_answer_means_that_nothing_is_to_be_sent() -> None:
    child = Child(Kind.of(THING), intent(cpu="1000m", env=[]), None)
    normalised = stored(cpu="1", version="2")
    answer = answer_to(child, plan_for(child, None, None), normalised)
    kept = stored(cpu="1", theirs=True, version="3")
    assert is_answered(child, plan_for(child, kept, answer), kept, answer)
    changed = stored(cpu="2", version="3")
    assert not is_answered(child, plan_for(child, changed, answer), changed, answer)
    assert answer.said == child.said
    assert answer.live.is_of(normalised.meta)
    assert not answer.live.is_of(stored(version="3").meta)
    assert not answer.live.is_of(meta_from({"uid": "another", "resourceVersion": "2"}))


def test_a_refusal_counts_for_its_own_intent_and_teaches_the_next_one() -> None:
    live = stored(model="a", replicas=1)

    def planned(last: Any, **spec: object) -> Any:
        child = Child(Kind.of(THING), intent(**spec), None)
        return child, plan_for(child, live, last)

    child, plan = planned(None, model="b", replicas=1)
    refused = answer_to(child, plan, live, refused=("spec.model",))
    same, again = planned(refused, model="b", replicas=1)
    assert is_answered(same, again, live, refused)
    other, learned = planned(refused, model="b", replicas=2)
    assert learned.body["spec"] == {"model": "a", "replicas": 2}
    assert learned.drift == ("spec.model",)
    done = answer_to(other, learned, stored(model="a", replicas=2, version="2"))
    _, later = planned(done, model="b", replicas=2)
    assert later.sent == done.sent


def test_kinds_that_are_recreated_are_told_from_others() -> None:
    assert Kind.of(Resource(GroupVersionKind("batch", "v1", "Job"), "jobs")).is_recreated
    assert not Kind.of(Deployment.resource).is_recreated


def test_forgetting_what_was_never_known_is_fine() -> None:
    Applier(NO_CLIENT, field_manager="m").forget(THING, KEY)
    StatusWriter(NO_CLIENT, field_manager="m").forget(THING, KEY)
