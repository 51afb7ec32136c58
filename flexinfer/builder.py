# SPDX-License-Identifier: Apache-2.0
"""Wires a reconciler to what it has to hear of, in a few lines.

```python
controller_for(manager, Model, predicate=generation_changed)
    .owns(Deployment, Service)
    .watches(Node, map_to=models_on_node)
    .complete(reconciler)
```

Each step returns a new builder and changes nothing; `complete` alone does.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from flexinfer.controller import Controller
from flexinfer.errors import ConfigurationError
from flexinfer.handler import enqueue_mapped, enqueue_owner, enqueue_self
from flexinfer.meta.selector import Selector
from flexinfer.source import Source
from flexinfer.workqueue import WorkQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from flexinfer.controller import ControllerOptions
    from flexinfer.handler import Handler, MapFunction
    from flexinfer.manager import Manager
    from flexinfer.meta.object import Object
    from flexinfer.predicate import Predicate
    from flexinfer.reconcile import Reconciler, Request
    from flexinfer.workqueue import RateLimiter

__all__ = ["Builder", "controller_for"]


def controller_for(
    manager: Manager, kind: type[Object], *, predicate: Predicate | None = None
) -> Builder:
    """Begin a controller that reconciles the objects of *kind*, in every namespace.

    *predicate* says which of their events are worth it; None means all. The controller's name is
    the kind in lower case unless `named` says otherwise.
    """
    return Builder(
        manager=manager,
        kind=kind,
        predicate=predicate,
        name=kind.resource.kind.lower(),
        options=manager.options.controller,
    )


@dataclass(frozen=True, slots=True)
class _Watch:
    kind: type[Object]
    predicate: Predicate | None
    map_to: MapFunction | None = None  # None: the owner
    labels: Selector | None = None
    echoes: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """Hold what is known of a controller so far; made by `controller_for`."""

    manager: Manager
    kind: type[Object]
    predicate: Predicate | None
    name: str
    options: ControllerOptions
    rate_limiter: RateLimiter[Request] | None = None
    others: tuple[_Watch, ...] = ()

    def owns(
        self, *kinds: type[Object], predicate: Predicate | None = None, echoes: bool = True
    ) -> Self:
        """Hear of the objects of *kinds* that an object of ours controls.

        With *echoes* False an object is not reconciled again for what its own reconcile has just
        written to a child: for reconcilers that go on with the answer to a write, and never leave
        a step to the run that its event would cause. Whatever else happens to the child counts.

        Is the same as watching them with `handler.enqueue_owner` and our informer's UIDs. Raises
        ConfigurationError for no kinds, one given twice, and one that the garbage collector
        would delete because its scope is wider than the owner's.
        """
        if not kinds:
            raise ConfigurationError("owns() has no kinds: name at least one")
        owned = {watch.kind.resource for watch in self.others if watch.map_to is None}
        for kind in kinds:
            resource = kind.resource
            if resource in owned:
                raise ConfigurationError(f"{self.name} owns {resource} already: name it once")
            if self.kind.resource.namespaced and not resource.namespaced:
                raise ConfigurationError(
                    f"{self.name} cannot own {resource}: they are cluster-scoped and"
                    f" {self.kind.resource} are not; track them by label and use watches()"
                )
            owned.add(resource)
        added = tuple(_Watch(kind, predicate, echoes=echoes) for kind in kinds)
        return replace(self, others=self.others + added)

    def watches(
        self,
        kind: type[Object],
        *,
        map_to: MapFunction,
        predicate: Predicate | None = None,
        labels: Selector | None = None,
    ) -> Self:
        """Hear of the objects of *kind*; *map_to* says which of ours each concerns.

        With *labels* only the objects that they select are listed, watched and cached.
        Is the same as a Source with `handler.enqueue_mapped`. Raises ConfigurationError for a
        *map_to* that is a coroutine function: it runs inside the informer and cannot wait; and
        for *labels* that are no Selector.
        """
        if labels is not None and not isinstance(labels, Selector):
            raise ConfigurationError(
                f"labels of {kind.resource} is a {type(labels).__name__}: give a Selector, as"
                " Selector.from_labels makes of a dict and Selector.parse of a text"
            )
        if inspect.iscoroutinefunction(map_to):
            raise ConfigurationError(
                f"map_to of {kind.resource} is a coroutine function: make it a plain one that"
                " looks into the cache"
            )
        return replace(self, others=(*self.others, _Watch(kind, predicate, map_to, labels)))

    def named(self, name: str) -> Self:
        """Use *name* in metrics and logs; it has to be unique in the process."""
        return replace(self, name=name)

    def with_options(
        self,
        *,
        workers: int | None = None,
        reconcile_timeout: float | None = None,
        hot_loop: int | None = None,
        jitter: Callable[[], float] | None = None,
        rate_limiter: RateLimiter[Request] | None = None,
    ) -> Self:
        """Change what is given, and keep the manager's defaults for the rest.

        The settings are those of ControllerOptions, and the queue's *rate_limiter*. Raises
        ConfigurationError for impossible ones.
        """
        known = self.options
        options = replace(
            known,
            workers=known.workers if workers is None else workers,
            reconcile_timeout=(
                known.reconcile_timeout if reconcile_timeout is None else reconcile_timeout
            ),
            hot_loop=known.hot_loop if hot_loop is None else hot_loop,
            jitter=jitter or known.jitter,
        )
        return replace(self, options=options, rate_limiter=rate_limiter or self.rate_limiter)

    def complete(self, reconciler: Reconciler) -> Controller:
        """Make the controller, its queue and the informers it needs; add it to the manager.

        The reconciler is called for every object, also for one that does not fit its model:
        its `client.get` then raises the DecodeError. Raises ConfigurationError when the name is
        taken.
        """
        registry = self.manager.registry
        controller = Controller(
            self.name,
            reconciler,
            queue=WorkQueue(self.name, rate_limiter=self.rate_limiter, registry=registry),
            sources=[self._own_source(), *map(self._source, self.others)],
            options=self.options,
            registry=registry,
        )
        self.manager.add(controller)
        return controller

    def _own_source(self) -> Source:
        informer = self.manager.informers.informer(self.kind.resource)
        return Source(informer, enqueue_self, predicate=self.predicate)

    def _source(self, watch: _Watch) -> Source:
        informer = self.manager.informers.informer(watch.kind.resource, labels=watch.labels)
        return Source(
            informer, self._handler(watch), predicate=watch.predicate, echoes=watch.echoes
        )

    def _handler(self, watch: _Watch) -> Handler:
        if watch.map_to is not None:
            return enqueue_mapped(watch.map_to)
        owners = self.manager.informers.informer(self.kind.resource)

        def is_current_uid(owner: Request, uid: str) -> bool:
            """Say yes also for an owner that is not cached: its event follows, or it is gone."""
            stored = owners.get(owner)
            return stored is None or stored.meta.uid == uid

        return enqueue_owner(self.kind.resource, is_current_uid=is_current_uid)
