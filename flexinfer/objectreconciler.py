# SPDX-License-Identifier: Apache-2.0
"""What nearly every reconciler does around its own work: read, finalizer, Ready condition, forget.

```python
class Copier(ObjectReconciler[ConfigMapCopy]):
    async def reconcile_object(self, copy: ConfigMapCopy) -> Verdict:
        ...
        return Verdict.ready("Copied", "3 copies are up to date")

    async def clean_up(self, copy: ConfigMapCopy) -> bool:
        ...
        return True

controller_for(manager, ConfigMapCopy).complete(
    Copier(manager, ConfigMapCopy, finalizer="example.com/copies")
)
```

| the object | then |
|---|---|
| is gone | what is remembered of it is dropped |
| does not fit its model | Ready=False says which field; not again until it changes |
| is being deleted | `clean_up` until it is done, then the finalizer goes |
| lives | it has the finalizer, `reconcile_object`, and Ready is what that says |

What `reconcile_object` and `clean_up` raise is raised. What a person has to mend is said in Ready
before: an impossible setting, a terminal error, an object of somebody else's, a refusal.
A status that says nothing new is not written. Who needs another order implements `Reconciler`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from pydantic import ValidationError

from flexinfer import finalizers
from flexinfer.apply import Applier, StatusWriter, apply_children
from flexinfer.conditions import find, set_condition
from flexinfer.crd.conditioned import ConditionedObject, ConditionedStatus
from flexinfer.crd.rbac import Rule
from flexinfer.errors import (
    ApiError,
    ConfigurationError,
    DecodeError,
    ForbiddenError,
    InvalidError,
    NotOursError,
    NotWatchedError,
    TerminalError,
)
from flexinfer.meta.condition import REASON_PATTERN, ConditionStatus
from flexinfer.reconcile import Result
from flexinfer.recorder import RULES, announce

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from flexinfer.apply import AppliedChildren
    from flexinfer.manager import Manager
    from flexinfer.meta.envelope import ObjectMeta, Tree
    from flexinfer.meta.object import Object
    from flexinfer.reconcile import Request

__all__ = ["ObjectReconciler", "Verdict", "rules_for"]

T = TypeVar("T", bound=ConditionedObject)

READY = "Ready"
# Until a clean-up that was not done is tried again, in seconds, if nothing happens before.
_CLEAN_UP_AGAIN = 10.0
# What a person has to mend, and the reason that Ready gives for it.
_REASONS: Mapping[type[Exception], str] = {
    NotWatchedError: "NotWatched",  # before what it is too: the spec is not to blame
    ConfigurationError: "InvalidSpec",
    DecodeError: "InvalidSpec",
    ForbiddenError: "Forbidden",
    InvalidError: "Refused",
    NotOursError: "NotOurs",
    TerminalError: "CannotProceed",
}
_STATUS = {
    True: ConditionStatus.TRUE,
    False: ConditionStatus.FALSE,
    None: ConditionStatus.UNKNOWN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Say how an object is doing: its Ready condition, and the rest of its status.

    *is_ready* is None for unknown. *status* is the new status, complete but for Ready; None leaves
    the other fields as they are. *requeue_after* are seconds, as in `Result`. Raises
    ConfigurationError for a reason that the API server would refuse.
    """

    is_ready: bool | None
    reason: str
    message: str = ""
    status: ConditionedStatus | None = None
    requeue_after: float | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(REASON_PATTERN, self.reason):
            raise ConfigurationError(
                f"the reason {self.reason!r} is no word: write one in CamelCase, as in NotFound"
            )

    @classmethod
    def ready(cls, reason: str, message: str = "") -> Self:
        """Say that all is as the spec asks for."""
        return cls(is_ready=True, reason=reason, message=message)

    @classmethod
    def not_ready(cls, reason: str, message: str) -> Self:
        """Say that it is not, and in *message* what to do about it."""
        return cls(is_ready=False, reason=reason, message=message)


def rules_for(kind: type[ConditionedObject]) -> tuple[Rule, ...]:
    """Return the rights that an ObjectReconciler of *kind* needs, those for children left out."""
    return (
        Rule.on(kind, "get", "list", "watch", "patch"),
        Rule.on(kind, "patch", subresource="status"),
        *RULES,
    )


