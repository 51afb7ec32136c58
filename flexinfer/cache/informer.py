# SPDX-License-Identifier: Apache-2.0
"""One selection of objects, kept fresh, read locally, and told about as events."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import anyio

from flexinfer import log
from flexinfer.cache.own_writes import OwnWrites
from flexinfer.cache.reflector import Reflector
from flexinfer.cache.selection import Selection
from flexinfer.cache.store import Store, changes
from flexinfer.cache.timing import Timing
from flexinfer.cache.underway import UnderWay
from flexinfer.errors import CacheNotSyncedError, ConfigurationError
from flexinfer.event import CreateEvent, DeleteEvent
from flexinfer.meta.object import Object
from flexinfer.metrics import REGISTRY, InformerMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from prometheus_client import CollectorRegistry

    from flexinfer.cache.listwatch import ListWatchTransport
    from flexinfer.event import Event
    from flexinfer.meta.envelope import ObjectMeta, StoredObject
    from flexinfer.meta.resource import NamespacedName, Resource
    from flexinfer.meta.selector import Selector
    from flexinfer.runs import Run, Writing

    EventHandler = Callable[[Event], object]

__all__ = ["Informer", "InformerOptions"]

T = TypeVar("T", bound=Object)

_log = log.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class InformerOptions:
    """Tune every informer of a process.

    `memo_size` bounds the decoded models that each of them remembers.
    """

    timing: Timing = field(default_factory=Timing)
    memo_size: int = 256
    registry: CollectorRegistry = REGISTRY

    def __post_init__(self) -> None:
        if self.memo_size < 1:
            raise ConfigurationError(f"memo_size must be at least 1, not {self.memo_size}")


class Informer:
    """Hold the objects of one kind, namespace and selector, and tell handlers what changes.

    Reads show what the API server said last or what this process wrote since, whichever is
    newer. Handlers hear of what the server said, in its order, one event at a time.
    """

    def __init__(  # noqa: PLR0913 - two places, the rest by keyword
        self,
        transport: ListWatchTransport,
        resource: Resource,
        *,
        namespace: str = "",
        labels: Selector | None = None,
        fields: str = "",
        options: InformerOptions | None = None,
        under_way: UnderWay | None = None,
    ) -> None:
        options = options or InformerOptions()
        self.selection = Selection(resource, namespace, labels, fields)
        self._timing = options.timing
        self._metrics = InformerMetrics(
            str(resource), selector=self.selection.label, registry=options.registry
        )
        self._store = Store(memo_size=options.memo_size, on_index_error=self._index_failed)
        self._metrics.objects.set_function(self._store.__len__)
        self._own = OwnWrites(self._store, admits=self.selection.admits)
        self._handlers: tuple[EventHandler, ...] = ()
        self._burst = log.Burst(self._timing.clock)
        self._missing: set[NamespacedName] = set()
        self.under_way = under_way or UnderWay()
        self._went_back = False
        self._synced = anyio.Event()
        self.has_synced = False
        """Whether the first list is in the store and every handler has heard of it."""
        self._is_running = False
        self._reflector = Reflector(
            transport, self.selection, self, timing=self._timing, metrics=self._metrics
        )

    @property
    def resource(self) -> Resource:
        """Return the kind it holds."""
        return self.selection.resource

    def __len__(self) -> int:
        return len(self._store)

    def __repr__(self) -> str:
        return f"Informer({self.selection})"

    # What readers ask

    def get(self, key: NamespacedName) -> StoredObject | None:
        """Return the object of that name, or None. Never change it: it is shared."""
        return self._store.get(key)

    def list(
        self, *, namespace: str = "", labels: Selector | None = None
    ) -> Sequence[StoredObject]:
        """Return the objects of a namespace (empty: of all) in unspecified order."""
        found = self._store.objects(namespace)
        if labels is None:
            return found
        return [item for item in found if labels.matches(item.meta.labels)]

    def by_index(self, name: str, value: str) -> Sequence[StoredObject]:
        """Return the objects that the index has under *value*, in unspecified order.

        Raises ConfigurationError when there is no such index.
        """
        return self._store.by_index(name, value)

    def keys(self) -> Sequence[NamespacedName]:
        """Return the names of all objects, in unspecified order: what a `map_to` may want."""
        return [item.meta.key for item in self._store.objects()]

    def keys_by_index(self, name: str, value: str) -> Sequence[NamespacedName]:
        """Return the names of what `by_index` returns; raises as that does."""
        return [item.meta.key for item in self._store.by_index(name, value)]

    def decode(self, kind: type[T], item: StoredObject) -> T:
        """Return an object that was read here as a model; a second time it costs nothing.

        Raises DecodeError, naming the field, when it does not fit.
        """
        return self._store.decode(kind, item)

    # What a program sets up

    def add_handler(self, handler: EventHandler) -> None:
        """Call *handler* with every event from now on, after one CreateEvent per known object.

        It is called on the event loop and must not block. What it raises is logged and counted,
        and disturbs nobody else.
        """
        for item in list(self._own.known_items()):
            self._tell((handler,), CreateEvent(item, is_initial=True))
        self._handlers += (handler,)

    def add_index(self, name: str, func: Callable[[StoredObject], Iterable[str]]) -> None:
        """Find objects by the strings that *func* gives for each.

        May be called at any time. Raises ConfigurationError when the name is taken.
        """
        self._store.add_index(name, func)

    # What the client reports

    def wrote(self, item: StoredObject) -> None:
        """Show the server's answer to a write until the watch has caught up with it."""
        # Whether a field selector matches cannot be told here; what the server showed before
        # does match, as far as anyone knows.
        if self.selection.fields and self._own.known(item.meta.key) is None:
            return
        self._own.wrote(item)

    def deleted(self, key: NamespacedName, uid: str) -> None:
        """Hide the object with this UID, which the server has said is gone."""
        self._own.deleted(key, uid)

    # State

    async def synced(self) -> None:
        """Wait for `has_synced`, for as long as it takes."""
        await self._synced.wait()

    async def wait_synced(self, timeout: float) -> None:  # noqa: ASYNC109  # it names the reason
        """Wait for `has_synced`; raise CacheNotSyncedError saying why not within *timeout* s."""
        with anyio.move_on_after(timeout):
            await self.synced()
        if not self.has_synced:
            raise CacheNotSyncedError(f"{self.selection}: {self.health()}")

    def health(self) -> str | None:
        """Say why reads cannot be trusted to be fresh; None while they can."""
        trouble = self._reflector.trouble
        if not self.has_synced:
            return trouble or self._waiting()
        if not self._is_running:
            return "stopped: nothing keeps it fresh any more"
        if trouble is None:
            return None
        if self._reflector.needs_a_cure:
            return trouble
        silence = self._timing.clock() - self._reflector.heard_at
        if silence >= self._timing.stale_after:
            return f"stale: no word from the API server for {silence:.0f} s: {trouble}"
        return None

    def _waiting(self) -> str:
        return "waiting for its first list" if self._is_running else "not started"

    async def run(self) -> None:
        """Keep the store fresh until cancelled; raise on a defect of this process only."""
        with self._running():
            await self._reflector.run()

    @contextmanager
    def _running(self) -> Iterator[None]:
        self._is_running = True
        try:
            yield
        finally:
            self._is_running = False
            self._metrics.synced.set(0)

    # What the reflector reports

    def begin_list(self, *, went_back: bool) -> None:
        """Note what is known, to find out what the list lacks."""
        self._went_back = went_back
        self._missing = {item.meta.key for item in self._own.known_items()}

    def listed(self, item: StoredObject) -> None:
        """Take one object of a list."""
        key = item.meta.key
        self._missing.discard(key)
        # Never as an echo: what others wrote before it may be news of which no event tells.
        self._observe(key, item)

    def end_list(self, resource_version: str, *, is_whole: bool) -> Iterator[None]:
        """Drop what the list lacked, one object a step."""
        missing, self._missing = self._missing, set()
        self._went_back = False
        for key in missing if is_whole else ():
            last = self._own.known(key)
            self._own.vanish(key)
            if last is not None:
                self._tell(self._handlers, DeleteEvent(last, final_state_unknown=True))
            yield
        self._own.relisted(resource_version)
        self._metrics.synced.set(1)
        self.has_synced = True
        self._synced.set()

    def known(self, meta: ObjectMeta) -> StoredObject | None:
        """Return what was written here as just this version, so that its event is not read."""
        return self._own.written(meta)

    def changed(self, event_type: str, item: StoredObject) -> None:
        """Take one event of the watch."""
        key = item.meta.key
        if event_type == "DELETED":
            self._remove(key, item)
        else:
            echo_of = self._own.writer_of(key, item)
            under_way = self.under_way.writes.get(key, ())
            self._observe(key, item, echo_of=echo_of, under_way=under_way)
        self._own.passed(item.meta.resource_version)

    def bookmarked(self, resource_version: str) -> None:
        """Take note that there was nothing else up to this version."""
        self._own.bookmarked(resource_version)

    def _observe(
        self,
        key: NamespacedName,
        item: StoredObject,
        *,
        echo_of: Run | None = None,
        under_way: tuple[Writing, ...] = (),
    ) -> None:
        old = self._own.known(key)
        if self._went_back and old is not None:
            # Versions are given out again, so the same one may stand for another state.
            events: tuple[Event, ...] = (
                DeleteEvent(old, final_state_unknown=True),
                CreateEvent(item),
            )
        else:
            is_initial = not self.has_synced
            events = changes(old, item, is_initial=is_initial, echo_of=echo_of, under_way=under_way)
        if not events:
            return
        self._own.observe(key, item)
        for event in events:
            self._tell(self._handlers, event)

    def _remove(self, key: NamespacedName, last: StoredObject) -> None:
        old = self._own.known(key)
        self._own.remove(key, last.meta)
        if old is not None:
            self._tell(self._handlers, DeleteEvent(last if last.meta.uid == old.meta.uid else old))

    def _tell(self, handlers: Iterable[EventHandler], event: Event) -> None:
        for handler in handlers:
            try:
                handler(event)
            except Exception as error:  # noqa: BLE001  # a user's function must not end the watch
                name = getattr(handler, "__qualname__", repr(handler))
                self._failed("handler", error, handler=name)

    def _index_failed(self, name: str, key: NamespacedName, error: Exception) -> None:
        self._failed("index", error, index=name, object=str(key))

    def _failed(self, what: str, error: Exception, **values: object) -> None:
        self._metrics.callback_failed(what)
        if self._burst.admit():
            _log.error(
                "a handler or index function raised",
                what=what,
                selection=str(self.selection),
                left_out=self._burst.take_suppressed(),
                exc_info=error,
                **values,
            )
