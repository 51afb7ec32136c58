# SPDX-License-Identifier: Apache-2.0
"""Which Models of a group have to look again when another, or a pod of it, changes. Pure.

Requests to a Model are no news to its siblings: the Model itself hears of them, and claims the
GPUs if they make it the leader, which is news.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from api.flexinfer.v1alpha2.model_types import Model
from controllers.model import names
from controllers.model.member import group_of, member_of
from controllers.model.turns import holds_gpu, is_at_rest
from flexinfer.errors import DecodeError
from flexinfer.event import DeleteEvent, UpdateEvent
from flexinfer.kinds.deployment import Deployment
from flexinfer.kinds.pod import Pod
from flexinfer.reconcile import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from controllers.model.member import Member
    from flexinfer.cache.informer import Informer
    from flexinfer.event import Event
    from flexinfer.meta.envelope import StoredObject
    from flexinfer.meta.object import Object

    T = TypeVar("T", bound=Object)

MODELS_BY_GROUP = "gpu-group"
"""Index of the Model informer: namespace/name of the group that the spec names."""

PODS_BY_GROUP = "gpu-group"
"""Index of the pod informer: namespace/name of the group that the pod's label names."""


def labelled_groups(stored: StoredObject) -> Iterable[str]:
    """Return the group that an object's label names, as namespace/name."""
    group = stored.meta.labels.get(names.GROUP_LABEL, "")
    return (_key(stored, group),) if group else ()


class Siblings:
    """Find the members of a group in the informer of Models, to which it adds an index.

    Objects that do not fit their type belong to no group and are no news.
    """

    def __init__(self, models: Informer) -> None:
        self._models = models
        models.add_index(MODELS_BY_GROUP, self._groups_of_model)

    def of_model(self, stored: StoredObject) -> Iterable[Request]:
        """Return the other members of the Model's group."""
        return self._members(self._groups_of_model(stored), but=stored.meta.key)

    def of_child(self, stored: StoredObject) -> Iterable[Request]:
        """Return the members of the group that a pod or Deployment is of, but its own Model.

        It is of the group that its label names and of the one that its Model is in.
        """
        owner = Request(stored.meta.namespace, stored.meta.labels.get(names.MODEL_LABEL, ""))
        model = self._models.get(owner)
        groups = {*labelled_groups(stored), *(self._groups_of_model(model) if model else ())}
        return self._members(groups, but=owner)

    def hear_of_model(self, event: Event) -> bool:
        """Pass updates of a Model that may change who leads, or how siblings stand."""
        if not isinstance(event, UpdateEvent):
            return True
        return self._view(event.old) != self._view(event.new)

    def _members(self, groups: Iterable[str], *, but: Request) -> Iterable[Request]:
        found = (m.meta.key for g in groups for m in self._models.by_index(MODELS_BY_GROUP, g))
        return {key for key in found if key != but}

    def _groups_of_model(self, stored: StoredObject) -> Iterable[str]:
        # By the informer, which remembers the model for the reconcile that follows.
        model = _read(self._models.decode, Model, stored)
        group = group_of(model) if model else ""
        return (_key(stored, group),) if group else ()

    def _view(self, stored: StoredObject) -> tuple[str, Member, str | None] | None:
        model = _read(self._models.decode, Model, stored)
        if model is None:
            return None
        shared = model.status.shared_group
        member = replace(member_of(model), last_active=None)
        return group_of(model), member, shared.preempted_by if shared else None


def pod_went(event: Event) -> bool:
    """Pass events of a pod that no longer holds GPUs."""
    return _came_to(event, Pod, lambda pod: not holds_gpu(pod))


def deployment_rests(event: Event) -> bool:
    """Pass events of a Deployment that has come to rest at zero, or is gone."""
    return _came_to(event, Deployment, is_at_rest)


def _came_to(event: Event, kind: type[T], is_so: Callable[[T], bool]) -> bool:
    if not isinstance(event, UpdateEvent):
        return isinstance(event, DeleteEvent)
    old, new = (_read(lambda k, s: k.decode(s), kind, item) for item in (event.old, event.new))
    return new is not None and is_so(new) and not (old is not None and is_so(old))


def _read(
    decode: Callable[[type[T], StoredObject], T], kind: type[T], stored: StoredObject
) -> T | None:
    try:
        return decode(kind, stored)
    except DecodeError:
        return None  # its own reconcile reports it


def _key(stored: StoredObject, group: str) -> str:
    return str(Request(stored.meta.namespace, group))
