# SPDX-License-Identifier: Apache-2.0
"""Credentials from a kubeconfig: kubernetes_asyncio's loader reads it, and the rest is ours.

The loader is imported when a kubeconfig is given and not before: that costs 1.2 s and 113 MB.
Nothing of it is kept, and the files it writes for inline certificates are gone on return. It never
sees exec plugins and auth providers, which `exec_plugin` and `oidc` do.
"""

from __future__ import annotations

import base64
import os
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import yaml

from flexinfer import log
from flexinfer.client import exec_plugin
from flexinfer.client.auth import StaticCredentials, TokenFileCredentials
from flexinfer.client.proxy import proxy_for
from flexinfer.client.reload import read_text
from flexinfer.client.renewal import RenewedCredentials
from flexinfer.client.tls import TlsFiles, Trust
from flexinfer.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from flexinfer.client.auth import Credentials
    from flexinfer.client.oidc import OidcProvider
    from flexinfer.client.renewal import Issuer
    from flexinfer.client.tls import Pem
    from flexinfer.meta.envelope import Tree

__all__ = ["kubeconfig", "namespace_of"]

DEFAULT_PATH = Path("~/.kube/config")


# What says who somebody is at once, so that no plugin is asked, as with kubectl.
_EXPLICIT = (
    "token",
    "tokenFile",
    "client-certificate",
    "client-certificate-data",
)

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
    namespace: str
    user_name: str
    user: Tree
    user_file: Path
    cluster: Tree
    cluster_file: Path


async def kubeconfig(path: str | None = None, *, context: str | None = None) -> Credentials:
    """Return the credentials of a context, the current one when *context* is None.

    *path* is a file, or several joined by colons as in `KUBECONFIG`, which is what None means,
    and after that `~/.kube/config`. A user may hold a token, a token file, a client certificate,
    an exec plugin or the auth provider `oidc`; files, the CA's too, are read again every minute.
    A plugin or a provider is asked when a transport first needs it, and then as `renewal` says.
    `proxy-url` must be an `http://` proxy. Raises ConfigurationError, naming file, context and
    user, for a file that is missing or broken, a plugin that is not installed, and for what is
    not supported: other auth providers and passwords.
    """
    paths = _existing(path)
    loader = await anyio.to_thread.run_sync(_import_loader)
    with tempfile.TemporaryDirectory(prefix="flexinfer-") as folder:
        try:
            with _named_errors(loader, paths):
                return await _load(loader, paths, context, folder)
        finally:
            _forget(loader, folder)


async def namespace_of(path: str | None = None, *, context: str | None = None) -> str:
    """Return the namespace that a context prefers, empty for none.

    *path* and *context* are those of `kubeconfig`; raises ConfigurationError as that does.
    """
    paths = _existing(path)
    loader = await anyio.to_thread.run_sync(_import_loader)
    with _named_errors(loader, paths):
        return _select(loader.KubeConfigMerger(paths).config, paths, context).namespace


@contextmanager
def _named_errors(loader: ModuleType, paths: str) -> Iterator[None]:
    """Turn what reading the files raises into ConfigurationErrors that name them."""
    try:
        yield
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
    issued_by = {key: selected.user.pop(key, None) for key in ("exec", "auth-provider")}
    reader = loader.KubeConfigLoader(
        config_dict=merged, active_context=context, config_base_path=None, temp_file_path=folder
    )
    loaded = _Loaded()
    await reader.load_and_set(loaded)
    trust = _trust(loaded, selected, Path(folder))
    issuer = None
    if not any(selected.user.get(key) for key in _EXPLICIT):
        issuer = _issuer(issued_by, selected, loaded)
    return _credentials(loaded, selected, TlsFiles(trust), issuer)


def _select(merged: Any, paths: str, context: str | None) -> _Selected:
    """Find context, user and cluster as the loader will, before it acts on them."""
    name = context or merged.safe_get("current-context")
    if not name:
        raise ConfigurationError("no current-context: name a context")
    known = [entry["name"] for entry in merged["contexts"].value]
    if name not in known:
        raise ConfigurationError(f"no context {name!r}, only {', '.join(known) or 'none'}")
    section = merged["contexts"].get_with_name(name)["context"]
    user_name = section.safe_get("user") or ""
    entry = merged["users"].get_with_name(user_name, safe=True) if user_name else None
    if entry is None:
        msg = f"context {name!r} names the user {user_name!r}, who is not there: add that user"
        raise ConfigurationError(msg)
    user = entry.value.get("user") or {}
    # The loader cannot do without a section, and reads files relative to the kubeconfig.
    entry.value["user"] = user
    cluster = merged["clusters"].get_with_name(section["cluster"])
    return _Selected(
        where=f"context {name!r}, user {user_name!r}",
        namespace=str(section.safe_get("namespace") or ""),
        user_name=user_name,
        user=user,
        user_file=Path(entry.path or paths).expanduser(),
        cluster=cluster.value.get("cluster") or {},
        cluster_file=Path(cluster.path or paths).expanduser(),
    )


