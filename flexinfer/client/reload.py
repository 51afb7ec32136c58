# SPDX-License-Identifier: Apache-2.0
"""Files of credentials that are replaced while they are used: how to read, and when again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flexinfer.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

# client-go reads a token file again after one minute; the kubelet renews it at 80 % of its life.
RELOAD_SECONDS = 60.0
# A file that could not be read is probably being replaced: look again sooner.
RETRY_SECONDS = 5.0


def check_reload_after(seconds: float) -> None:
    """Refuse to keep what a file held for longer than a minute."""
    if not 0 < seconds <= RELOAD_SECONDS:
        msg = f"reload_after must be above 0 and at most {RELOAD_SECONDS:g} seconds"
        raise ConfigurationError(msg)


def read_text(path: Path) -> str:
    """Return a file's text, stripped; raise ConfigurationError, naming it, when there is none."""
    try:
        content = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        msg = f"cannot read {path} ({reason}): put the credential there or name another file"
        raise ConfigurationError(msg) from error
    if not content:
        raise ConfigurationError(f"{path} is empty: it must hold the credential it is named for")
    return content
