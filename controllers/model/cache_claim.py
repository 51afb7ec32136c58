# SPDX-License-Identifier: Apache-2.0
"""The claim that is made for a Model: what it asks for, whose it is, what it cannot become. Pure.

A claim goes with its Model by an owner reference. With `spec.cache.retain` it has none, and a label
says so; a Model of the same name takes over a claim without a controller that carries its
labels, and no other claim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from api.flexinfer.v1alpha2.model_spec import CacheSpec
from controllers.model import names
from flexinfer.errors import ConfigurationError
from flexinfer.kinds.persistentvolumeclaim import PersistentVolumeClaim
from flexinfer.meta.quantity import Quantity

if TYPE_CHECKING:
    from api.flexinfer.v1alpha2.model_types import Model
    from flexinfer.meta.envelope import ObjectMeta, Tree


ACCESS_MODES = ("ReadWriteOnce",)
"""How a claim that is made for a Model can be mounted: what every storage class offers."""

# Labels that tell whose a claim without an owner is.
_OURS = ("app.kubernetes.io/managed-by", names.MODEL_LABEL)


def claim(model: Model, name: str, *, size: str = "") -> Tree:
    """Return the claim *name*; *size* stands in for what the spec asks for, if that was refused.

    To be applied with the Model as its owner, or with none when `is_retained`.
    """
    spec = model.spec.cache or CacheSpec()
    retained = {names.RETAINED_LABEL: "true"} if spec.retain else {}
    return {
        "apiVersion": PersistentVolumeClaim.resource.api_version,
        "kind": PersistentVolumeClaim.resource.kind,
        "metadata": {
            "name": name,
            "namespace": model.metadata.namespace,
            "labels": names.cache_labels(model) | retained,
        },
        "spec": {
            "accessModes": list(ACCESS_MODES),
            "storageClassName": spec.storage_class,
            "resources": {"requests": {"storage": size or str(spec.size)}},
        },
    }


def is_retained(model: Model) -> bool:
    """Tell whether the claim outlives the Model."""
    return bool(model.spec.cache and model.spec.cache.retain)


def refusal(model: Model, live: ObjectMeta) -> str:
    """Say why the claim *live* is not the Model's to change, in a sentence with the cure; or ''."""
    controller = live.controller
    if controller is not None and controller.uid == model.metadata.uid:
        return ""
    if controller is None and _carries_labels(model, live):
        return ""
    whose = (
        f"is controlled by {controller.kind} {controller.name}, which is not this Model"
        if controller
        else "exists already and was not made for this Model"
    )
    return (
        f"PersistentVolumeClaim {live.name} is left untouched: it {whose}; name it in "
        "spec.cache.pvcName to use it as it is, or delete it"
    )


def handover(model: Model, live: ObjectMeta) -> list[Tree]:
    """Return the JSON patch that makes the Model the owner of *live*, or no longer; else [].

    For a claim without `refusal`, before the claim is applied; what the applier remembers of the
    claim, with and without the Model as its owner, has to be forgotten then. The patch fails when
    the claim has changed since.
    """
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": live.resource_version}
    owners = [owner.uid for owner in live.owner_references]
    is_owned = model.metadata.uid in owners
    if is_owned == (not is_retained(model)):
        return []
    if is_owned:
        index = owners.index(model.metadata.uid)
        return [test, {"op": "remove", "path": f"/metadata/ownerReferences/{index}"}]
    reference = _reference(model)
    if owners:
        return [test, {"op": "add", "path": "/metadata/ownerReferences/-", "value": reference}]
    return [test, {"op": "add", "path": "/metadata/ownerReferences", "value": [reference]}]


def shrink_note(model: Model, live: PersistentVolumeClaim) -> str:
    """Say that the claim stays larger than asked for; empty when it does not."""
    size = (model.spec.cache or CacheSpec()).size
    asked = _amount(live.spec.resources.requests)
    if asked is None or size >= asked:
        return ""
    return (
        f"spec.cache.size {size} is less than the {asked} of PersistentVolumeClaim "
        f"{live.metadata.name}: a claim cannot shrink; set the size to {asked}, or delete the "
        "claim to have it made anew"
    )


def unbound_growth_note(model: Model, live: PersistentVolumeClaim) -> str:
    """Say that the claim grows later: one that is not bound cannot change; empty if it need not."""
    size = (model.spec.cache or CacheSpec()).size
    asked = _amount(live.spec.resources.requests)
    if live.is_bound or asked is None or size <= asked:
        return ""
    return f"PersistentVolumeClaim {live.metadata.name} grows to {size} once it is bound"


def growth_note(model: Model, live: PersistentVolumeClaim) -> str:
    """Say that the claim is about to grow; empty when it is not."""
    size = (model.spec.cache or CacheSpec()).size
    has = _amount(live.status.capacity)
    if has is None or has >= size:
        return ""
    return f"PersistentVolumeClaim {live.metadata.name} has {has} and is to grow to {size}"


def _carries_labels(model: Model, live: ObjectMeta) -> bool:
    wanted = names.cache_labels(model)
    return all(live.labels.get(label) == wanted[label] for label in _OURS)


def _reference(model: Model) -> Tree:
    return {
        "apiVersion": model.resource.api_version,
        "kind": model.resource.kind,
        "name": model.metadata.name,
        "uid": model.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _amount(amounts: dict[str, str]) -> Quantity | None:
    try:
        return Quantity.parse(amounts["storage"])
    except (KeyError, ConfigurationError):
        return None
