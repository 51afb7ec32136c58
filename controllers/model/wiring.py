# SPDX-License-Identifier: Apache-2.0
"""What the Model controller hears of: Models, their children, pods, claims and nodes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from api.flexinfer.v1alpha2.model_types import Model
from controllers.model import names, siblings
from controllers.model.decision import claims_of
from controllers.model.desired import shm_size
from controllers.model.lookup import PODS_BY_MODEL
from controllers.model.metrics import ModelMetrics
from controllers.model.nodewatch import Placements, offer_changed
from controllers.model.reconciler import ModelReconciler
from controllers.model.siblings import Siblings
from controllers.model.waking import last_active_changed
from flexinfer.builder import controller_for
from flexinfer.errors import DecodeError
from flexinfer.kinds.deployment import Deployment
from flexinfer.kinds.job import Job
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

    from flexinfer.cache.informer import Informer
    from flexinfer.controller import Controller
    from flexinfer.handler import MapFunction
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
    pods = informers.informer(Pod.resource, labels=_MODEL_PODS)
    pods.add_index(PODS_BY_MODEL, _model_keys)
    pods.add_index(siblings.PODS_BY_GROUP, siblings.labelled_groups)
    models = informers.informer(Model.resource)
    group = Siblings(models)
    recorder = manager.recorder("model-controller")
    reconciler = ModelReconciler(
        manager.client,
        environment=environment,
        metrics=ModelMetrics(registry=manager.registry),
        recorder=recorder,
        on_reverted=announce(recorder),
    )
    changed = any_of(generation_changed, labels_changed, annotations_changed, last_active_changed)
    return (
        controller_for(manager, Model, predicate=changed)
        .owns(Deployment, Service, Job)
        .watches(Pod, map_to=_model_of, labels=_MODEL_PODS)
        .watches(PersistentVolumeClaim, map_to=_by_claim(models))
        .watches(Node, map_to=Placements(models).of_node, predicate=offer_changed)
        .watches(Model, map_to=group.of_model, predicate=group.hear_of_model)
        .watches(Pod, map_to=group.of_child, predicate=siblings.pod_went, labels=_MODEL_PODS)
        .watches(Deployment, map_to=group.of_child, predicate=siblings.deployment_rests)
        .complete(reconciler)
    )


def _by_claim(models: Informer) -> MapFunction:
    """Index *models* by the claims that they use; return what finds them by a claim."""

    def claim_keys(stored: StoredObject) -> Iterable[str]:
        try:
            # By the informer, which remembers the model for the reconcile that follows.
            claims = claims_of(models.decode(Model, stored))
        except DecodeError:
            return ()  # the reconciler says so in the Model's status
        return [str(Request(stored.meta.namespace, name)) for name in claims]

    def models_with(claim: StoredObject) -> Iterable[Request]:
        found = models.by_index(_MODELS_BY_CLAIM, str(claim.meta.key))
        return [model.meta.key for model in found]

    models.add_index(_MODELS_BY_CLAIM, claim_keys)
    return models_with


def _model_of(pod: StoredObject) -> Iterable[Request]:
    name = pod.meta.labels.get(names.MODEL_LABEL, "")
    return (Request(pod.meta.namespace, name),) if name else ()


def _model_keys(pod: StoredObject) -> Iterable[str]:
    return map(str, _model_of(pod))
