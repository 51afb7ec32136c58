# SPDX-License-Identifier: Apache-2.0
"""Bring the objects that another object owns to what their intents ask for."""

from __future__ import annotations

import random
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio

from flexinfer import log
from flexinfer.apply.immutable import can_recreate, immutable_causes
from flexinfer.apply.leftovers import clear_leftover, is_leftover
from flexinfer.apply.managers import co_owners, duplicated, folding_patch
from flexinfer.apply.memory import Answer, Outcome
from flexinfer.apply.ownership import ensure_ours
from flexinfer.apply.plan import Child, Kind, answer_to, is_answered, plan_for
from flexinfer.apply.request import check_field_manager, if_absent, is_other_object, with_uid
from flexinfer.apply.reverted import Witness
from flexinfer.client.protocol import Patch
from flexinfer.errors import (
    ApiError,
    ConfigurationError,
    ConflictError,
    DeadlineError,
    InvalidError,
    NotFoundError,
    TerminalError,
)
from flexinfer.meta.envelope import stored_from

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from flexinfer.apply.live import LiveClient
    from flexinfer.apply.plan import Identity, Plan
    from flexinfer.apply.reverted import RevertObserver
    from flexinfer.kinds.immutable import ImmutableField
    from flexinfer.kinds.structure import Structure
    from flexinfer.meta.envelope import StoredObject, Tree
    from flexinfer.meta.object import Object
    from flexinfer.meta.resource import NamespacedName, Resource

_log = log.get_logger(__name__)

# Between looks at whether a deleted object is gone, in seconds; doubled from one to the other.
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0


@dataclass(frozen=True, slots=True)
class Applied:
    """Report one apply: the object as the server has it, and what happened.

    `drift` names the immutable fields where the object is not what the intent asked for.
    """

    object: StoredObject
    outcome: Outcome
    drift: tuple[str, ...] = ()


