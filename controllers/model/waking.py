# SPDX-License-Identifier: Apache-2.0
"""Wake a Model: write the signal, and turn the annotation that asks for it into the signal.

The signal is `status.lastActiveTime`. It has a field manager of its own, which the command line
and the proxy use too, so that neither side's writes of the status undo the other's. Needs the
rights to patch `models/status`, and `models` for the annotation.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from api.flexinfer.v1alpha2.model_types import Model
from controllers.model.names import ACTIVATE_ANNOTATION
from flexinfer import log
from flexinfer.client.protocol import Patch
from flexinfer.errors import InvalidError, NotFoundError
from flexinfer.event import UpdateEvent
from flexinfer.meta.envelope import decode_tree

if TYPE_CHECKING:
    from collections.abc import Callable

    from flexinfer.client.protocol import Client
    from flexinfer.event import Event
    from flexinfer.meta.envelope import ObjectMeta, StoredObject
    from flexinfer.meta.resource import NamespacedName

FIELD_MANAGER = "flexinfer-waker"

_FIELD = "lastActiveTime"
_FIELD_BYTES = f'"{_FIELD}"'.encode()
_POINTER = "/metadata/annotations/" + ACTIVATE_ANNOTATION.replace("~", "~0").replace("/", "~1")

_log = log.get_logger(__name__)


async def wake(client: Client, meta: ObjectMeta, *, now: datetime) -> None:
    """Write into the status of a Model that it was asked for *now*, to the second.

    Repeated within a second it changes nothing. Raises what `Client.apply` raises, NotFoundError
    when the Model is gone. The API server compares no UID in a status: a Model that was made anew
    under the same name meanwhile is woken.
    """
    intent = {
        "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
        "status": {_FIELD: now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")},
    }
    await client.apply(Model.resource, intent, field_manager=FIELD_MANAGER, subresource="status")


class Waking:
    """Turn the annotation `flexinfer.ai/activate` into the signal, once for each value.

    Call `heed` before deciding and `settle` when the status is written, so that an annotation
    that cannot be removed holds nothing up. If the process ends between the two, the next one
    wakes the Model again rather than not at all.
    """

    def __init__(
        self, client: Client, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._client = client
        self._now = now
        # What was heeded and is still there: without it, an annotation that cannot be removed
        # would wake its Model in every reconcile, each of which leads to the next.
        self._heeded: dict[NamespacedName, tuple[str, str]] = {}

    async def heed(self, meta: ObjectMeta) -> datetime | None:
        """Write the signal if an annotation asks for it; return its time, None for no signal."""
        value = meta.annotations.get(ACTIVATE_ANNOTATION)
        if value is None:
            self.forget(meta.key)
            return None
        if self._heeded.get(meta.key) == (meta.uid, value):
            return None
        now = self._now()
        await wake(self._client, meta, now=now)
        self._heeded[meta.key] = (meta.uid, value)
        return now

    async def settle(self, meta: ObjectMeta) -> None:
        """Remove the annotation that was heeded, unless it has another value by now.

        A value that somebody wrote meanwhile is an update of the Model, so it is heeded by the
        reconcile that this update leads to. Raises what `Client.patch` raises.
        """
        heeded = self._heeded.get(meta.key)
        if heeded is None:
            return
        uid, value = heeded
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "test", "path": _POINTER, "value": value},
            {"op": "remove", "path": _POINTER},
        ]
        try:
            await self._client.patch(
                Model.resource,
                meta.key,
                patch,
                content_type=Patch.JSON,
                field_manager=FIELD_MANAGER,
            )
        except NotFoundError:
            pass  # the Model went with its annotation
        except InvalidError as error:  # how the API server says that a test failed
            _log.info("the annotation that woke the model stays", error=str(error))
            return
        self.forget(meta.key)

    def forget(self, key: NamespacedName) -> None:
        """Drop what is remembered of a Model that is gone."""
        self._heeded.pop(key, None)


def last_active_changed(event: Event) -> bool:
    """Pass updates that change `status.lastActiveTime`; creates and deletes as ever.

    A predicate for `any_of`: other changes of the status do not pass.
    """
    if not isinstance(event, UpdateEvent) or event.old.meta.uid != event.new.meta.uid:
        return True
    return _last_active(event.old) != _last_active(event.new)


def _last_active(stored: StoredObject) -> object:
    """Read the one field; most Models that change were never woken, and cost no decoding."""
    if _FIELD_BYTES not in stored.body:
        return None
    status = decode_tree(stored.body).get("status")
    return status.get(_FIELD) if isinstance(status, dict) else None
