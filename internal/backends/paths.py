# SPDX-License-Identifier: Apache-2.0
"""Where weights lie in the container, and which files of a source config may name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from internal.backends.backend import MODELS_PATH
from internal.backends.source import Scheme

if TYPE_CHECKING:
    from collections.abc import Mapping

    from internal.backends.backend import Launch

# A source whose name ends like this is one file, not a directory.
_WEIGHT_FILES = (".gguf", ".safetensors", ".ckpt", ".pt", ".pth", ".bin")


def weights_path(launch: Launch, file: str = "") -> str:
    """Return where the weights, or a *file* of theirs, lie; empty if the server fetches them."""
    root = _root(launch).rstrip("/")
    return f"{root}/{file}" if root and file else root


def weights_directory(launch: Launch) -> str:
    """Return the directory that the weights lie in; empty if the server fetches them."""
    root = weights_path(launch)
    return root.rpartition("/")[0] if is_file(root) else root


def is_file(path: str) -> bool:
    """Tell whether *path* is by its name one file of weights."""
    return path.lower().endswith(_WEIGHT_FILES)


def _root(launch: Launch) -> str:
    source = launch.source
    if launch.fetched:
        file = source.reference.rpartition("/")[2]
        one = source.scheme is Scheme.PVC and is_file(file)
        return f"{launch.fetched.rstrip('/')}/{file}" if one else launch.fetched
    match source.scheme:
        case Scheme.PVC:
            return f"{MODELS_PATH}/{source.reference}"
        case Scheme.FILE:
            return source.reference
        case _:
            return ""


def resolve(launch: Launch, path: str) -> str:
    """Return *path* if it is absolute, else where it lies beside the weights."""
    return path if path.startswith("/") else f"{weights_directory(launch)}/{path}"


def climbing_problem(config: Mapping[str, object], key: str) -> tuple[str, ...]:
    """Refuse a path that would leave the directory it starts from."""
    value = config.get(key)
    if isinstance(value, str) and ".." in value.split("/"):
        return (f"spec.config.{key} must not contain '..', as {value[:80]!r} does",)
    return ()


def relative_path_problem(config: Mapping[str, object], key: str) -> tuple[str, ...]:
    """Refuse a file name that would leave the directory of the source."""
    value = config.get(key)
    if isinstance(value, str) and (value.startswith("/") or ".." in value.split("/")):
        return (f"spec.config.{key} must be a path inside the source, not {value[:80]!r}",)
    return ()
