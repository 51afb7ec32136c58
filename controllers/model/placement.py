# SPDX-License-Identifier: Apache-2.0
"""Where a Model's pods are sent, and when that is decided anew. Pure.

What nodes have a say in (vendor, architecture, how strictly replicas keep apart) is decided once
and recorded on the Deployment. It is decided anew when the pods' template changes for another
reason, when there are no replicas, or when a pod has found no node for half a minute. So nodes
that come, go or are cordoned never restart pods that serve.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING

from controllers.model import names
from controllers.model.pods import moment
from flexinfer.errors import FlexInferError
from flexinfer.kinds.condition import find
from flexinfer.meta.envelope import decode_tree, encode_sorted
from internal.gpu.accelerator import Accelerator, Vendor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flexinfer.kinds.deployment import Deployment
    from flexinfer.kinds.pod import Pod
    from flexinfer.meta.envelope import Tree

# How long the scheduler may search before its answer counts as final.
_PATIENCE = timedelta(seconds=30)
_SHARED_MODES = {"ReadWriteMany", "ReadOnlyMany"}
_HASH_DIGITS = 16


class Spread(StrEnum):
    """Say how strictly the replicas of a Model keep to nodes of their own."""

    REQUIRED = "required"
    PREFERRED = "preferred"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Be what nodes had a say in when the pods' template was written."""

    accelerator: Accelerator
    spread: Spread

    def encode(self) -> str:
        """Return it as an annotation."""
        accelerator = self.accelerator
        return encode_sorted(
            {
                "vendor": accelerator.vendor,
                "count": accelerator.count,
                "architecture": accelerator.architecture,
                "spread": self.spread,
            }
        ).decode()

    @classmethod
    def of(cls, deployment: Deployment) -> Placement | None:
        """Read what is recorded on *deployment*; None when that is nothing we could have said."""
        text = deployment.metadata.annotations.get(names.PLACEMENT_ANNOTATION, "")
        try:
            tree = decode_tree(text.encode())
            accelerator = Accelerator(
                vendor=Vendor(tree["vendor"]),
                count=int(tree["count"]),
                architecture=str(tree["architecture"]),
            )
            return cls(accelerator=accelerator, spread=Spread(tree["spread"]))
        except (FlexInferError, KeyError, TypeError, ValueError):
            return None


def choose_spread(
    replicas: int, fitting: int, claim: str, modes: Sequence[str] | None
) -> tuple[Spread, str]:
    """Decide how strictly *replicas* keep apart, and say so where they may have to share a node.

    *fitting* is how many nodes can take a pod; *modes* are the access modes of *claim*, None when
    nobody knows them yet or there is no claim. A rule that cannot be met would leave replicas
    without a place for ever, so it then becomes a wish. One replica has nobody to keep from; its
    rule is a wish as well, so that adding a second one later changes no pod.
    """
    if replicas <= 1:
        return Spread.PREFERRED, ""
    if modes is not None and _SHARED_MODES.isdisjoint(modes):
        return Spread.PREFERRED, (
            f"PersistentVolumeClaim {claim} has {', '.join(modes) or 'no access mode'}, so that "
            "one node at a time can mount it and replicas may share a node; use ReadWriteMany or "
            "ReadOnlyMany to spread them"
        )
    if fitting < replicas:
        nodes = "1 node fits" if fitting == 1 else f"{fitting} nodes fit"
        return Spread.PREFERRED, (
            f"{nodes} {replicas} replicas, so that replicas may share a node; "
            "add nodes to spread them"
        )
    return Spread.REQUIRED, ""


def template_hash(template: Tree) -> str:
    """Return what tells whether two templates make the same pods."""
    return sha256(encode_sorted(template)).hexdigest()[:_HASH_DIGITS]


def is_same_template(deployment: Deployment, intent: Tree) -> bool:
    """Tell whether *deployment* was last applied with the pods of *intent*."""
    recorded = deployment.metadata.annotations.get(names.TEMPLATE_ANNOTATION)
    return recorded == template_hash(intent["spec"]["template"])


def patience_ends(pods: Iterable[Pod]) -> datetime | None:
    """Return when the scheduler has searched long enough for the pod that waits longest."""
    since = [at for pod in pods if (at := _unplaced_since(pod)) is not None]
    return min(since) + _PATIENCE if since else None


def _unplaced_since(pod: Pod) -> datetime | None:
    scheduled = find(pod.status.conditions, "PodScheduled")
    if scheduled is None or scheduled.status != "False":
        return None
    # Other schedulers may leave it out; the pod's own message still shows.
    return moment(scheduled.last_transition_time)
