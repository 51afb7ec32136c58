# SPDX-License-Identifier: Apache-2.0
"""What the Model controller hears of: Models, their children, pods and claims."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from api.flexinfer.v1alpha2.model_types import Model
from controllers.model import names
from controllers.model.decision import claim_of
from controllers.model.desired import shm_size
from controllers.model.reconciler import PODS_BY_MODEL, ModelReconciler
from flexinfer.builder import controller_for
from flexinfer.errors import DecodeError
from flexinfer.kinds.deployment import Deployment
from flexinfer.kinds.node import Node
from flexinfer.kinds.persistentvolumeclaim import PersistentVolumeClaim
from flexinfer.kinds.pod import Pod
from flexinfer.kinds.service import Service
from flexinfer.meta.selector import Selector
from flexinfer.predicate import annotations_changed, any_of, generation_changed, labels_changed
from flexinfer.reconcile import Request
from flexinfer.recorder import announce

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from flexinfer.controller import Controller
    from flexinfer.manager import Manager
    from flexinfer.meta.envelope import StoredObject

_MODELS_BY_CLAIM = "claim"
_MODEL_PODS = Selector.parse(names.MODEL_LABEL)


def set_up(manager: Manager, *, environment: Mapping[str, str] | None = None) -> Controller:
    """Add the Model controller to *manager*; its name is `model`.

    Only pods with the label `flexinfer.ai/model` are kept in the cache. *environment* holds the
    default images; the process's own unless given. Raises ConfigurationError for a variable that
    no pod could use.
    """
    environment = os.environ if environment is None else environment
    shm_size(environment)
    informers = manager.informers
    informers.informer(Node.resource)
    informers.informer(Pod.resource, labels=_MODEL_PODS).add_index(PODS_BY_MODEL, _model_keys)
    models = informers.informer(Model.resource)

    def claim_keys(stored: StoredObject) -> Iterable[str]:
        try:
            # By the informer, which remembers the model for the reconcile that follows.
            name = claim_of(models.decode(Model, stored))
        except DecodeError:
            return ()  # the reconciler says so in the Model's status
        return (str(Request(stored.meta.namespace, name)),) if name else ()

    def models_with_claim(claim: StoredObject) -> Iterable[Request]:
        return (model.meta.key for model in models.by_index(_MODELS_BY_CLAIM, str(claim.meta.key)))

    models.add_index(_MODELS_BY_CLAIM, claim_keys)
    reconciler = ModelReconciler(
        manager.client,
        environment=environment,
        on_reverted=announce(manager.recorder("model-controller")),
    )
    return (
        controller_for(
            manager,
            Model,
            predicate=any_of(generation_changed, labels_changed, annotations_changed),
        )
        .owns(Deployment, Service)
        .watches(Pod, map_to=_model_of, labels=_MODEL_PODS)
        .watches(PersistentVolumeClaim, map_to=models_with_claim)
        .complete(reconciler)
    )


def _model_of(pod: StoredObject) -> Iterable[Request]:
    name = pod.meta.labels.get(names.MODEL_LABEL, "")
    return (Request(pod.meta.namespace, name),) if name else ()


def _model_keys(pod: StoredObject) -> Iterable[str]:
    return map(str, _model_of(pod))
