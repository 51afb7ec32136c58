# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.flexinfer.v1alpha2.reasons import Reason
from internal.gpu.accelerator import CPU, Accelerator, Offer, Vendor
from internal.gpu.caveat import CaveatReason
from internal.gpu.detection import Refusal
from internal.gpu.vram import fit


def gpus(*memories: int | None, count: int = 1) -> Accelerator:
    """Give one node for each of *memories*."""
    known = [memory for memory in memories if memory]
    return Accelerator(
        vendor=Vendor.AMD,
        count=count,
        memory_mb=max(known, default=None),
        offers=tuple(Offer(memory_mb=memory) for memory in memories),
    )


NAVI = 24576
FITS, WARNS, REFUSED = "fits", "warns", "refused"


def outcome(estimate: int | None, accelerator: Accelerator) -> str:
    found = fit(estimate, accelerator)
    if isinstance(found, Refusal):
        assert found.reason is Reason.VRAM_INSUFFICIENT
        return REFUSED
    assert all(caveat.reason is CaveatReason.VRAM_PRESSURE for caveat in found)
    return WARNS if found else FITS


@pytest.mark.parametrize(
    ("estimate", "accelerator", "expected"),
    [
        (None, gpus(NAVI), FITS),
        (0, gpus(NAVI), FITS),
        (-100, gpus(NAVI), FITS),
        (12000, gpus(NAVI), FITS),
        (21000, gpus(NAVI), WARNS),
        (24000, gpus(NAVI), REFUSED),
        (99999, gpus(None), FITS),
        (99999, CPU, FITS),
        (40000, gpus(NAVI, count=2), WARNS),
        (47000, gpus(NAVI, count=2), REFUSED),
        (80, gpus(100), FITS),
        (81, gpus(100), WARNS),
        (95, gpus(100), WARNS),
        (96, gpus(100), REFUSED),
        (50, gpus(40, 100), WARNS),
        (96, gpus(40, 100), REFUSED),
        (96, gpus(None, 100), WARNS),
        (96, Accelerator(vendor=Vendor.AMD, count=1, memory_mb=100), REFUSED),
    ],
)
def test_validate_vram_fit(estimate: int | None, accelerator: Accelerator, expected: str) -> None:
    assert outcome(estimate, accelerator) == expected


def test_a_refusal_names_estimate_capacity_and_cure() -> None:
    found = fit(47000, gpus(NAVI, count=2))
    assert isinstance(found, Refusal)
    assert found.message == (
        "spec.gpu.vramEstimateMB 47000 is more than 95 % of the 49152 MB that 2 GPUs of the "
        "largest fitting node have; raise spec.gpu.count, use nodes whose GPUs have more memory, "
        "or serve a smaller or quantized model and lower the estimate"
    )


def test_a_warning_says_how_near_it_is_and_where_it_is_too_little() -> None:
    found = fit(21000, gpus(NAVI, 16384, None))
    assert isinstance(found, tuple)
    (caveat,) = found
    assert caveat.text == (
        "spec.gpu.vramEstimateMB 21000 is 85 % of the 24576 MB that 1 GPU has: long prompts or "
        "many requests at once may exhaust it; on 1 of 3 fitting nodes 1 GPU has too little for "
        "spec.gpu.vramEstimateMB 21000 (the least is 16384 MB): keep pods off them with "
        "spec.nodeSelector"
    )


amounts = st.integers(1, 1000)


@given(amounts, st.lists(amounts, min_size=1, max_size=4), st.integers(1, 8))
def test_only_what_no_node_can_hold_is_refused(
    estimate: int, memories: list[int], count: int
) -> None:
    holds = [estimate * 100 <= memory * count * 95 for memory in memories]
    is_refused = outcome(estimate, gpus(*memories, count=count)) == REFUSED
    assert is_refused is not any(holds)
    if not is_refused and not all(holds):
        assert outcome(estimate, gpus(*memories, count=count)) == WARNS


@given(amounts, amounts, amounts, st.integers(1, 8))
def test_a_larger_estimate_never_fits_better(less: int, more: int, memory: int, count: int) -> None:
    rank = [FITS, WARNS, REFUSED]
    small, large = sorted((less, more))
    found = [rank.index(outcome(e, gpus(memory, count=count))) for e in (small, large)]
    assert found == sorted(found)
