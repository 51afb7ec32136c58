# SPDX-License-Identifier: Apache-2.0
"""Hold an object back from deletion until what it left elsewhere is cleaned up.

The list of finalizers belongs to everybody, and a patch that replaces it loses what others put
there. So each change is a JSON patch that first tests that object and list are what was looked
at; when they are not, the server changes nothing, and we look again.

```python
stage = await finalizers.guard(
    client, Model.resource, model.metadata, FINALIZER, field_manager=NAME, clean_up=clean_up
)
if stage is not Stage.LIVE:
    return Result()
```

After a removal the object may be gone at once: write nothing to it any more.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import anyio
import jsonpatch

from flexinfer.client.protocol import Patch
from flexinfer.errors import (
    ConfigurationError,
    ConflictError,
    InvalidError,
    NotFoundError,
    TerminalError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from flexinfer.apply import LiveClient
    from flexinfer.errors import ApiError
    from flexinfer.meta.envelope import ObjectMeta, Tree
    from flexinfer.meta.resource import Resource

__all__ = ["Stage", "add", "check_name", "guard", "remove"]

# Between two that change one list as fast as they can, ten tries in a row were lost in every
# thousandth case; half of them wins, so that twenty are lost in one of a million.
_ATTEMPTS = 20
# Between two of them, in seconds; doubled from one to the other, so 8 s in all at most.
_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.5
_PATH = "/metadata/finalizers"

# The API server's rule for qualified names, with the domain required.
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = re.compile(
    rf"(?=.{{1,253}}/){_LABEL}(\.{_LABEL})*/(?=.{{1,63}}\Z)[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
)
# The reason of a Status for an object that is not there; a kind that is not served has no reason.
_NO_OBJECT = "NotFound"


class Stage(StrEnum):
    """Say where in its life an object is."""

    LIVE = "live"
    """It is not being deleted, and our finalizer is on it."""
    CLEANING = "cleaning"
    """It is being deleted, and the clean-up is not done yet."""
    RELEASED = "released"
    """It is being deleted, and does not wait for us any more; it may be gone."""


@dataclass(frozen=True, slots=True)
class _Edit:
    """Be one finalizer that is to come to an object, or to go."""

    resource: Resource
    meta: ObjectMeta
    name: str
    adding: bool

    def __str__(self) -> str:
        return f"{self.resource.kind} {self.meta.key}"

    def is_done(self, meta: ObjectMeta) -> bool:
        """Tell whether the list is as it should be."""
        return (self.name in meta.finalizers) == self.adding

    def patch(self, known: ObjectMeta) -> list[Tree]:
        """Return the patch that does it to the object and the list as they are known."""
        same: Tree = {"op": "test", "path": "/metadata/uid", "value": known.uid}
        return [same, *(_added(known, self.name) if self.adding else _removed(known, self.name))]

    def check(self, live: ObjectMeta, refusal: ApiError) -> None:
        """Raise when there is no use in trying again on the object as it is by now."""
        if self.adding and live.deletion_timestamp:
            raise ConflictError(f"{self} is being deleted by now; read it again") from refusal
        # A test that failed names no cause: with one, it is the object that is invalid.
        if isinstance(refusal, InvalidError) and refusal.causes:
            raise refusal


async def add(
    client: LiveClient, resource: Resource, meta: ObjectMeta, name: str, *, field_manager: str
) -> ObjectMeta:
    """Put finalizer *name* on the object that *meta* was read from; return its metadata then.

    Sends nothing when *meta* has it. Foreign finalizers are neither lost nor doubled.

    Raises ConfigurationError for a name without a domain; TerminalError, without asking the
    server, when *meta* says that the object is being deleted, since no finalizer can come then;
    ConflictError when that turns out on the server, when the object is gone or was made anew, or
    when others changed the list twenty times in a row; and what the client raises.
    """
    edit = _Edit(resource, meta, check_name(name), adding=True)
    if edit.is_done(meta):
        return meta
    if meta.deletion_timestamp:
        raise TerminalError(
            f"{edit} is being deleted, and no finalizer can be added to it; clean up instead"
        )
    added = await _persist(client, edit, field_manager=field_manager)
    if added is None:
        raise ConflictError(f"{edit} is gone or was made anew; read it again")
    return added


async def remove(
    client: LiveClient, resource: Resource, meta: ObjectMeta, name: str, *, field_manager: str
) -> None:
    """Take finalizer *name* off the object that *meta* was read from.

    Sends nothing when *meta* does not have it. An object that is gone or was made anew is a
    success. Raises ConflictError when others changed the list twenty times in a row, and what the
    client raises.
    """
    edit = _Edit(resource, meta, check_name(name), adding=False)
    if not edit.is_done(meta):
        await _persist(client, edit, field_manager=field_manager)


async def guard(
    client: LiveClient,
    resource: Resource,
    meta: ObjectMeta,
    name: str,
    *,
    field_manager: str,
    clean_up: Callable[[], Awaitable[bool]],
) -> Stage:
    """Keep the finalizer on a live object; on one that is being deleted clean up, then remove it.

    *clean_up* is called only while the object still waits for us. It must be repeatable, and says
    whether it is done; what it raises is raised, and the finalizer stays. Reconcile further only
    when LIVE is returned. Raises as `add` and `remove` do.
    """
    if not meta.deletion_timestamp:
        await add(client, resource, meta, name, field_manager=field_manager)
        return Stage.LIVE
    if name in meta.finalizers:
        if not await clean_up():
            return Stage.CLEANING
        await remove(client, resource, meta, name, field_manager=field_manager)
    return Stage.RELEASED


async def _persist(client: LiveClient, edit: _Edit, *, field_manager: str) -> ObjectMeta | None:
    """Change the list, again as long as others do; return None when the object is gone."""
    known, pause = edit.meta, _FIRST_PAUSE
    for _ in range(_ATTEMPTS):
        try:
            answer = await client.patch(
                edit.resource,
                known.key,
                edit.patch(known),
                content_type=Patch.JSON,
                field_manager=field_manager,
            )
        except NotFoundError as error:
            if edit.adding and error.reason != _NO_OBJECT:
                raise
            return None
        except (ConflictError, InvalidError) as error:
            refusal = error
        else:
            return answer.meta
        await anyio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - jitter
        pause = min(2 * pause, _LONGEST_PAUSE)
        live = await client.live_read(edit.resource, known.key)
        if live is None or live.meta.uid != known.uid:
            return None
        known = live.meta
        if edit.is_done(known):
            return known
        edit.check(known, refusal)
    raise ConflictError(f"{edit}: others changed its finalizers {_ATTEMPTS} times in a row")


def _added(known: ObjectMeta, name: str) -> list[Tree]:
    """Test the whole list: somebody may have added the name to another one."""
    found = list(known.finalizers)
    before: Tree = {"metadata": {"finalizers": found} if found else {}}
    after: Tree = {"metadata": {"finalizers": [*found, name]}}
    # The server never stores an empty list, and null is what equals no list.
    test = {"op": "test", "path": _PATH, "value": found or None}
    return [test, *jsonpatch.make_patch(before, after)]


def _removed(known: ObjectMeta, name: str) -> list[Tree]:
    """Test the one entry: what comes behind it does not matter."""
    operations: list[Tree] = []
    for index in reversed(range(len(known.finalizers))):
        if known.finalizers[index] == name:
            path = f"{_PATH}/{index}"
            operations.append({"op": "test", "path": path, "value": name})
            operations.append({"op": "remove", "path": path})
    return operations


def check_name(name: str) -> str:
    """Return the name of a finalizer; raise ConfigurationError unless it is domain/name."""
    if _QUALIFIED.fullmatch(name):
        return name
    raise ConfigurationError(
        f"finalizer {name!r} is not domain/name; use a domain of yours, as in example.com/cleanup"
    )
