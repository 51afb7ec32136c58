# SPDX-License-Identifier: Apache-2.0
"""What the environment says about the hub, and what it keeps the hub's client from doing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from internal.fetch.errors import HopelessError

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

DEFAULT_ENDPOINT = "https://huggingface.co"

_QUIET = {
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    "HF_HUB_DISABLE_XET": "1",
    "HF_HUB_VERBOSITY": "error",
    "HF_HUB_OFFLINE": "0",
    "TRANSFORMERS_OFFLINE": "0",
    "HF_DEBUG": "0",  # it would print requests
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSettings:
    """Say where the hub is and who asks; `token` is empty for anybody."""

    endpoint: str
    token: str = field(repr=False)

    @property
    def host(self) -> str:
        """Return what messages call the hub: its host and port, without any credentials."""
        return urlsplit(self.endpoint).netloc.rpartition("@")[2]


def quieten(environment: MutableMapping[str, str]) -> None:
    """Turn off what the hub's client does unasked; it reads these when it is first imported."""
    environment.update(_QUIET)


def hub_settings(environment: Mapping[str, str]) -> HubSettings:
    """Read HF_ENDPOINT and HF_TOKEN.

    Raises:
        HopelessError: One of them cannot be used; the token is not part of the message
    """
    endpoint = environment.get("HF_ENDPOINT", "").strip().rstrip("/") or DEFAULT_ENDPOINT
    try:
        parts = urlsplit(endpoint)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname)
    except ValueError:
        usable = False
    if not usable:
        raise HopelessError(f"HF_ENDPOINT is {endpoint!r}; set it to an http:// or https:// URL")
    token = environment.get("HF_TOKEN", "").strip()
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise HopelessError(
            "HF_TOKEN holds something that is no token; put the token alone, in one line, "
            "under the key token of the Secret that spec.cache.tokenSecretRef names"
        )
    return HubSettings(endpoint=endpoint, token=token)