class Applier:
    """Apply the intents of one controller, sending only those that make a difference.

    Weak spots of the memory that makes this so. It is empty after a restart: the first apply of
    each child that is there costs a GET, and a PATCH that changes nothing. It grows by less than
    a kilobyte a child until `forget` is called for the owner. What another manager adds to a
    field whose merge structure `kinds.structure` does not know goes unnoticed in a map, and costs
    one apply that changes nothing in a list. And an intent that was refused is not sent again
    when only the reason for the refusal went away.

    A client that reads from a cache needs an informer for the kind of each child. Never to be
    called twice at once for one child; the work queue sees to that.
    """

    def __init__(  # noqa: PLR0913 - one client, the rest options by keyword
        self,
        client: LiveClient,
        *,
        field_manager: str,
        immutable: Mapping[Resource, Sequence[ImmutableField]] | None = None,
        structures: Mapping[Resource, Structure] | None = None,
        recreate_timeout: float = 30.0,
        on_reverted: RevertObserver | None = None,
        former_managers: Collection[str] = (),
    ) -> None:
        """Refuse impossible settings with ConfigurationError.

        *immutable* and *structures* add to what `kinds` knows. *recreate_timeout* is how many
        seconds a deleted object may take to go; 30 is the default grace period of pods.
        *on_reverted* is told of foreign changes that were taken back, at most once a minute for
        one child, at the price of one GET each. *former_managers* are names that earlier versions
        wrote under: what they hold becomes ours with the first apply of a child, and so goes
        when the intent is without it. That takes one more PATCH, once for each object.
        """
        if not 0 < recreate_timeout < float("inf"):
            raise ConfigurationError(
                f"recreate_timeout is {recreate_timeout}; give a positive number of seconds"
            )
        self._client = client
        self._field_manager = check_field_manager(field_manager)
        self._former = frozenset(map(check_field_manager, former_managers))
        self._immutable = immutable or {}
        self._structures = structures or {}
        self._recreate_timeout = recreate_timeout
        self._witness = Witness(client, field_manager=field_manager, observer=on_reverted)
        self._kinds: dict[Resource, Kind] = {}
        self._memory: dict[Identity, dict[Identity, Answer]] = {}

    async def apply(self, resource: Resource, intent: Tree, *, owner: Object | None) -> Applied:
        """Make the object what *intent* asks for, and report what that took.

        None in *intent* means no opinion. *owner* becomes the controller of the object; with
        None the object is ours as long as no controller has it. An object that is in the way
        because an earlier owner of the same kind and name left it behind is deleted: that takes
        the rights to get owners and to delete children.

        Raises NotOursError for an object of that name that is not ours; ConflictError when it
        was deleted or made anew meanwhile, so that the next call starts afresh; TerminalError
        for an intent that the object can never take, without sending it again; DeadlineError
        when a deleted object does not go; and what the client raises.
        """
        child = Child(self._kind(resource), intent, owner)
        live, last = await self._look(child)
        if live is None:
            try:
                return await self._create(child, Outcome.CREATED)
            except ConflictError:
                live = await self._ask(child)  # the cache is behind
            if live is None:
                return await self._create(child, Outcome.CREATED)
        if live.meta.deletion_timestamp and child.kind.is_recreated:
            await self._wait_gone(child, live.meta.uid)
            return await self._create(child, Outcome.CREATED)
        if last is not None and last.said == child.said and last.live.is_of(live.meta):
            return _unchanged(child, live, last)
        return await self._update(child, live, last)

    def forget(self, resource: Resource, key: NamespacedName) -> None:
        """Drop what is remembered of the children of an owner that is gone.

        An object applied without an owner is forgotten by its own name.
        """
        self._memory.pop((resource, key), None)
        self._witness.forget((resource, key))

    def _kind(self, resource: Resource) -> Kind:
        if resource not in self._kinds:
            self._kinds[resource] = Kind.of(
                resource,
                rules=self._immutable.get(resource, ()),
                structure=self._structures.get(resource),
            )
        return self._kinds[resource]

    async def _look(self, child: Child) -> tuple[StoredObject | None, Answer | None]:
        """Read from the cache what is known already, from the server what is not.

        What the cache does not have is taken for absent: a create finds out. Raises NotOursError
        for what is not ours.
        """
        last = self._memory.get(child.owner_id, {}).get(child.id)
        if last is None:
            child.check()  # before anything is asked
        live = await self._client.read(*child.id)
        if last is not None:
            known = (last.owner, last.live.meta.uid)
            if live is not None and known == (child.owner_uid, live.meta.uid):
                ensure_ours(live, child.kind.resource, child.owner, is_known=True)
                return live, last
            self._forget_child(child)
        return None if live is None else await self._ask(child), None

    async def _ask(self, child: Child) -> StoredObject | None:
        """Read from the server; raise NotOursError for what is not ours."""
        tree = await self._client.live_tree(*child.id)
        return None if tree is None else await self._inherit(child, tree)

    async def _inherit(self, child: Child, tree: Tree) -> StoredObject | None:
        """Make ours what we hold under another name, or by another operation.

        What a deleted owner of our owner's name left behind is deleted instead: None when it is
        gone, NotOursError while it is not.
        """
        live = stored_from(tree)
        resource, owner = child.kind.resource, child.owner
        if (
            owner is not None
            and is_leftover(live.meta, owner)
            and await clear_leftover(self._client, resource, live.meta, owner=owner)
        ):
            return None
        ensure_ours(live, resource, owner, is_known=False)
        patch = folding_patch(
            tree,
            field_manager=self._field_manager,
            former=self._former,
            owner_uid=child.owner_uid,
        )
        if not patch:
            return live
        _log.info("taking over fields that were written another way", object=str(child))
        try:
            return await self._client.patch(
                *child.id, patch, content_type=Patch.JSON, field_manager=self._field_manager
            )
        except NotFoundError as error:
            raise ConflictError(f"{child} is gone; read it again") from error

    async def _create(self, child: Child, outcome: Outcome) -> Applied:
        """Create what is not there; raise ConflictError when it is, unless a lost try made it."""
        plan = plan_for(child, None, None)
        try:
            answer = await self._send(child, if_absent(plan.body))
        except ConflictError as error:
            return await self._made(child, outcome, error)
        return self._done(child, plan, answer, outcome)

    async def _made(self, child: Child, outcome: Outcome, error: ConflictError) -> Applied:
        """Report what *error* found in its way as made by an earlier try, or raise it.

        An apply to it tells: the server finds nothing to change in what was made of the same.
        """
        live = await self._ask(child) if error.is_repeat else None
        if live is None or live.meta.deletion_timestamp:
            raise error
        applied = await self._update(child, live, None)
        return (
            replace(applied, outcome=outcome) if applied.outcome is Outcome.UNCHANGED else applied
        )

    async def _update(self, child: Child, live: StoredObject, last: Answer | None) -> Applied:
        plan = plan_for(child, live, last)
        if last is not None and is_answered(child, plan, live, last):
            last = last._replace(live=live, said=child.said, asked=child.asked, drift=plan.drift)
            self._remember(child, last)
            return _unchanged(child, live, last)
        claims = None
        if last is not None and last.sent == plan.sent:
            _log.info("foreign change to an owned field", object=str(child))
            claims = await self._witness.look(child, plan.body)
        try:
            answer = await self._send(child, with_uid(plan.body, live.meta.uid))
        except InvalidError as error:
            return await self._refused(child, plan, live, error)
        is_same = answer.meta.resource_version == live.meta.resource_version
        if claims is not None and not is_same:
            self._witness.report(child, answer.meta, claims)
        return self._done(child, plan, answer, Outcome.UNCHANGED if is_same else Outcome.UPDATED)

    async def _refused(
        self, child: Child, plan: Plan, live: StoredObject, error: InvalidError
    ) -> Applied:
        paths = immutable_causes(error.causes)
        if not paths:
            await self._check_co_owners(child, error)
            raise error
        if can_recreate(paths, child.kind.rules):
            _log.info("recreating for an immutable field", object=str(child), paths=paths)
            with self._forgetting(child):
                await self._client.delete(*child.id, uid=live.meta.uid)
            await self._wait_gone(child, live.meta.uid)
            return await self._create(child, Outcome.RECREATED)
        self._remember(child, answer_to(child, plan, live, refused=paths))
        raise _terminal(child, paths) from error

    async def _check_co_owners(self, child: Child, error: InvalidError) -> None:
        lists = duplicated(error.causes)
        tree = await self._client.live_tree(*child.id) if lists else None
        found = tree and co_owners(lists, child, tree, field_manager=self._field_manager)
        if found:
            raise TerminalError(
                f"{child}: {'; '.join(found)}: keep the entry, or have it given up there"
            ) from error

    async def _wait_gone(self, child: Child, uid: str) -> None:
        pause = _FIRST_PAUSE
        with anyio.move_on_after(self._recreate_timeout), self._forgetting(child):
            while (found := await self._client.live_read(*child.id)) is not None:
                if found.meta.uid != uid:
                    raise ConflictError(f"{child} was made anew by somebody else; read it again")
                await anyio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - jitter
                pause = min(2 * pause, _LONGEST_PAUSE)
            return
        raise DeadlineError(
            f"{child} is still being deleted after {self._recreate_timeout:g} s; see its finalizers"
        )

    async def _send(self, child: Child, body: Tree) -> StoredObject:
        try:
            return await self._client.apply(
                child.kind.resource, body, field_manager=self._field_manager
            )
        except ApiError:  # a context manager is not free, and nearly all goes well
            with self._forgetting(child):
                raise

    def _done(self, child: Child, plan: Plan, answer: StoredObject, outcome: Outcome) -> Applied:
        self._remember(child, answer_to(child, plan, answer))
        return Applied(answer, outcome, plan.drift)

    def _remember(self, child: Child, answer: Answer) -> None:
        self._memory.setdefault(child.owner_id, {})[child.id] = answer

    def _forget_child(self, child: Child) -> None:
        self._memory.get(child.owner_id, {}).pop(child.id, None)

    @contextmanager
    def _forgetting(self, child: Child) -> Iterator[None]:
        """Start afresh when the object that we knew is gone, or another has its name."""
        try:
            yield
        except ConflictError:
            self._forget_child(child)
            raise
        except InvalidError as error:
            if not is_other_object(error):
                raise
            self._forget_child(child)
            raise ConflictError(f"{child} was made anew; read it again") from error


def _unchanged(child: Child, live: StoredObject, last: Answer) -> Applied:
    if last.refused:
        raise _terminal(child, last.refused)
    return Applied(live, Outcome.UNCHANGED, last.drift)


def _terminal(child: Child, paths: tuple[str, ...]) -> TerminalError:
    return TerminalError(
        f"{child}: {', '.join(paths)} cannot be changed; take the change back, or delete "
        f"the {child.kind.resource.kind} to have it made anew"
    )
