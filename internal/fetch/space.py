# SPDX-License-Identifier: Apache-2.0
"""Room on the volume, looked at before the first byte is fetched."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from internal.fetch.errors import FetchError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
_STEP = 1024


def free_bytes(directory: Path) -> int:
    """Return the bytes that the volume of *directory* leaves to this user."""
    return shutil.disk_usage(directory).free


def ensure_room(missing: int, directory: Path, *, free: Callable[[Path], int] = free_bytes) -> None:
    """Refuse to begin what cannot end: *missing* bytes have to fit on the volume.

    Raises:
        FetchError: They do not; the message has both figures
    """
    available = free(directory)
    if missing > available:
        wish, rest = binary(missing), binary(available)
        if wish == rest:
            wish, rest = f"{missing} bytes", f"{available} bytes"
        raise FetchError(
            f"{wish} are still to be fetched, and the volume of {directory} has {rest} free; "
            "raise spec.cache.size or clear the volume"
        )


def binary(count: int) -> str:
    """Return *count* bytes for a person: `512 bytes`, `1.5 GiB`."""
    amount, unit = float(count), _UNITS[0]
    for larger in _UNITS[1:]:
        if amount < _STEP:
            break
        amount, unit = amount / _STEP, larger
    return f"{count} bytes" if unit == _UNITS[0] else f"{amount:.1f} {unit}"
