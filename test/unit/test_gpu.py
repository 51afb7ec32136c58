# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.flexinfer.v1alpha2.model_spec import Toleration
from api.flexinfer.v1alpha2.reasons import Reason
from flexinfer.kinds.node import Node
from flexinfer.meta.envelope import meta_from
from internal.gpu.accelerator import CPU, Accelerator, Offer, Vendor
from internal.gpu.architecture import by_prefix, usual_memory_mb
from internal.gpu.detection import Refusal, Wish, detect
from internal.gpu.inventory import gpus_of

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

    from flexinfer.meta.envelope import Tree

HOPPER = {"nvidia.com/gpu.compute.major": "9", "nvidia.com/gpu.compute.minor": "0"}
ADA = {"nvidia.com/gpu.compute.major": "8", "nvidia.com/gpu.compute.minor": "9"}
MAXWELL = {"nvidia.com/gpu.compute.major": "5", "nvidia.com/gpu.compute.minor": "2"}
MI300 = {"gpu.amd.com/gpu-architecture": "gfx942"}
NAVI = {"gpu.amd.com/gpu-architecture": "gfx1100"}
EAST = {"zone": "east"}


def node(
    name: str = "n",
    *,
    gpus: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    ready: str = "True",
    cordoned: bool = False,
    taints: Sequence[Tree] = (),
) -> Node:
    return Node.model_validate(
        {
            "metadata": meta_from({"name": name, "labels": labels or {}}),
            "spec": {"unschedulable": cordoned, "taints": taints},
            "status": {
                # Capacity is what the machine has; only what is allocatable can be had.
                "capacity": {"nvidia.com/gpu": "8", "amd.com/gpu": "8"},
                "allocatable": gpus or {},
                "conditions": [{"type": "Ready", "status": ready}],
            },
        }
    )


def nvidia(name: str = "nv", count: int = 8, **more: object) -> Node:
    more.setdefault("labels", ADA)
    return node(name, gpus={"nvidia.com/gpu": str(count)}, **more)  # type: ignore[arg-type] # keywords of node()


def amd(name: str = "amd", count: int = 8, **more: object) -> Node:
    more.setdefault("labels", MI300)
    return node(name, gpus={"amd.com/gpu": str(count)}, **more)  # type: ignore[arg-type] # keywords of node()


def wish(vendor: Vendor | None = None, count: int = 1, **more: object) -> Wish:
    more.setdefault("node_selector", {})
    return Wish(vendor=vendor, count=count, **more)  # type: ignore[arg-type] # keywords of Wish


def chosen(nodes: Sequence[Node], asked: Wish) -> Accelerator:
    found = detect(nodes, asked)
    assert isinstance(found, Accelerator), found
    return found


def refused(nodes: Sequence[Node], asked: Wish) -> Refusal:
    found = detect(nodes, asked)
    assert isinstance(found, Refusal)
    return found


def test_the_architecture_has_major_and_minor() -> None:
    found = chosen([nvidia()], wish(count=2))
    assert (found.vendor, found.count, found.architecture) == (Vendor.NVIDIA, 2, "sm_89")


