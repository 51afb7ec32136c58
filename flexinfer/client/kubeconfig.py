# SPDX-License-Identifier: Apache-2.0
"""Credentials from a kubeconfig, read by kubernetes_asyncio's loader and then our own.

The loader is imported when a kubeconfig is given and not before: that costs 1.2 s and 113 MB.
Nothing of it is kept, and the files it writes for inline certificates are gone on return.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import yaml

from flexinfer import log
from flexinfer.client.auth import StaticCredentials, TokenFileCredentials
from flexinfer.client.tls import client_context
from flexinfer.errors import ConfigurationError

if TYPE_CHECKING:
    from types import ModuleType

    from flexinfer.client.auth import Credentials

DEFAULT_PATH = Path("~/.kube/config")

_log = log.get_logger(__name__)


@dataclass(slots=True)
class _Loaded:
    """Receive what the loader sets, under the names it uses; None where it sets nothing."""

    host: str = ""
    api_key: dict[str, str] = field(default_factory=dict)
    ssl_ca_cert: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify_ssl: bool = True
    tls_server_name: str | None = None
    proxy: str | None = None


@dataclass(frozen=True, slots=True)
class _Selected:
    """Be the parts of a kubeconfig that a context selects; *where* names them for errors."""

    where: str
    user: dict[str, Any]
    base: Path


async def kubeconfig(path: str | None = None, *, context: str | None = None) -> Credentials:
    """Return the credentials of a context, the current one when *context* is None.

    *path* is a file, or several joined by colons as in `KUBECONFIG`, which is what None means,
    and after that `~/.kube/config`. Users may hold a token, a token file (read again every
    minute) or a client certificate. Raises ConfigurationError, naming file, context and user,
    for a file that is missing or broken and for what is not supported: exec plugins, auth
    providers, passwords and proxies.
    """
    paths = _existing(path)
    loader = await anyio.to_thread.run_sync(_import_loader)
    with tempfile.TemporaryDirectory(prefix="flexinfer-") as folder:
        try:
            return await _load(loader, paths, context, folder)
        except ConfigurationError as error:
            raise _broken(paths, str(error)) from error
        except loader.ConfigException as error:
            # What follows names the place by printing the entry there, with its token.
            raise _broken(paths, str(error).partition(" in ")[0]) from None
        except (yaml.YAMLError, OSError) as error:
            raise _broken(paths, str(error)) from error
        except (AttributeError, TypeError, LookupError, ValueError, AssertionError) as error:
            # The loader meets a file of an unexpected shape with whatever Python raises.
            what = str(error) or type(error).__name__
            raise _broken(paths, f"not the shape of a kubeconfig ({what})") from error
        finally:
            _forget(loader, folder)


def _existing(path: str | None) -> str:
    paths = path or os.environ.get("KUBECONFIG") or str(DEFAULT_PATH.expanduser())
    if not any(Path(part).expanduser().is_file() for part in paths.split(":") if part):
        raise ConfigurationError(f"there is no kubeconfig at {paths}: name one that exists")
    return paths


def _import_loader() -> ModuleType:
    from kubernetes_asyncio.config import kube_config  # noqa: PLC0415 - 1.2 s and 113 MB

    module: ModuleType = kube_config
    return module


def _forget(loader: ModuleType, folder: str) -> None:
    """Take our folder's files out of the loader's memory, which outlives them."""
    known = loader._temp_files  # noqa: SLF001 - there is no public way
    for content in [c for c, name in known.items() if Path(name).is_relative_to(folder)]:
        del known[content]


async def _load(loader: ModuleType, paths: str, context: str | None, folder: str) -> Credentials:
    merged = loader.KubeConfigMerger(paths).config
    selected = _select(merged, paths, context)
    _refuse_unsupported(selected)
    reader = loader.KubeConfigLoader(
        config_dict=merged, active_context=context, config_base_path=None, temp_file_path=folder
    )
    loaded = _Loaded()
    await reader.load_and_set(loaded)
    return _credentials(loaded, selected)


def _select(merged: Any, paths: str, context: str | None) -> _Selected:
    """Find context and user as the loader will, before it acts on them."""
    name = context or merged.safe_get("current-context")
    if not name:
        raise ConfigurationError("no current-context: name a context")
    known = [entry["name"] for entry in merged["contexts"].value]
    if name not in known:
        raise ConfigurationError(f"no context {name!r}, only {', '.join(known) or 'none'}")
    user_name = merged["contexts"].get_with_name(name)["context"].safe_get("user") or ""
    entry = merged["users"].get_with_name(user_name, safe=True) if user_name else None
    if entry is None:
        msg = f"context {name!r} names the user {user_name!r}, who is not there: add that user"
        raise ConfigurationError(msg)
    user = entry.value.get("user") or {}
    # The loader cannot do without a section, and reads files relative to the kubeconfig.
    entry.value["user"] = user
    where = f"context {name!r}, user {user_name!r}"
    return _Selected(where, user, Path(entry.path or paths).expanduser().parent)


def _refuse_unsupported(selected: _Selected) -> None:
    names = {
        "exec": "an exec plugin",
        "auth-provider": "an auth provider",
        "username": "a user name and password",
    }
    for key, name in names.items():
        if key in selected.user:
            raise ConfigurationError(
                f"{selected.where} uses {name}, which is not supported: "
                "use a token or a client certificate"
            )


def _credentials(loaded: _Loaded, selected: _Selected) -> Credentials:
    if loaded.proxy:
        raise ConfigurationError(
            f"{selected.where} sets proxy-url, which is not supported: remove it"
        )
    context = _context(loaded, selected)
    if token_file := selected.user.get("tokenFile"):
        return TokenFileCredentials(
            loaded.host,
            selected.base / token_file,
            context=context,
            server_name=loaded.tls_server_name,
        )
    return StaticCredentials(
        loaded.host,
        token=loaded.api_key.get("BearerToken", "").removeprefix("Bearer "),
        context=context,
        server_name=loaded.tls_server_name,
    )


def _context(loaded: _Loaded, selected: _Selected) -> ssl.SSLContext:
    ca_pem = Path(loaded.ssl_ca_cert).read_text(encoding="utf-8") if loaded.ssl_ca_cert else None
    context = client_context(ca_pem, source=f"certificate-authority of {selected.where}")
    if not loaded.verify_ssl:
        _log.warning("the API server's certificate is not verified", kubeconfig=selected.where)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if loaded.cert_file:
        context.load_cert_chain(loaded.cert_file, loaded.key_file)
    return context


def _broken(paths: str, reason: str) -> ConfigurationError:
    return ConfigurationError(f"cannot use the kubeconfig {paths}: {reason}")
