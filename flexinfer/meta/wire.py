# SPDX-License-Identifier: Apache-2.0
"""What the API server answers with beside single objects: lists, lines of a watch, errors."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from flexinfer.errors import DecodeError
from flexinfer.meta.envelope import (
    Fields,
    ObjectMeta,
    StoredObject,
    decode,
    fields_of,
    meta_of,
    stored_with,
)

__all__ = [
    "Known",
    "ListPage",
    "Status",
    "WatchEvent",
    "decode_event",
    "decode_list",
    "decode_status",
]

Known = Callable[[ObjectMeta], StoredObject | None]
"""Return the object of that very UID and version where it is there already, else None."""


class ListPage(msgspec.Struct, frozen=True):
    """Be one page of a LIST: every page of one list carries the same resourceVersion.

    `unreadable` counts items whose envelope could not be read; they are left out of `items`.
    """

    items: list[StoredObject]
    resource_version: str
    continue_token: str
    unreadable: int


class Status(msgspec.Struct, frozen=True, rename="camel"):
    """Be the Status object that the API server answers with when it says no."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: _StatusDetails | None = None


class _StatusCause(msgspec.Struct, frozen=True):
    reason: str = ""
    field: str = ""
    message: str = ""


class _StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    causes: tuple[_StatusCause, ...] = ()
    retry_after_seconds: int = 0


class WatchEvent(msgspec.Struct, frozen=True):
    """Be one line of a watch.

    ADDED, MODIFIED, DELETED and BOOKMARK come with `object`, ERROR with `status`.
    """

    type: str
    object: StoredObject | None = None
    status: Status | None = None


class _RawEvent(msgspec.Struct, gc=False):
    type: str
    object: Fields


class _EventStatus(msgspec.Struct, gc=False):
    object: Status


class _RawListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _RawList(msgspec.Struct):
    metadata: _RawListMeta = msgspec.field(default_factory=_RawListMeta)
    items: list[Fields] | None = None


class _DoubtfulList(msgspec.Struct):
    metadata: _RawListMeta = msgspec.field(default_factory=_RawListMeta)
    items: list[msgspec.Raw] = msgspec.field(default_factory=list)


_event_decoder = msgspec.json.Decoder(_RawEvent)
_event_status_decoder = msgspec.json.Decoder(_EventStatus)
_list_decoder = msgspec.json.Decoder(_RawList)
_doubtful_list_decoder = msgspec.json.Decoder(_DoubtfulList)
_status_decoder = msgspec.json.Decoder(Status)


def decode_list(data: bytes) -> ListPage:
    """Read one page of a LIST; an item that cannot be read is left out and counted.

    Namespaces and times that several items have are kept once.
    """
    try:
        raw = _read_list(data)
    except msgspec.MsgspecError as error:
        msg = f"unreadable list: {error}"
        raise DecodeError(msg) from None
    items: list[StoredObject] = []
    shared: dict[str, str] = {}
    unreadable = 0
    for item in raw.items or ():
        try:
            items.append(_listed(item, shared))
        except DecodeError:
            unreadable += 1
    return ListPage(items, raw.metadata.resource_version, raw.metadata.continue_, unreadable)


def _read_list(data: bytes) -> _RawList | _DoubtfulList:
    """Read all items at once; one by one when that fails, for it may be one that is to blame."""
    try:
        return decode(_list_decoder, data)
    except msgspec.DecodeError:
        return decode(_doubtful_list_decoder, data)


def _listed(item: Fields | msgspec.Raw, shared: dict[str, str]) -> StoredObject:
    fields = item if isinstance(item, dict) else fields_of(item)
    meta = meta_of(fields)
    for field in ("namespace", "creation_timestamp"):
        value = getattr(meta, field)
        if value:
            msgspec.structs.force_setattr(meta, field, shared.setdefault(value, value))
    return stored_with(meta, fields)


def decode_event(line: bytes, *, known: Known | None = None) -> WatchEvent:
    """Read one watch line; raise DecodeError when it is cut or is not an event.

    What *known* gives for the metadata of an object is its object, and the rest is not read.
    """
    try:
        event = decode(_event_decoder, line)
        if event.type == "ERROR":
            return WatchEvent("ERROR", status=decode(_event_status_decoder, line).object)
    except msgspec.MsgspecError as error:
        msg = f"unreadable watch line: {error}"
        raise DecodeError(msg) from None
    meta = meta_of(event.object)
    same = None if known is None else known(meta)
    return WatchEvent(event.type, object=same or stored_with(meta, event.object))


def decode_status(data: bytes) -> Status | None:
    """Read the body of an error answer, or None when it is not a Status."""
    try:
        return decode(_status_decoder, data)
    except msgspec.MsgspecError:
        return None
