# SPDX-License-Identifier: Apache-2.0
"""From nodes and wishes to an accelerator, or to a sentence that says why there is none."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from api.flexinfer.v1alpha2.reasons import Reason
from flexinfer.kinds.condition import is_true
from internal.gpu.accelerator import CPU, Accelerator, Offer, Vendor
from internal.gpu.inventory import GPUs, gpus_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from api.flexinfer.v1alpha2.model_spec import Toleration
    from flexinfer.kinds.node import Node, Taint

# The taint of nodes kept for GPU work; every pod with GPUs tolerates it.
GPU_TAINT = ("dedicated", "gpu", "NoSchedule")
_KEEPS_AWAY = {"NoSchedule", "NoExecute"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Be what a Model asks of nodes; `vendor` None means whichever the nodes have."""

    vendor: Vendor | None = None
    count: int = 0
    node_selector: Mapping[str, str]
    tolerations: Sequence[Toleration] = ()

    @property
    def vendors(self) -> tuple[Vendor, ...]:
        """Return the vendors that would do."""
        return (self.vendor,) if self.vendor else (Vendor.NVIDIA, Vendor.AMD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Say why no accelerator was chosen, and what would cure it."""

    reason: Reason
    message: str


def detect(nodes: Iterable[Node], wish: Wish) -> Accelerator | Refusal:
    """Choose the accelerator that the nodes leave open to a pod of the Model.

    The architecture is empty when the nodes that would do have different ones; the memory is
    the largest of theirs. Without GPUs to place the answer is CPU, whatever the nodes.
    """
    if wish.count == 0 or wish.vendor is Vendor.CPU:
        return CPU
    fitting: list[GPUs] = []
    seen: Counter[str] = Counter()
    for node in nodes:
        offers, obstacle = _offers(node, wish)
        fitting += offers
        seen[obstacle] += 1
    vendors = sorted({gpus.vendor for gpus in fitting})
    match vendors:
        case []:
            return Refusal(reason=Reason.NO_MATCHING_NODES, message=_nothing(wish, seen))
        case [vendor]:
            return _accelerator(vendor, wish.count, fitting)
        case _:
            return Refusal(reason=Reason.AMBIGUOUS_GPU_VENDOR, message=_ambiguous(fitting))


def fitting_nodes(nodes: Iterable[Node], wish: Wish) -> int:
    """Count the nodes that can take a pod of the Model."""
    if wish.count:
        return sum(bool(_offers(node, wish)[0]) for node in nodes)
    return sum(_is_selected(node, wish) and not _obstacle(node, wish) for node in nodes)


def _accelerator(vendor: Vendor, count: int, fitting: Iterable[GPUs]) -> Accelerator:
    """Sum the nodes up, in an order that does not depend on theirs."""
    offers = sorted(
        (Offer(architecture=g.architecture, memory_mb=g.memory_mb) for g in fitting),
        key=lambda offer: (offer.architecture, offer.memory_mb or 0),
    )
    architectures = {offer.architecture for offer in offers}
    return Accelerator(
        vendor=vendor,
        count=count,
        architecture=architectures.pop() if len(architectures) == 1 else "",
        memory_mb=max((offer.memory_mb or 0 for offer in offers), default=0) or None,
        offers=tuple(offers),
    )


def _offers(node: Node, wish: Wish) -> tuple[Sequence[GPUs], str]:
    """Return what the node offers to the Model, else what stands in the way."""
    offers = [gpus for gpus in gpus_of(node) if gpus.vendor in wish.vendors]
    if not _is_selected(node, wish):
        return (), "without the labels of spec.nodeSelector"
    if not offers:
        return (), "without allocatable GPUs of that kind"
    if obstacle := _obstacle(node, wish):
        return (), obstacle
    enough = [gpus for gpus in offers if gpus.count >= wish.count]
    return enough, f"with fewer than {wish.count} allocatable GPUs"


def _is_selected(node: Node, wish: Wish) -> bool:
    labels = node.metadata.labels
    return all(labels.get(key) == value for key, value in wish.node_selector.items())


def _obstacle(node: Node, wish: Wish) -> str:
    """Return what keeps pods of the Model from the node, whatever it offers; empty for nothing."""
    if not is_true(node.status.conditions, "Ready"):
        return "not Ready"
    if node.spec.unschedulable:
        return "cordoned"
    if taint := next((t for t in node.spec.taints if not _tolerated(t, wish.tolerations)), None):
        return f"with the taint {taint.key}={taint.value}:{taint.effect}"
    return ""


def _tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    if taint.effect not in _KEEPS_AWAY or (taint.key, taint.value, taint.effect) == GPU_TAINT:
        return True
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Apply the scheduler's rule: no key with Exists tolerates everything, no effect any effect."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.operator == "Exists":
        return toleration.key in {"", taint.key}
    return (toleration.key, toleration.value) == (taint.key, taint.value)


def _nothing(wish: Wish, seen: Counter[str]) -> str:
    resources = " or ".join(vendor.resource for vendor in wish.vendors)
    labels = ",".join(f"{k}={v}" for k, v in sorted(wish.node_selector.items()))
    where = f" with the labels {labels}" if labels else ""
    found = "; ".join(f"{n} {obstacle}" for obstacle, n in sorted(seen.items()))
    return (
        f"No node can take a pod: looked for a Ready, schedulable node{where} that offers "
        f"{wish.count} {resources}; saw {seen.total()} nodes{f' ({found})' if found else ''}. "
        "Add such a node, uncordon one, or change spec.gpu, spec.nodeSelector or "
        "spec.tolerations"
    )


def _ambiguous(fitting: Iterable[GPUs]) -> str:
    counts = sorted(Counter(gpus.vendor for gpus in fitting).items())
    found = " and ".join(f"{n} of {v.display_name} ({v.resource})" for v, n in counts)
    return (
        f"spec.gpu.vendor is auto, and nodes of more than one vendor fit: {found}. Set "
        f"spec.gpu.vendor to {' or '.join(v for v, _ in counts)}, or narrow spec.nodeSelector to "
        "one of them"
    )