@pytest.mark.parametrize(
    ("some", "asked", "expected"),
    [
        ([], wish(count=0), (Vendor.CPU, "")),
        ([], wish(Vendor.CPU, count=0), (Vendor.CPU, "")),
        ([nvidia()], wish(Vendor.NVIDIA), (Vendor.NVIDIA, "sm_89")),
        ([nvidia(labels=HOPPER)], wish(), (Vendor.NVIDIA, "sm_90")),
        ([nvidia(labels={"flexinfer.ai/gpu.arch": "sm_89"})], wish(), (Vendor.NVIDIA, "sm_89")),
        ([nvidia(labels=MAXWELL)], wish(Vendor.NVIDIA), (Vendor.NVIDIA, "sm_52")),
        ([amd(labels=NAVI)], wish(Vendor.AMD), (Vendor.AMD, "gfx1100")),
        ([amd(labels=NAVI)], wish(), (Vendor.AMD, "gfx1100")),
        ([amd(labels={"flexinfer.ai/gpu.arch": "gfx906"})], wish(), (Vendor.AMD, "gfx906")),
        ([amd(labels={"amd.com/gpu.family.GC_11_0_0": "1"})], wish(), (Vendor.AMD, "gfx1100")),
        ([amd(labels={"amd.com/gpu.family.GC_10_3_6": "1"})], wish(), (Vendor.AMD, "gfx1036")),
        ([amd(labels={"gpu.amd.com/model": "Radeon_7900"})], wish(), (Vendor.AMD, "gfx1100")),
        ([nvidia(), amd()], wish(), Reason.AMBIGUOUS_GPU_VENDOR),
        ([nvidia(), amd()], wish(Vendor.AMD), (Vendor.AMD, "gfx942")),
        ([nvidia(), amd(ready="False")], wish(), (Vendor.NVIDIA, "sm_89")),
        ([nvidia(ready="False")], wish(Vendor.NVIDIA), Reason.NO_MATCHING_NODES),
        ([], wish(Vendor.NVIDIA), Reason.NO_MATCHING_NODES),
        ([node()], wish(), Reason.NO_MATCHING_NODES),
        (
            [amd(labels=NAVI | EAST)],
            wish(Vendor.AMD, node_selector={"zone": "west"}),
            Reason.NO_MATCHING_NODES,
        ),
        (
            [amd("other"), amd("target", labels=NAVI | EAST)],
            wish(Vendor.AMD, node_selector=EAST),
            (Vendor.AMD, "gfx1100"),
        ),
    ],
)
def test_detect_gpu(
    some: Sequence[Node], asked: Wish, expected: tuple[Vendor, str] | Reason
) -> None:
    if isinstance(expected, Reason):
        assert refused(some, asked).reason is expected
        return
    found = chosen(some, asked)
    assert (found.vendor, found.architecture) == expected


def test_without_gpus_the_nodes_do_not_matter() -> None:
    assert detect([], wish(count=0)) == CPU
    assert detect([nvidia()], wish(Vendor.CPU, count=0)) == CPU


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (nvidia(ready="False"), "1 not Ready"),
        (nvidia(ready="Unknown"), "1 not Ready"),
        (nvidia(cordoned=True), "1 cordoned"),
        (nvidia(count=1), "1 with fewer than 2 allocatable GPUs"),
        (node(), "1 without allocatable GPUs of that kind"),
        (amd(), "1 without allocatable GPUs of that kind"),
        (
            nvidia(taints=[{"key": "team", "value": "a", "effect": "NoSchedule"}]),
            "1 with the taint team=a:NoSchedule",
        ),
    ],
)
def test_a_node_that_takes_no_pod_does_not_decide(broken: Node, words: str) -> None:
    refusal = refused([broken], wish(Vendor.NVIDIA, count=2))
    assert refusal.reason is Reason.NO_MATCHING_NODES
    assert words in refusal.message
    assert "looked for a Ready, schedulable node that offers 2 nvidia.com/gpu" in refusal.message
    assert isinstance(detect([broken, nvidia("good")], wish(Vendor.NVIDIA, count=2)), Accelerator)


def test_an_empty_cluster_is_said_to_have_no_nodes() -> None:
    assert "saw 0 nodes. Add" in refused([], wish()).message


def test_the_node_selector_narrows() -> None:
    nodes = [nvidia("a", labels={**ADA, "pool": "a"}), amd("b", labels={**MI300, "pool": "b"})]
    assert refused(nodes, wish()).reason is Reason.AMBIGUOUS_GPU_VENDOR
    found = chosen(nodes, wish(node_selector={"pool": "b"}))
    assert (found.vendor, found.architecture) == (Vendor.AMD, "gfx942")
    refusal = refused(nodes, wish(node_selector={"pool": "c"}))
    assert "with the labels pool=c" in refusal.message
    assert "2 without the labels of spec.nodeSelector" in refusal.message


def test_two_vendors_are_ambiguous_only_when_both_could_take_the_pod() -> None:
    refusal = refused([nvidia(), nvidia("nv2"), amd()], wish())
    assert refusal.message == (
        "spec.gpu.vendor is auto, and nodes of more than one vendor fit: 1 of AMD (amd.com/gpu) "
        "and 2 of NVIDIA (nvidia.com/gpu). Set spec.gpu.vendor to amd or nvidia, or narrow "
        "spec.nodeSelector to one of them"
    )
    assert detect([nvidia(), amd(cordoned=True)], wish()) == detect([nvidia()], wish())
    assert isinstance(detect([nvidia(), amd()], wish(Vendor.AMD)), Accelerator)