def _refuse_unsupported(selected: _Selected) -> None:
    if "username" in selected.user:
        raise ConfigurationError(
            f"{selected.where} uses a user name and password, which no API server accepts any "
            "more: use a token, a client certificate or an exec plugin"
        )
    provider = selected.user.get("auth-provider")
    name = provider.get("name") if isinstance(provider, dict) else None
    if provider is not None and name != "oidc":
        raise ConfigurationError(
            f"{selected.where} uses the auth provider {name!r}, which Kubernetes took out: "
            "use the exec plugin that replaced it"
        )


def _trust(loaded: _Loaded, selected: _Selected, folder: Path) -> Trust:
    """Return whom to trust; what was inline is read now, before *folder* goes."""
    if not loaded.verify_ssl:
        _log.warning("the API server's certificate is not verified", kubeconfig=selected.where)
    return Trust(
        ca=_pem(loaded.ssl_ca_cert, folder),
        certificate=_pem(loaded.cert_file, folder),
        key=_pem(loaded.key_file, folder),
        verify=loaded.verify_ssl,
        source=f"certificate-authority of {selected.where}",
    )


def _pem(name: str | None, folder: Path) -> Pem | None:
    if name is None:
        return None
    path = Path(name)
    return path.read_text(encoding="utf-8") if path.is_relative_to(folder) else path.absolute()


def _issuer(sections: Tree, selected: _Selected, loaded: _Loaded) -> Issuer | None:
    if (plugin := sections["exec"]) is not None:
        ca_pem = Path(loaded.ssl_ca_cert).read_text("utf-8") if loaded.ssl_ca_cert else None
        folder = selected.user_file.parent
        return exec_plugin.parse(plugin, selected.cluster, folder=folder, ca_pem=ca_pem)
    if (provider := sections["auth-provider"]) is not None:
        return _oidc(provider.get("config") or {}, selected)
    return None


def _oidc(config: Tree, selected: _Selected) -> OidcProvider:
    # Late: it brings aiohttp, 11 MiB that no other process need hold.
    from flexinfer.client.oidc import OidcProvider, UserEntry  # noqa: PLC0415

    ca_pem = None
    if inline := config.get("idp-certificate-authority-data"):
        ca_pem = base64.b64decode(inline).decode()
    elif file := config.get("idp-certificate-authority"):
        ca_pem = read_text(selected.user_file.parent / file)
    return OidcProvider(
        issuer_url=str(config.get("idp-issuer-url") or ""),
        client_id=str(config.get("client-id") or ""),
        client_secret=str(config.get("client-secret") or ""),
        ca_pem=ca_pem,
        entry=UserEntry(path=selected.user_file, user=selected.user_name),
    )


def _credentials(
    loaded: _Loaded, selected: _Selected, tls: TlsFiles, issuer: Issuer | None
) -> Credentials:
    name, proxy_url = loaded.tls_server_name, loaded.proxy or ""
    if proxy_url:
        # Refused here, where the error can name the file.
        proxy_for(loaded.host, configured=proxy_url)
    if issuer is not None:
        return RenewedCredentials(
            loaded.host, issuer, tls=tls, server_name=name, proxy_url=proxy_url
        )
    if token_file := selected.user.get("tokenFile"):
        file = selected.user_file.parent / token_file
        return TokenFileCredentials(
            loaded.host, file, context=tls, server_name=name, proxy_url=proxy_url
        )
    token = loaded.api_key.get("BearerToken", "").removeprefix("Bearer ")
    return StaticCredentials(
        loaded.host, token=token, context=tls, server_name=name, proxy_url=proxy_url
    )


def _broken(paths: str, reason: str) -> ConfigurationError:
    return ConfigurationError(f"cannot use the kubeconfig {paths}: {reason}")
