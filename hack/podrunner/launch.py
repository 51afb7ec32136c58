# SPDX-License-Identifier: Apache-2.0
"""From a container's spec to the process that stands for it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flexinfer.envtest.behaviour import LOCAL_IMAGES
from hack.podrunner.environment import TERMINATION_LOG, expand, inherited, resolve
from hack.podrunner.refusal import LaunchError
from hack.podrunner.volumes import Folders, mounts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flexinfer.client.protocol import Client
    from hack.podrunner.pod import Container, Pod
    from hack.podrunner.volumes import Mounts

_BIN = Path(sys.executable).parent
# What the images hold that need no command; their tags are not looked at.
_ENTRYPOINTS = {f"{LOCAL_IMAGES}flexinfer": ("flexinfer",)}
_PROGRAMS = {
    "flexinfer": str(_BIN / "flexinfer"),
    "python": sys.executable,
    "python3": sys.executable,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Be a process to start: what it is called with, where, and where it says what."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    log: Path
    message: Path
    port: int | None


async def launch_for(client: Client, pod: Pod, container: Container, folders: Folders) -> Launch:
    """Return what to start; its folders are there and its termination message is empty.

    Raises LaunchError with what the container waits for, or why it never starts here.
    """
    _check_supported(pod, container)
    home = folders.pod(pod)
    home.mkdir(parents=True, exist_ok=True)
    mounted = await mounts(client, pod, container, folders)
    message = home / f"{container.name}.termination"
    message.write_bytes(b"")
    mounted = mounted.beside(container.termination_message_path, message)
    declared = await resolve(client, pod, container)
    environment = {
        **inherited(),
        "HOME": str(home),
        "HOSTNAME": pod.metadata.name,
        TERMINATION_LOG: str(message),
        **{name: mounted.local(value) for name, value in declared.items()},
    }
    return Launch(
        argv=_command(container, declared, mounted),
        environment=environment,
        folder=mounted.folder(container.working_dir) or home,
        log=folders.log(pod, container),
        message=message,
        port=_port(environment, container),
    )


def _check_supported(pod: Pod, container: Container) -> None:
    if not container.is_local:
        raise LaunchError(
            "ErrImageNeverPull", f"image {container.image!r}: only {LOCAL_IMAGES} is run here"
        )
    if pod.spec.init_containers:
        raise LaunchError.unsupported("init containers")
    if container.env_from:
        raise LaunchError.unsupported("envFrom")
    probe = container.readiness_probe
    if probe is not None and probe.http_get is None and probe.tcp_socket is None:
        raise LaunchError.unsupported("a readinessProbe other than httpGet and tcpSocket")


def _command(
    container: Container, variables: Mapping[str, str], mounted: Mounts
) -> tuple[str, ...]:
    """Return the command line, without which there is nothing to run."""
    image = container.image.partition("@")[0].partition(":")[0]
    command: Sequence[str] = container.command or _ENTRYPOINTS.get(image, ())
    if not command:
        raise LaunchError("CreateContainerError", f"no command specified for {container.image}")
    program, *arguments = (expand(part, variables) for part in (*command, *container.args))
    program = _PROGRAMS.get(program, mounted.local(program))
    return (program, *(mounted.local_argument(argument) for argument in arguments))


def _port(environment: Mapping[str, str], container: Container) -> int | None:
    """Return where a server listens: PORT says so, since all pods share this machine's ports."""
    value = environment.get("PORT", "")
    if value.isdecimal():
        return int(value)
    probe = container.readiness_probe
    asked = None if probe is None else probe.http_get or probe.tcp_socket
    if asked is None:
        return None
    if isinstance(asked.port, int):
        return asked.port
    return next((p.container_port for p in container.ports if p.name == asked.port), None)
