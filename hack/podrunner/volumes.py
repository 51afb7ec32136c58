# SPDX-License-Identifier: Apache-2.0
"""Folders of this machine in the place of volumes, and of paths inside a container."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flexinfer.kinds.persistentvolumeclaim import PersistentVolumeClaim
from flexinfer.meta.resource import NamespacedName
from hack.podrunner.refusal import LaunchError

if TYPE_CHECKING:
    from pathlib import Path

    from flexinfer.client.protocol import Client
    from flexinfer.meta.envelope import Tree
    from hack.podrunner.pod import Container, Pod


@dataclass(frozen=True, slots=True)
class Folders:
    """Say what lies where under one folder: pods by UID, PersistentVolumes by name, logs."""

    root: Path

    def pod(self, pod: Pod) -> Path:
        """Return the folder that lives as long as the pod."""
        return self.of_uid(pod.metadata.uid)

    def of_uid(self, uid: str) -> Path:
        """Return the same of a pod that is gone."""
        return self.root / "pods" / uid

    def log(self, pod: Pod, container: Container) -> Path:
        """Return the file that holds what a container said, in all its runs."""
        name = f"{pod.metadata.namespace}_{pod.metadata.name}_{container.name}.log"
        return self.root / name

    def persistent(self, volume: str) -> Path:
        """Return the content of a PersistentVolume."""
        return self.root / "volumes" / volume

    def on_node(self, node: str, path: str) -> Path:
        """Return what a path of a simulated node is here."""
        return self.root.joinpath("nodes", node, path.lstrip("/"))


@dataclass(frozen=True, slots=True)
class Mounts:
    """Turn paths of the container into paths of this machine."""

    targets: tuple[tuple[str, Path], ...] = ()

    def beside(self, path: str, target: Path) -> Mounts:
        """Return these and one more."""
        return Mounts((*self.targets, (path.rstrip("/"), target)))

    def folder(self, path: str) -> Path | None:
        """Return what a path is here, None when no mount holds it; the deepest mount wins."""
        for mount, target in sorted(self.targets, key=lambda item: len(item[0]), reverse=True):
            if path == mount or path.startswith(f"{mount}/"):
                return target / path[len(mount) :].lstrip("/")
        return None

    def local(self, text: str) -> str:
        """Return *text*, as a path of this machine if a mount holds it; the end slash stays."""
        found = self.folder(text)
        if found is None:
            return text
        return f"{found}/" if text.endswith("/") else str(found)

    def local_argument(self, text: str) -> str:
        """Do the same for an argument, which may be `--name=path`."""
        name, equals, value = text.partition("=")
        if equals and name.startswith("-"):
            return f"{name}={self.local(value)}"
        return self.local(text)


async def mounts(client: Client, pod: Pod, container: Container, folders: Folders) -> Mounts:
    """Make the folders of a container's mounts; raise LaunchError for what cannot be mounted."""
    volumes = {volume["name"]: volume for volume in pod.spec.volumes}
    found = Mounts()
    for mount in container.volume_mounts:
        target = await _folder(client, pod, volumes[mount.name], folders)
        if mount.sub_path:
            target /= mount.sub_path
        target.mkdir(parents=True, exist_ok=True)
        found = found.beside(mount.mount_path, target)
    return found


async def _folder(client: Client, pod: Pod, volume: Tree, folders: Folders) -> Path:
    own = folders.pod(pod) / "volumes" / str(volume["name"])
    match volume:
        case {"persistentVolumeClaim": {"claimName": str(claim)}}:
            key = NamespacedName(pod.metadata.namespace, claim)
            return folders.persistent(await _bound_volume(client, key))
        case {"hostPath": {"path": str(path)}}:
            return folders.on_node(pod.spec.node_name, path)
        # Admission mounts the service account into every pod; what runs here does not use it.
        case {"emptyDir": _} | {"projected": _}:
            return own
    kinds = ", ".join(sorted(volume.keys() - {"name"}))
    raise LaunchError.unsupported(f"volume {volume['name']} of kind {kinds}")


async def _bound_volume(client: Client, key: NamespacedName) -> str:
    stored = await client.read(PersistentVolumeClaim.resource, key)
    if stored is None:
        raise LaunchError("ContainerCreating", f'persistentvolumeclaim "{key.name}" not found')
    claim = PersistentVolumeClaim.decode(stored)
    if not claim.spec.volume_name:
        raise LaunchError("ContainerCreating", f'persistentvolumeclaim "{key.name}" is not bound')
    return claim.spec.volume_name