class ObjectReconciler(ABC, Generic[T]):
    """Reconcile the objects of one kind as models; subclasses say what that means.

    `client` reads the cache and writes, `applier` applies children, `recorder` records events;
    all of them under `name`, which is also the field manager and must never change. Foreign
    changes of children that an apply takes back are announced in an event.
    """

    def __init__(
        self,
        manager: Manager,
        kind: type[T],
        *,
        name: str = "",
        finalizer: str = "",
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Make the parts; *name* is the kind in lower case unless given.

        Raises ConfigurationError for a *finalizer* without a domain, and for a name that no
        field manager can have. Without a finalizer `clean_up` is never called.
        """
        self.kind = kind
        self.name = name or kind.resource.kind.lower()
        self.client = manager.client
        self.recorder = manager.recorder(self.name)
        self.applier = Applier(
            self.client, field_manager=self.name, on_reverted=announce(self.recorder)
        )
        self._finalizer = finalizers.check_name(finalizer) if finalizer else ""
        self._status = StatusWriter(self.client, field_manager=self.name)
        self._now = now

    @abstractmethod
    async def reconcile_object(self, found: T) -> Verdict:
        """Bring a live object nearer to what its spec asks for, and say how it is doing."""

    async def clean_up(self, found: T) -> bool:
        """Remove what an object left elsewhere; return whether all of it is gone.

        Called again until it is. Does nothing unless a subclass has something to remove.
        """
        del found
        return True

    async def apply_children(
        self, kind: type[Object], intents: Iterable[Tree], *, owner: T, label: str
    ) -> AppliedChildren:
        """Make the objects of *kind* that *owner* has be *intents*; see `apply.apply_children`."""
        return await apply_children(
            self.client, self.applier, kind, intents, owner=owner, label=label
        )

    async def reconcile(self, request: Request) -> Result:
        """Reconcile one object by its name, as the module says."""
        try:
            found = await self.client.get(self.kind, request)
        except DecodeError as error:
            await self._say_misfit(request, error)
            raise TerminalError(str(error)) from error
        if found is None:
            self.applier.forget(self.kind.resource, request)
            self._status.forget(self.kind.resource, request)
            return Result()
        try:
            return await self._reconcile(found)
        except tuple(_REASONS) as error:
            await self._say(found, _verdict_on(error))
            if isinstance(error, ConfigurationError):
                raise TerminalError(str(error)) from error
            raise

    async def _reconcile(self, found: T) -> Result:
        stage = await self._guard(found)
        if stage is finalizers.Stage.CLEANING:
            return Result(requeue_after=_CLEAN_UP_AGAIN)
        if stage is finalizers.Stage.RELEASED:
            return Result()
        verdict = await self.reconcile_object(found)
        await self._say(found, verdict)
        return Result(requeue_after=verdict.requeue_after)

    async def _guard(self, found: T) -> finalizers.Stage:
        if self._finalizer:
            return await finalizers.guard(
                self.client,
                self.kind.resource,
                found.metadata,
                self._finalizer,
                field_manager=self.name,
                clean_up=partial(self.clean_up, found),
            )
        is_deleted = found.metadata.deletion_timestamp is not None
        return finalizers.Stage.RELEASED if is_deleted else finalizers.Stage.LIVE

    async def _say(self, found: T, verdict: Verdict) -> None:
        status = verdict.status or found.status
        others = (c for c in status.conditions if c.type != READY)
        before = find(found.status.conditions, READY)
        status = status.model_copy(update={"conditions": (*others, *([before] if before else ()))})
        await self._write(found.metadata, status, status.wire(), verdict)

    async def _say_misfit(self, request: Request, error: DecodeError) -> None:
        stored = await self.client.read(self.kind.resource, request)
        if stored is None:
            return
        tree: Tree = stored.tree(self.kind.resource).get("status") or {}
        try:
            status = ConditionedStatus.model_validate(tree)
        except ValidationError:
            status = ConditionedStatus()
        await self._write(stored.meta, status, tree, _verdict_on(error))

    async def _write(
        self, meta: ObjectMeta, status: ConditionedStatus, tree: Tree, verdict: Verdict
    ) -> None:
        conditions = set_condition(
            status.conditions,
            READY,
            _STATUS[verdict.is_ready],
            reason=verdict.reason,
            message=verdict.message,
            observed_generation=meta.generation,
            now=self._now(),
        )
        said = {"conditions": [condition.wire() for condition in conditions]}
        await self._status.write(self.kind.resource, meta, tree | said)


def _verdict_on(error: Exception) -> Verdict:
    reason = next(word for kind, word in _REASONS.items() if isinstance(error, kind))
    said = error.said if isinstance(error, ApiError) else ""
    return Verdict.not_ready(reason, said or str(error))