def test_nodes_that_differ_leave_the_architecture_open() -> None:
    found = chosen([nvidia("h", labels=HOPPER), nvidia()], wish())
    assert found.architecture == ""
    assert found.architectures == ("sm_89", "sm_90")
    assert found.offers == (Offer(architecture="sm_89"), Offer(architecture="sm_90"))


def test_the_memory_is_the_largest_of_the_nodes_that_would_do() -> None:
    small, large = ({**ADA, "nvidia.com/gpu.memory": m} for m in ("24000", "48000"))
    huge = nvidia("cordoned", labels={**ADA, "nvidia.com/gpu.memory": "80000"}, cordoned=True)
    found = chosen([nvidia(labels=large), nvidia("s", labels=small), huge, nvidia("u")], wish())
    assert found.memory_mb == 48000
    assert [offer.memory_mb for offer in found.offers] == [None, 24000, 48000]
    assert chosen([nvidia()], wish()).memory_mb is None


def test_vendors_have_a_resource_and_a_name() -> None:
    assert (Vendor.AMD.resource, Vendor.AMD.display_name) == ("amd.com/gpu", "AMD")


def test_hardware_that_nobody_looked_up_has_its_own_architecture() -> None:
    assert Accelerator(vendor=Vendor.AMD, architecture="gfx942").architectures == ("gfx942",)


@pytest.mark.parametrize(
    ("taint", "toleration", "fits"),
    [
        (("dedicated", "gpu", "NoSchedule"), None, True),
        (("dedicated", "gpu", "NoExecute"), None, False),
        (("dedicated", "other", "NoSchedule"), None, False),
        (("a", "b", "PreferNoSchedule"), None, True),
        (("a", "b", "NoSchedule"), {"key": "a", "value": "b"}, True),
        (("a", "b", "NoSchedule"), {"key": "a", "value": "c"}, False),
        (("a", "b", "NoSchedule"), {"key": "a", "operator": "Exists"}, True),
        (("a", "b", "NoExecute"), {"operator": "Exists"}, True),
        (("a", "b", "NoExecute"), {"operator": "Exists", "effect": "NoSchedule"}, False),
    ],
)
def test_taints_and_tolerations(
    taint: tuple[str, str, str], toleration: Tree | None, *, fits: bool
) -> None:
    key, value, effect = taint
    tainted = nvidia(taints=[{"key": key, "value": value, "effect": effect}])
    tolerations = [Toleration.model_validate(toleration)] if toleration else []
    found = detect([tainted], wish(tolerations=tolerations))
    assert isinstance(found, Accelerator) is fits


@pytest.mark.parametrize(
    ("labels", "architecture"),
    [
        ({**ADA, "flexinfer.ai/gpu.arch": "sm_50"}, "sm_89"),
        ({"nvidia.com/gpu.compute.major": "8"}, ""),
        ({"flexinfer.ai/gpu.arch": "sm_75"}, "sm_75"),
        ({}, ""),
    ],
)
def test_nvidia_architectures(labels: Mapping[str, str], architecture: str) -> None:
    (gpus,) = gpus_of(nvidia(labels=labels))
    assert gpus.architecture == architecture


@pytest.mark.parametrize(
    ("labels", "architecture"),
    [
        (MI300, "gfx942"),
        ({"flexinfer.ai/gpu.arch": "gfx906"}, "gfx906"),
        ({"amd.com/gpu.family.GC_11_0_0": ""}, "gfx1100"),
        ({"amd.com/gpu.family.GC_10_3_6": ""}, "gfx1036"),
        ({"gpu.amd.com/model": "Radeon_RX_7900_XTX"}, "gfx1100"),
        ({"gpu.amd.com/model": "unknown"}, ""),
    ],
)
def test_amd_architectures(labels: Mapping[str, str], architecture: str) -> None:
    (gpus,) = gpus_of(amd(labels=labels))
    assert gpus.architecture == architecture


def test_product_and_memory_come_from_the_labels() -> None:
    labels = {**ADA, "nvidia.com/gpu.product": "L40S", "nvidia.com/gpu.memory": "46068"}
    (gpus,) = gpus_of(nvidia(labels=labels))
    assert (gpus.product, gpus.memory_mb) == ("L40S", 46068)


