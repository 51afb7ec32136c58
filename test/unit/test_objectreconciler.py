# SPDX-License-Identifier: Apache-2.0
"""What an ObjectReconciler does around the author's code, against an API server in memory."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

from flexinfer.apply import Applied, Outcome
from flexinfer.conditions import find
from flexinfer.crd.conditioned import ConditionedObject, ConditionedStatus
from flexinfer.crd.generate import crd_for
from flexinfer.crd.markers import PrintColumn, resource
from flexinfer.errors import (
    ConfigurationError,
    ConflictError,
    FlexInferError,
    ForbiddenError,
    InvalidError,
    NotOursError,
    NotWatchedError,
    ServerError,
    TerminalError,
)
from flexinfer.kinds.configmap import ConfigMap
from flexinfer.meta.condition import Condition, ConditionStatus
from flexinfer.meta.envelope import decode_tree, encode, meta_from, stored_from
from flexinfer.meta.object import Model
from flexinfer.meta.resource import NamespacedName
from flexinfer.objectreconciler import ObjectReconciler, Verdict, rules_for
from flexinfer.reconcile import Result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flexinfer.apply import Applier
    from flexinfer.manager import Manager
    from flexinfer.meta.envelope import StoredObject, Tree

KEY = NamespacedName("default", "w")
FINALIZER = "example.com/clean"
BEGIN = datetime(2026, 1, 31, 12, tzinfo=UTC)


class WidgetSpec(Model):
    size: int = 0
    """How large."""


class WidgetStatus(ConditionedStatus):
    made: int | None = None
    """How many were made."""


@resource(group="example.com", version="v1", plural="widgets")
class Widget(ConditionedObject):
    """Be a widget."""

    spec: WidgetSpec = WidgetSpec()
    """What is wanted."""

    status: WidgetStatus = WidgetStatus()
    """What is there."""


class Server:
    """Hold one object, take finalizers and statuses, and count the writes."""

    def __init__(self, tree: Tree | None) -> None:
        self.tree = tree
        self.writes: list[str] = []
        self.version = 1

    def recorder(self, _name: str) -> object:
        return self

    @property
    def client(self) -> Server:
        return self

    def stored(self) -> StoredObject | None:
        return None if self.tree is None else stored_from(self.tree)

    async def get(self, kind: type[Widget], key: NamespacedName) -> Widget | None:
        assert key == KEY
        found = self.stored()
        return None if found is None else kind.decode(found)

    async def read(self, _resource: object, _key: NamespacedName) -> StoredObject | None:
        return self.stored()

    async def patch(self, _resource: object, _key: object, patch: Any, **_: object) -> StoredObject:
        assert self.tree is not None
        self.writes.append("finalizer")
        added = any(step["op"] == "add" for step in patch)
        return self._set(metadata=self.tree["metadata"] | {"finalizers": [FINALIZER] * added})

    async def apply(self, _resource: object, intent: Tree, **_: object) -> StoredObject:
        self.writes.append("status")
        return self._set(status=decode_tree(encode(intent["status"])))

    def _set(self, **parts: object) -> StoredObject:
        assert self.tree is not None
        self.version += 1
        self.tree = self.tree | parts
        self.tree["metadata"] = self.tree["metadata"] | {"resourceVersion": str(self.version)}
        return stored_from(self.tree)

    @property
    def ready(self) -> Condition:
        assert self.tree is not None
        conditions = [Condition.model_validate(c) for c in self.tree["status"]["conditions"]]
        found = find(conditions, "Ready")
        assert found is not None
        return found


def tree(**parts: Any) -> Tree:
    metadata = {"name": "w", "namespace": "default", "uid": "u", "generation": 3}
    metadata |= {"resourceVersion": "1"} | parts.pop("metadata", {})
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": metadata} | parts


DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [FINALIZER]}


class Subject(ObjectReconciler[Widget]):
    """Answer what a test says, and note what was called."""

    def __init__(
        self,
        server: Server,
        answer: Verdict | Exception | None = None,
        *,
        finalizer: str = FINALIZER,
        cleaned: Sequence[bool | Exception] = (),
    ) -> None:
        self.time = BEGIN
        super().__init__(
            cast("Manager", server), Widget, finalizer=finalizer, now=lambda: self.time
        )
        self.answer = answer or Verdict.ready("Done")
        self.cleaned = list(cleaned)
        self.called: list[str] = []

    async def reconcile_object(self, found: Widget) -> Verdict:
        self.called.append(f"reconcile {found.spec.size}")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def clean_up(self, found: Widget) -> bool:
        self.called.append("clean up")
        answer = self.cleaned.pop(0) if self.cleaned else await super().clean_up(found)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_a_live_object_gets_its_finalizer_then_the_authors_code_then_ready() -> None:
    server = Server(tree(spec={"size": 2}))
    subject = Subject(server, Verdict.ready("Done", "2 made"))
    assert await subject.reconcile(KEY) == Result()
    assert subject.called == ["reconcile 2"]
    assert server.writes == ["finalizer", "status"]
    ready = server.ready
    assert (ready.status, ready.reason, ready.message) == (ConditionStatus.TRUE, "Done", "2 made")
    assert (ready.observed_generation, ready.last_transition_time) == (3, BEGIN)


async def test_a_status_that_says_nothing_new_is_not_written_however_late_it_is() -> None:
    server = Server(tree())
    subject = Subject(server)
    await subject.reconcile(KEY)
    subject.time += timedelta(hours=1)
    await subject.reconcile(KEY)
    assert server.writes == ["finalizer", "status"]
    subject.answer = Verdict.not_ready("Broken", "mend it")
    await subject.reconcile(KEY)
    assert server.ready.last_transition_time == subject.time


async def test_the_rest_of_the_status_is_the_authors() -> None:
    other = Condition(
        type="Made", status=ConditionStatus.TRUE, last_transition_time=BEGIN, reason="R", message=""
    )
    server = Server(tree())
    subject = Subject(server, Verdict.ready("Done"), finalizer="")
    subject.answer = Verdict(
        is_ready=None, reason="Waiting", status=WidgetStatus(made=2, conditions=(other,))
    )
    await subject.reconcile(KEY)
    assert server.tree is not None
    assert server.tree["status"]["made"] == 2
    assert [c["type"] for c in server.tree["status"]["conditions"]] == ["Ready", "Made"]
    assert server.ready.status is ConditionStatus.UNKNOWN
    subject.answer = Verdict(is_ready=None, reason="Waiting")
    await subject.reconcile(KEY)
    assert server.writes == ["status"], "without a status the rest stays as it is"


async def test_a_verdict_may_ask_to_look_again() -> None:
    server = Server(tree())
    again = Verdict(is_ready=True, reason="Done", requeue_after=30.0)
    assert await Subject(server, again).reconcile(KEY) == Result(requeue_after=30.0)


async def test_a_clean_up_is_repeated_until_it_is_done_and_nothing_is_written_then() -> None:
    server = Server(tree(metadata=DELETED))
    subject = Subject(server, cleaned=[False, True])
    assert (await subject.reconcile(KEY)).requeue_after == 10.0
    assert server.writes == []
    assert await subject.reconcile(KEY) == Result()
    assert server.writes == ["finalizer"]
    assert subject.called == ["clean up", "clean up"]
    await subject.reconcile(KEY)
    assert subject.called == ["clean up", "clean up"], "somebody else holds the object up by now"


async def test_without_a_finalizer_a_deletion_is_left_to_the_garbage_collector() -> None:
    server = Server(tree(metadata=DELETED))
    subject = Subject(server, finalizer="")
    assert await subject.reconcile(KEY) == Result()
    assert (subject.called, server.writes) == ([], [])


async def test_an_object_that_is_gone_is_a_success_and_forgotten() -> None:
    server = Server(tree())
    subject = Subject(server)
    await subject.reconcile(KEY)
    server.tree = None
    assert await subject.reconcile(KEY) == Result()
    assert not subject._status._memory


async def test_an_applier_of_the_authors_own_is_the_one_that_is_used() -> None:
    asked: list[str] = []

    class Own:
        async def apply(self, _resource: object, intent: Tree, **_: object) -> Applied:
            asked.append(intent["metadata"]["name"])
            return Applied(stored_from(intent), Outcome.UNCHANGED, ("spec.x",))

        def forget(self, _resource: object, key: NamespacedName) -> None:
            asked.append(f"forget {key}")

    class Empty(Server):
        async def list(self, *_: object, **__: object) -> Sequence[Widget]:
            return ()

    server = Empty(tree())
    subject = Subject(server)
    subject.applier = cast("Applier", Own())
    owner = Widget.model_validate(server.tree)
    children = await subject.apply_children(
        ConfigMap, [{"metadata": {"name": "c"}}], owner=owner, label="example.com/of"
    )
    assert children.drift == {("", "c"): ("spec.x",)}
    server.tree = None
    await subject.reconcile(KEY)
    assert asked == ["c", f"forget {KEY}"]


@pytest.mark.parametrize(
    ("error", "reason", "raised"),
    [
        (ConfigurationError("no such selector"), "InvalidSpec", TerminalError),
        (NotWatchedError("nothing keeps Widget"), "NotWatched", TerminalError),
        (TerminalError("immutable"), "CannotProceed", TerminalError),
        (NotOursError("theirs"), "NotOurs", NotOursError),
        (InvalidError("PATCH: refused", said="refused"), "Refused", InvalidError),
        (ForbiddenError("quota"), "Forbidden", ForbiddenError),
    ],
)
async def test_what_a_person_has_to_mend_is_said_in_ready_and_raised(
    error: FlexInferError, reason: str, raised: type[Exception]
) -> None:
    server = Server(tree(status={"made": 1}))
    with pytest.raises(raised):
        await Subject(server, error).reconcile(KEY)
    text = getattr(error, "said", "") or str(error)
    assert (server.ready.reason, server.ready.message) == (reason, text)
    assert server.ready.status is ConditionStatus.FALSE
    assert server.tree is not None
    assert server.tree["status"]["made"] == 1


async def test_a_failed_clean_up_is_said_too() -> None:
    server = Server(tree(metadata=DELETED))
    with pytest.raises(NotOursError):
        await Subject(server, cleaned=[NotOursError("theirs")]).reconcile(KEY)
    assert server.ready.reason == "NotOurs"


@pytest.mark.parametrize("error", [ConflictError("again"), ServerError("down"), KeyError("bug")])
async def test_what_passes_by_itself_leaves_the_status_alone(error: Exception) -> None:
    server = Server(tree())
    with pytest.raises(type(error)):
        await Subject(server, error).reconcile(KEY)
    assert server.writes == ["finalizer"]


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"spec": {"size": "large"}, "status": {"made": 1}}, "spec.size"),
        ({"status": {"conditions": "none"}}, "status.conditions"),
    ],
)
async def test_an_object_that_does_not_fit_its_model_is_told_which_field(
    parts: Tree, field: str
) -> None:
    server = Server(tree(**parts))
    subject = Subject(server)
    with pytest.raises(TerminalError, match=field):
        await subject.reconcile(KEY)
    assert subject.called == []
    assert server.ready.reason == "InvalidSpec"
    assert field in server.ready.message


@pytest.mark.parametrize(
    "call",
    [
        lambda: Subject(Server(None), finalizer="no-domain"),
        lambda: Verdict.ready("two words"),
        lambda: Verdict.not_ready("", "empty"),
    ],
)
def test_impossible_settings_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(ConfigurationError):
        call()


async def test_the_clean_up_of_nothing_is_done() -> None:
    server = Server(tree(metadata=DELETED))
    await Subject(server).reconcile(KEY)
    assert server.tree is not None
    assert meta_from(server.tree["metadata"]).finalizers == ()


def test_the_rights_are_those_for_the_kind_its_status_and_events() -> None:
    kind, status, *events = rules_for(Widget)
    assert (kind.groups, kind.resources) == (("example.com",), ("widgets",))
    assert kind.verbs == ("get", "list", "watch", "patch")
    assert (status.resources, status.verbs) == (("widgets/status",), ("patch",))
    assert [rule.resources for rule in events] == [("events",)]


def test_a_conditioned_kind_has_columns_unless_it_says_others() -> None:
    def columns(kind: type[Widget]) -> list[str]:
        version = crd_for(kind)["spec"]["versions"][0]
        return [column["name"] for column in version["additionalPrinterColumns"]]

    assert columns(Widget) == ["Ready", "Reason", "Message", "Age"]
    size = PrintColumn("Size", ".spec.size", type="integer")
    other = resource(group="example.com", version="v1", plural="widgets", columns=(size,))
    assert columns(other(type("Widget", (Widget,), {"__doc__": "Be another."}))) == ["Size"]
