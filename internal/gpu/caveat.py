# SPDX-License-Identifier: Apache-2.0
"""What works, but should be known: the Warning events of placement."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CaveatReason(StrEnum):
    """Name the events."""

    VRAM_PRESSURE = "VRAMPressure"
    EXPERIMENTAL = "ExperimentalGPUSupport"
    PARTIAL = "PartialGPUSupport"


@dataclass(frozen=True, slots=True)
class Caveat:
    """Be the reason of an event, and the sentence that it carries."""

    reason: CaveatReason
    text: str