@pytest.mark.parametrize("label", ["", "much", "-1", "99999999999", "²", "٣"])
def test_a_memory_that_no_gpu_has_is_unknown(label: str) -> None:
    (gpus,) = gpus_of(nvidia(labels={"nvidia.com/gpu.memory": label}))
    assert gpus.memory_mb is None


@pytest.mark.parametrize(
    ("labels", "memory"),
    [
        ({**NAVI, "amd.com/gpu.vram": "20G"}, 20480),
        ({**NAVI, "amd.com/gpu.vram.20G": "2"}, 20480),
        ({**NAVI, "beta.amd.com/gpu.vram.16G": "1"}, 16384),
        ({**NAVI, "amd.com/gpu.vram.48G": "1", "amd.com/gpu.vram.24G": "1"}, 24576),
        ({**NAVI, "amd.com/gpu.vram": "20G", "flexinfer.ai/gpu.vram": "24Gi"}, 20480),
        ({**NAVI, "flexinfer.ai/gpu.vram": "32Gi"}, 32768),
        ({**NAVI, "flexinfer.ai/gpu.vram": "many"}, 24576),
        ({**NAVI, "flexinfer.ai/gpu.vram": "1e100"}, 24576),
        ({**NAVI, "amd.com/gpu.vram": "0G", "flexinfer.ai/gpu.vram": "0"}, 24576),
        (NAVI, 24576),
        ({"gpu.amd.com/gpu-architecture": "gfx1101"}, 24576),
        ({"gpu.amd.com/gpu-architecture": "gfx90a"}, 65536),
        (MI300, 196608),
        ({"gpu.amd.com/gpu-architecture": "gfx906"}, 16384),
        ({"gpu.amd.com/gpu-architecture": "gfx1036"}, None),
        ({}, None),
    ],
)
def test_the_memory_of_amd_gpus(labels: Mapping[str, str], memory: int | None) -> None:
    (gpus,) = gpus_of(amd(labels=labels))
    assert gpus.memory_mb == memory


@pytest.mark.parametrize(
    ("labels", "memory"),
    [
        ({**MAXWELL, "nvidia.com/gpu.memory": "12288"}, 12288),
        (MAXWELL, 6144),
        ({**MAXWELL, "flexinfer.ai/gpu.vram": "4Gi"}, 4096),
        ({"flexinfer.ai/gpu.arch": "sm_50"}, 6144),
        (HOPPER, None),
    ],
)
def test_the_memory_of_nvidia_gpus(labels: Mapping[str, str], memory: int | None) -> None:
    (gpus,) = gpus_of(nvidia(labels=labels))
    assert gpus.memory_mb == memory


prefixes = st.text("abc", min_size=1, max_size=4)


@given(st.dictionaries(prefixes, st.integers(), max_size=6), st.text("abc", max_size=6))
def test_the_longest_prefix_decides(table: dict[str, int], name: str) -> None:
    expected = next((table[name[:n]] for n in range(len(name), 0, -1) if name[:n] in table), None)
    assert by_prefix(table, name) == expected


def test_an_unknown_architecture_has_no_usual_memory() -> None:
    assert usual_memory_mb("") is usual_memory_mb("gfx9999") is None


def test_an_amount_that_is_none_offers_nothing() -> None:
    assert gpus_of(node(gpus={"nvidia.com/gpu": "many"})) == ()
    assert gpus_of(node(gpus={"nvidia.com/gpu": "0"})) == ()


nodes = st.lists(
    st.builds(
        lambda make, **more: make(**more),
        st.sampled_from([nvidia, amd]),
        count=st.integers(0, 8),
        ready=st.sampled_from(["True", "False", "Unknown"]),
        cordoned=st.booleans(),
        labels=st.sampled_from([ADA, HOPPER, MI300, {}]),
    ),
    max_size=6,
)


@given(nodes, st.sampled_from([None, Vendor.NVIDIA, Vendor.AMD]), st.integers(1, 8), st.randoms())
def test_the_order_of_nodes_does_not_matter(
    some: list[Node], vendor: Vendor | None, count: int, shuffler: random.Random
) -> None:
    asked = wish(vendor, count)
    first = detect(some, asked)
    shuffled = list(some)
    shuffler.shuffle(shuffled)
    assert detect(shuffled, asked) == first
    if isinstance(first, Accelerator):
        assert vendor in {None, first.vendor}
        assert first.count == count
