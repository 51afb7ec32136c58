# SPDX-License-Identifier: Apache-2.0
"""What a Lease says: read whoever wrote it, and written as client-go writes it.

Nothing here raises for what it reads. A field that cannot be read is as if it were absent, and
since records are compared as bytes, a record that cannot be read is still seen to change.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from flexinfer.errors import DecodeError
from flexinfer.meta.envelope import decode_tree
from flexinfer.meta.resource import GroupVersionKind, Resource

if TYPE_CHECKING:
    from flexinfer.meta.envelope import StoredObject, Tree

__all__ = ["LEASES", "Claim", "FencingToken", "Lease", "format_time", "parse_time"]

LEASES = Resource(GroupVersionKind("coordination.k8s.io", "v1", "Lease"), "leases")


class FencingToken(NamedTuple):
    """Number the terms of one Lease: of two tokens of one `uid` the larger is the newer term.

    Whoever is written to can refuse a token smaller than one it has seen.
    """

    uid: str
    transitions: int


class Claim(NamedTuple):
    """Be what one term of one process leaves unchanged in a record."""

    holder: str
    acquired: datetime | None
    transitions: int

    def spec(self, *, duration: float, renewed: datetime) -> Tree:
        """Return the record in which this claim is held, or with no holder is given up."""
        return {
            "holderIdentity": self.holder,
            "leaseDurationSeconds": int(duration),
            "acquireTime": format_time(self.acquired or renewed),
            "renewTime": format_time(renewed),
            "leaseTransitions": self.transitions,
        }


@dataclass(frozen=True, slots=True)
class Lease:
    """Be one state of a Lease object.

    `duration` is in seconds, 0 when the record names none.
    """

    stored: StoredObject
    claim: Claim
    duration: float

    @classmethod
    def read(cls, stored: StoredObject) -> Lease:
        """Read an object, whatever is in it."""
        spec = _spec(stored)
        holder = spec.get("holderIdentity")
        claim = Claim(
            # A holder of another type is one all the same, but nobody we know.
            holder if isinstance(holder, str) else str(holder or ""),
            parse_time(spec.get("acquireTime")),
            _whole(spec.get("leaseTransitions")),
        )
        return cls(stored, claim, float(_whole(spec.get("leaseDurationSeconds"))))

    @property
    def uid(self) -> str:
        """Return the identity of the object."""
        return self.stored.meta.uid

    @property
    def version(self) -> str:
        """Return the resourceVersion."""
        return self.stored.meta.resource_version

    @property
    def token(self) -> FencingToken:
        """Return the number of the term."""
        return FencingToken(self.uid, self.claim.transitions)

    def says_the_same(self, other: Lease) -> bool:
        """Tell whether the record stands as it did; labels and annotations are not part of it."""
        return self.uid == other.uid and self.stored.body == other.stored.body

    def replaced(self, spec: Tree) -> Tree:
        """Return the whole object with *spec*, which can be written only if it is still this one.

        What others put into it stays.
        """
        tree = self.stored.tree(LEASES)
        return {**tree, "spec": {**_spec(self.stored), **spec}}


def parse_time(text: object) -> datetime | None:
    """Read a time with or without a fraction, with `Z` or an offset; None for anything else."""
    if not isinstance(text, str):
        return None
    try:
        time = datetime.fromisoformat(text)
        return time.astimezone(UTC) if time.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def format_time(time: datetime) -> str:
    """Write a MicroTime: UTC, six digits of a second, `Z`."""
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _spec(stored: StoredObject) -> Tree:
    try:
        spec = decode_tree(stored.body).get("spec")
    except DecodeError:
        return {}
    return spec if isinstance(spec, dict) else {}


def _whole(value: object) -> int:
    return max(value, 0) if isinstance(value, int) and not isinstance(value, bool) else 0
