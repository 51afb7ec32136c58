# SPDX-License-Identifier: Apache-2.0
"""A real control plane on loopback, for as long as a `with` block."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from flexinfer.envtest import arguments, binaries, etcd, kubectl, volumes
from flexinfer.envtest.admin import Admin
from flexinfer.envtest.apiservers import ApiServer
from flexinfer.envtest.audit import AuditLevel, AuditLog, AuditTrail
from flexinfer.envtest.crds import read_crds
from flexinfer.envtest.eventually import eventually_sync
from flexinfer.envtest.kubectl import KubectlError
from flexinfer.envtest.nodes import Nodes
from flexinfer.envtest.ports import free_ports
from flexinfer.envtest.processes import Processes
from flexinfer.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType


__all__ = ["ControlPlane", "KubectlError", "Options"]

_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_PORT_TRIES = 3
_PROBE_TIMEOUT = 2.0
_AUDIT_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Which parts run, and how."""

    controllers: bool = True
    """Run kube-controller-manager and kube-scheduler."""
    kwok: bool = True
    """Run kwok, the kubelet of simulated nodes."""
    apiserver_flags: tuple[str, ...] = ()
    """More arguments of kube-apiserver, such as `--watch-cache=false`; they win."""
    audit_level: AuditLevel = "Metadata"
    """What the audit log holds of a request."""
    start_timeout: float = 60.0
    """Seconds until everything must be up."""

    def __post_init__(self) -> None:
        if not self.start_timeout > 0:
            raise ConfigurationError("start_timeout must be positive: give it some 60 seconds")

    @property
    def components(self) -> tuple[str, ...]:
        """Return what runs, in the order of start."""
        controllers = ("kube-controller-manager", "kube-scheduler") if self.controllers else ()
        return ("etcd", "kube-apiserver", *controllers, *(("kwok",) if self.kwok else ()))


