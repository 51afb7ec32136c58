# SPDX-License-Identifier: Apache-2.0
"""What stands on either side of a reflector: where lists and watches come from, and go to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from flexinfer.client.lines import Line
    from flexinfer.meta.envelope import ObjectMeta, StoredObject


class LineSource(Protocol):
    """Be an open watch."""

    idle_timeout: float
    """Seconds of silence after which `batch` raises DeadlineError."""

    async def batch(self) -> Sequence[Line]:
        """Return the lines that are there, waiting for one; empty at the regular end."""
        ...


class ListWatchTransport(Protocol):
    """Be the part of the transport that a reflector needs; failures raise its typed errors."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        timeout: float,  # noqa: ASYNC109  # the transport's: it spans its tries
    ) -> bytes:
        """Return the body of a success."""
        ...

    def stream(
        self,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        idle_timeout: float,
        open_timeout: float,
    ) -> AbstractAsyncContextManager[LineSource]:
        """Open a watch."""
        ...


class Sink(Protocol):
    """Be told what the server holds."""

    def begin_list(self, *, went_back: bool) -> None:
        """Hear that a list begins, maybe anew after one that was broken off.

        With *went_back* the server has an earlier state than it had: all it says is news.
        """

    def listed(self, item: StoredObject) -> None:
        """Take one object of the list."""

    def end_list(self, resource_version: str, *, is_whole: bool) -> Iterator[None]:
        """Drop what the list did not hold, one object a step, then be in sync.

        With *is_whole* false some items could not be read, so what is missing may yet be there.
        """

    def known(self, meta: ObjectMeta) -> StoredObject | None:
        """Return the object of that very UID and version, if it is here already."""

    def changed(self, event_type: str, item: StoredObject) -> None:
        """Take an ADDED, MODIFIED or DELETED."""

    def bookmarked(self, resource_version: str) -> None:
        """Hear that nothing else happened up to this version."""
