# SPDX-License-Identifier: Apache-2.0
"""The variables of a container, from its spec, its pod and Secrets."""

from __future__ import annotations

import base64
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from flexinfer.meta.resource import GroupVersionKind, NamespacedName, Resource
from hack.podrunner.refusal import LaunchError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flexinfer.client.protocol import Client
    from hack.podrunner.pod import Container, EnvVar, Pod, SecretKey

TERMINATION_LOG = "FLEXINFER_TERMINATION_LOG"
"""The variable that names the file for a termination message, where the usual one cannot be."""
SECRETS = Resource(GroupVersionKind("", "v1", "Secret"), "secrets")

# What programs need to be found and to speak, and what makes Python be this checkout's and its
# coverage be measured. Nothing else of the runner's environment reaches a container.
_INHERITED = ("LANG", "LC_ALL", "PYTHONPATH", "TZ", "COVERAGE_PROCESS_CONFIG")
_REFERENCE = re.compile(r"\$(?:(\$)|\(([^()]*)\))")


def inherited() -> dict[str, str]:
    """Return what a container has from this machine; its own programs come first on PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {"PATH": path, **{name: os.environ[name] for name in _INHERITED if name in os.environ}}


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` as the kubelet does: `$$` is a dollar, an unknown name stays."""

    def replace(match: re.Match[str]) -> str:
        return "$" if match[1] else variables.get(match[2], match[0])

    return _REFERENCE.sub(replace, text)


async def resolve(client: Client, pod: Pod, container: Container) -> dict[str, str]:
    """Return the variables that the spec declares; each may refer to those before it.

    Raises LaunchError, in the kubelet's words, for what is not there.
    """
    variables: dict[str, str] = {}
    for variable in container.env:
        value = await _value(client, pod, variable, variables)
        if value is not None:
            variables[variable.name] = value
    return variables


async def _value(
    client: Client, pod: Pod, variable: EnvVar, variables: Mapping[str, str]
) -> str | None:
    source = variable.value_from
    if source is None:
        return expand(variable.value, variables)
    if source.field_ref is not None:
        return _field(pod, source.field_ref.field_path)
    if source.secret_key_ref is not None:
        return await _secret(client, pod.metadata.namespace, source.secret_key_ref)
    raise LaunchError.unsupported(f"the source of variable {variable.name}")


def _field(pod: Pod, path: str) -> str:
    fields = {
        "metadata.name": pod.metadata.name,
        "metadata.namespace": pod.metadata.namespace,
        "metadata.uid": pod.metadata.uid,
        "spec.nodeName": pod.spec.node_name,
    }
    if path not in fields:
        raise LaunchError.unsupported(f"fieldRef {path}")
    return fields[path]


async def _secret(client: Client, namespace: str, wanted: SecretKey) -> str | None:
    stored = await client.read(SECRETS, NamespacedName(namespace, wanted.name))
    if stored is None:
        if wanted.optional:
            return None
        raise LaunchError("CreateContainerConfigError", f'secret "{wanted.name}" not found')
    data: Mapping[str, str] = stored.tree(SECRETS).get("data") or {}
    if wanted.key in data:
        return base64.b64decode(data[wanted.key]).decode(errors="replace")
    if wanted.optional:
        return None
    raise LaunchError(
        "CreateContainerConfigError",
        f"couldn't find key {wanted.key} in Secret {namespace}/{wanted.name}",
    )