class ControlPlane:
    """A running control plane; made by `start`, ended by `close` or the end of this process.

    `admin` sends requests as cluster administrator, `processes` stops, kills and starts
    components by name, `nodes` and `volumes` simulate hardware.
    """

    def __init__(
        self, layout: arguments.Layout, options: Options, *, scratch: Path | None = None
    ) -> None:
        self.layout = layout
        self.options = options
        self.url = layout.url
        self.startup_seconds = 0.0
        self.authority = arguments.write_files(layout, audit_level=options.audit_level)
        self.ca_file = self.authority.ca_pem
        self.kubeconfig_path = layout.kubeconfig_of(arguments.ADMIN)
        self.admin_token = layout.tokens[arguments.ADMIN]
        self.admin = Admin(self.url, ca_file=self.ca_file, token=self.admin_token)
        # Whoever else listens on a port that was free may accept and never answer.
        self._probe = Admin(
            self.url, ca_file=self.ca_file, token=self.admin_token, timeout=_PROBE_TIMEOUT
        )
        self.processes = Processes(layout.file("logs"))
        self.nodes = Nodes(self.admin, simulated=options.kwok)
        self.add_node = self.nodes.add
        self.audit_log = AuditLog(layout.file("audit.log"))
        self._further = itertools.count(2)
        self._scratch = scratch

    @classmethod
    def start(cls, folder: Path | None = None, *, options: Options | None = None) -> Self:
        """Start everything and return when it is ready for work.

        Files go to *folder*, which must not hold a control plane yet and stays; without one they
        go to a temporary folder that `close` removes. Binaries are found or built first.

        Raises:
            BinariesError: The binaries are nowhere and cannot be built.
            ProcessError: A component ended by itself; the message holds the end of its log.
            AssertionError: It was not ready within `options.start_timeout`.
        """
        found = binaries.find()
        if folder is not None and (folder / "etcd").exists():
            raise ConfigurationError(f"{folder} holds a control plane already: name another folder")
        for tries_left in reversed(range(_PORT_TRIES)):
            plane = cls._prepare(folder, options or Options())
            try:
                plane.bring_up(found)
            except BaseException as error:
                plane.close()
                # Between finding a port free and listening on it, somebody else may take it.
                if not (tries_left and "address already in use" in str(error)):
                    raise
            else:
                return plane
        raise AssertionError("unreachable: the last try returns or raises")

    @classmethod
    def _prepare(cls, folder: Path | None, options: Options) -> Self:
        scratch = None if folder else Path(tempfile.mkdtemp(prefix="flexinfer-envtest-"))
        home = (folder or scratch or Path()).absolute()
        home.mkdir(parents=True, exist_ok=True)
        # Of a try whose ports were taken; what somebody else left was refused before.
        shutil.rmtree(home / "etcd", ignore_errors=True)
        api_port, etcd_port, peer_port = free_ports(3)
        layout = arguments.Layout(
            folder=home, api_port=api_port, etcd_port=etcd_port, etcd_peer_port=peer_port
        )
        return cls(layout, options, scratch=scratch)

    def bring_up(self, found: binaries.Binaries) -> None:
        """Start every component; what `start` does once the files are written."""
        began = time.monotonic()
        deadline = began + self.options.start_timeout
        storage, apiserver, *others = self.options.components
        for name in (storage, apiserver):
            self._launch(found, name)
        self.wait_ready(within=deadline - time.monotonic())
        for name in others:
            self._launch(found, name)
        self._furnish(within=deadline - time.monotonic())
        self.processes.check()
        self.startup_seconds = time.monotonic() - began

    def _launch(self, found: binaries.Binaries, name: str) -> None:
        flags = arguments.COMMAND_LINES[name](self.layout)
        if name == "kube-apiserver":
            flags += self.options.apiserver_flags
        self.processes.start(name, [str(found[name]), *flags])

    def _furnish(self, within: float) -> None:
        """Make what pods need to be admitted: a service account, and the classes they name."""
        classes = "/apis/node.k8s.io/v1/runtimeclasses"
        self.admin.create(
            classes,
            {
                "apiVersion": "node.k8s.io/v1",
                "kind": "RuntimeClass",
                "metadata": {"name": "nvidia"},
                "handler": "nvidia",
            },
        )
        volumes.create_classes(self.admin)
        self.wait_service_account("default", within=within)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every component; return when all are gone. Again is harmless."""
        self.processes.close()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def detach(self) -> int:
        """Let it outlive this process; SIGTERM to the process whose id is returned ends it.

        The temporary folder goes then too.
        """
        self.processes.detach(remove=self._scratch)
        return self.processes.supervisor_pid

    def wait_ready(self, *, within: float = 30.0) -> None:
        """Wait until the API server says that it is ready."""

        def is_ready() -> None:
            self.processes.check()
            self._probe.get("/readyz")

        eventually_sync(is_ready, within=within, every=0.025)

    def wait_service_account(
        self, namespace: str, name: str = "default", *, within: float = 30.0
    ) -> None:
        """Wait for a service account, without which no pod of its is admitted.

        Where no kube-controller-manager makes it, it is made here.
        """
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        if not self.options.controllers:
            body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
            self.admin.apply(f"{path}/{name}", body)
            return

        def exists() -> None:
            self.processes.check()
            self.admin.get(f"{path}/{name}")

        eventually_sync(exists, within=within, every=0.025)

    def install_crds(self, *paths: str | Path, within: float = 30.0) -> tuple[str, ...]:
        """Apply CustomResourceDefinitions, wait until they are served, and return their names.

        *paths* are YAML files, and folders of them; other kinds in them are left out. Raises
        ConfigurationError when no CustomResourceDefinition is there.
        """
        names = []
        for crd in read_crds(paths):
            names.append(crd["metadata"]["name"])
            self.admin.apply(f"{_CRDS}/{names[-1]}", crd)
        self.wait_established(*names, within=within)
        return tuple(names)

    def wait_established(self, *crds: str, within: float = 30.0) -> None:
        """Wait until the kinds of CustomResourceDefinitions, by name, are served.

        `kubectl wait` fails at once on one that has no conditions yet.
        """

        def are_served() -> bool:
            return all(self._is_served(name) for name in crds)

        eventually_sync(are_served, within=within)

    def _is_served(self, crd: str) -> bool:
        conditions = self.admin.get(f"{_CRDS}/{crd}").get("status", {}).get("conditions") or ()
        return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

    def restart(self, name: str, *, within: float = 30.0) -> None:
        """Kill a component, start it on the same ports, and wait until the API answers."""
        self.processes.kill(name)
        self.processes.start(name)
        self.wait_ready(within=within)

    def add_apiserver(self, *flags: str, within: float = 30.0) -> ApiServer:
        """Start one more kube-apiserver on the same etcd, with *flags* of its own, and wait for it.

        Use it as a context manager. With `--watch-cache=false` it forgets what `compact` removes.
        """
        name = f"kube-apiserver-{next(self._further)}"
        return ApiServer(self.layout, self.processes, name, flags=flags, within=within)

    def snapshot(self) -> Path:
        """Copy etcd's folder, for which etcd and the API server are away for a moment.

        Further API servers must be closed before.
        """
        copy = Path(tempfile.mkdtemp(prefix="snapshot-", dir=self.layout.folder))
        with self._etcd_stopped():
            shutil.copytree(self.layout.file("etcd"), copy, dirs_exist_ok=True)
        return copy

    def rollback(self, snapshot: Path) -> None:
        """Put etcd's folder back to *snapshot*: what was written since has never been."""
        with self._etcd_stopped():
            shutil.rmtree(self.layout.file("etcd"))
            shutil.copytree(snapshot, self.layout.file("etcd"))

    @contextlib.contextmanager
    def _etcd_stopped(self) -> Iterator[None]:
        self.processes.kill("kube-apiserver")
        self.processes.stop("etcd")
        yield
        self.processes.start("etcd")
        self.processes.start("kube-apiserver")
        self.wait_ready(within=self.options.start_timeout)

    def audit(self, since: int = 0) -> AuditTrail:
        """Return what the API server answered after *since*, a value of `audit_log.mark()`.

        An answer may reach its client before the log, so this sends a request of its own and
        waits for it in the log; it is not among the results.
        """
        marker = str(uuid.uuid4())
        self.admin.request("GET", "/api/v1/namespaces/default", headers={"Audit-ID": marker})

        def logged() -> AuditTrail:
            trail = self.audit_log.read(since)
            assert any(event.audit_id == marker for event in trail)  # noqa: S101 - polled for
            return trail

        trail = eventually_sync(logged, within=_AUDIT_TIMEOUT, every=0.01)
        return AuditTrail(event for event in trail if event.audit_id != marker)

    def kubectl(self, *args: str, stdin: str | None = None) -> str:
        """Run kubectl as administrator and return what it printed.

        It is the kubectl beside this Python, or else the one on `PATH`.

        Raises:
            KubectlError: It failed; the message is what it said.
        """
        return kubectl.run(*args, kubeconfig=self.kubeconfig_path, stdin=stdin)

    def token_for(self, namespace: str, service_account: str, *, seconds: int = 3600) -> str:
        """Return a token of a service account, valid for *seconds*, at least 600."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
        spec = {"expirationSeconds": seconds}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str(self.admin.create(path, body)["status"]["token"])

    def write_service_account(self, folder: Path, namespace: str, service_account: str) -> None:
        """Write token, ca.crt and namespace to *folder*, as a pod finds them mounted."""
        folder.mkdir(parents=True, exist_ok=True)
        arguments.write_private(folder / "token", self.token_for(namespace, service_account))
        (folder / "ca.crt").write_bytes(self.ca_file.read_bytes())
        (folder / "namespace").write_text(namespace)

    def write_kubeconfig(self, path: Path, *, token: str | None = None) -> None:
        """Write a kubeconfig with *token*, the administrator's unless one is given."""
        content = arguments.kubeconfig(
            self.url, ca_pem=self.ca_file.read_bytes(), token=token or self.admin_token
        )
        arguments.write_private(path, json.dumps(content, indent=2) + "\n")

    def add_volume(self, node: str, *, size: str = "100Gi", storage_class: str = "local") -> str:
        """Make a `local` PersistentVolume on *node* and return its name."""
        return volumes.add(self.admin, node, size=size, storage_class=storage_class)

    def revision(self) -> int:
        """Return etcd's revision: the resourceVersion of the last write."""
        return etcd.revision(self.layout.etcd_port)

    def compact(self, revision: int | None = None) -> int:
        """Make etcd forget what was before *revision*, by default the last; return it.

        The newest version of everything stays. The API server's watch cache goes on answering
        old versions until it is restarted.
        """
        revision = self.revision() if revision is None else revision
        etcd.compact(self.layout.etcd_port, revision)
        return revision
