# SPDX-License-Identifier: Apache-2.0
"""What was sent last for an object, and what the server made of it.

The former as digests; the latter as the very object that the cache holds, so it takes no room.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from flexinfer.kinds.immutable import ImmutableField
    from flexinfer.meta.envelope import StoredObject


class Outcome(StrEnum):
    """Say what an apply came to."""

    CREATED = "created"
    UPDATED = "updated"
    """The object has another version than the one that was looked at: our change, or at the
    same moment somebody else's."""
    UNCHANGED = "unchanged"
    """Nothing was sent, or the server found nothing to change in what was."""
    RECREATED = "recreated"
    """The object was deleted for a change that it could not take, and made anew."""


class Answer(NamedTuple):
    """Remember the server's last answer about one object.

    `live` is the object as the server answered. `owner` is the UID of the owner whose child it is,
    empty for none. `said` is a digest of what the caller gave, to the letter: the
    same again needs no further look. `asked` and `sent` are digests of the intent before and after
    immutable fields were settled. `refused` are the paths of a change that the server would not
    make, and `learned` what to preserve because of it.
    """

    live: StoredObject
    said: bytes
    asked: bytes
    sent: bytes
    owner: str = ""
    drift: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    learned: tuple[ImmutableField, ...] = ()
