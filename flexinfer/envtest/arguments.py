# SPDX-License-Identifier: Apache-2.0
"""The command line of each component, and the files that it names; pure but for `write_files`."""

from __future__ import annotations

import base64
import json
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from flexinfer.envtest import audit, stages
from flexinfer.envtest.certs import CertificateAuthority
from flexinfer.envtest.ports import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from flexinfer.meta.envelope import Tree

POD_NETWORK = "198.18.0.0/15"
"""Addresses of simulated pods: reserved for benchmarks (RFC 2544), so nobody has them and nobody
dials them; EndpointSlices refuse loopback ones."""
SERVICE_NETWORK = "10.96.0.0/16"
SERVICE_HOST = "10.96.0.1"
ADMIN = "admin"
ETCD_QUOTA = 8 << 30
"""Bytes; etcd's own 2 GiB end in the middle of a benchmark."""

# Requests/s; the components' own 20 to 50 would be what a test waits for.
_UNTHROTTLED = ("--kube-api-qps=1000", "--kube-api-burst=2000")
_MASTERS = "system:masters"
_GROUPS: Mapping[str, str] = {
    ADMIN: _MASTERS,
    "kwok": _MASTERS,
    "system:kube-controller-manager": "",
    "system:kube-scheduler": "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where the parts of one control plane are: its folder, its ports, its tokens."""

    folder: Path
    api_port: int
    etcd_port: int
    etcd_peer_port: int
    tokens: Mapping[str, str] = field(
        default_factory=lambda: {user: secrets.token_hex(16) for user in _GROUPS}, repr=False
    )

    @property
    def url(self) -> str:
        """Return the API server's address."""
        return f"https://{LOOPBACK}:{self.api_port}"

    @property
    def etcd_url(self) -> str:
        """Return etcd's address: plain HTTP, with its JSON gateway."""
        return f"http://{LOOPBACK}:{self.etcd_port}"

    def file(self, name: str) -> Path:
        """Return the path of a file in the folder."""
        return self.folder / name

    def kubeconfig_of(self, user: str) -> Path:
        """Return the path of the kubeconfig that `write_files` writes for *user*."""
        return self.file(f"{user.removeprefix('system:')}.kubeconfig")


def kubeconfig(url: str, *, ca_pem: bytes, token: str) -> Tree:
    """Return a kubeconfig that needs no other file."""
    cluster = {
        "server": url,
        "certificate-authority-data": base64.b64encode(ca_pem).decode(),
    }
    name = "envtest"
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


def write_private(path: Path, content: bytes | str) -> None:
    """Write a file that its owner alone can read."""
    path.touch(mode=0o600)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def write_files(layout: Layout, *, audit_level: audit.AuditLevel) -> CertificateAuthority:
    """Write every file that the command lines name; return the authority clients verify."""
    authority = CertificateAuthority.create(layout.file("pki"))
    certificate, key = authority.issue(
        [LOOPBACK, "localhost", SERVICE_HOST, "kubernetes.default.svc"]
    )
    certificate.rename(layout.file("server.crt"))
    key.rename(layout.file("server.key"))
    _write_service_account_key(layout)
    rows = [f'{token},{user},{user},"{_GROUPS[user]}"\n' for user, token in layout.tokens.items()]
    write_private(layout.file("tokens.csv"), "".join(rows))
    layout.file("audit-policy.json").write_text(json.dumps(audit.policy(audit_level)))
    layout.file("stages.yaml").write_text(stages.configuration())
    ca_pem = authority.ca_pem.read_bytes()
    for user, token in layout.tokens.items():
        content = kubeconfig(layout.url, ca_pem=ca_pem, token=token)
        write_private(layout.kubeconfig_of(user), json.dumps(content, indent=2) + "\n")
    return authority


def _write_service_account_key(layout: Layout) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_private(layout.file("service-account.key"), private)
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    layout.file("service-account.pub").write_bytes(public)


def etcd(layout: Layout) -> list[str]:
    """Return etcd's arguments: no fsync, since nothing has to outlive the machine."""
    peer = f"http://{LOOPBACK}:{layout.etcd_peer_port}"
    return [
        f"--data-dir={layout.file('etcd')}",
        f"--listen-client-urls={layout.etcd_url}",
        f"--advertise-client-urls={layout.etcd_url}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        f"--quota-backend-bytes={ETCD_QUOTA}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def kube_apiserver(layout: Layout) -> list[str]:
    """Return kube-apiserver's arguments."""
    pki = layout.file("pki")
    return [
        f"--etcd-servers={layout.etcd_url}",
        f"--bind-address={LOOPBACK}",
        f"--secure-port={layout.api_port}",
        # Nobody can reach the Service `kubernetes`, so no endpoint is published for it.
        "--advertise-address=198.19.255.254",
        "--endpoint-reconciler-type=none",
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
        f"--cert-dir={pki}",
        f"--tls-cert-file={layout.file('server.crt')}",
        f"--tls-private-key-file={layout.file('server.key')}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--token-auth-file={layout.file('tokens.csv')}",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-signing-key-file={layout.file('service-account.key')}",
        f"--service-account-key-file={layout.file('service-account.pub')}",
        f"--audit-policy-file={layout.file('audit-policy.json')}",
        f"--audit-log-path={layout.file('audit.log')}",
        "--allow-privileged=true",
        "--profiling=false",
    ]


def kube_controller_manager(layout: Layout) -> list[str]:
    """Return kube-controller-manager's arguments: each controller under its own account."""
    return [
        f"--kubeconfig={layout.kubeconfig_of('system:kube-controller-manager')}",
        "--controllers=*",
        "--leader-elect=false",
        "--secure-port=0",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={layout.file('service-account.key')}",
        f"--root-ca-file={layout.file('pki') / 'ca.crt'}",
        "--node-monitor-period=1s",
        *_UNTHROTTLED,
    ]


def kube_scheduler(layout: Layout) -> list[str]:
    """Return kube-scheduler's arguments."""
    return [
        f"--kubeconfig={layout.kubeconfig_of('system:kube-scheduler')}",
        "--leader-elect=false",
        "--secure-port=0",
        *_UNTHROTTLED,
    ]


def kwok(layout: Layout) -> list[str]:
    """Return kwok's arguments: every node is simulated, by our Stages alone."""
    return [
        f"--kubeconfig={layout.kubeconfig_of('kwok')}",
        f"--config={layout.file('stages.yaml')}",
        "--manage-all-nodes",
        f"--cidr={POD_NETWORK}",
        "--node-lease-duration-seconds=40",
    ]


COMMAND_LINES = {
    "etcd": etcd,
    "kube-apiserver": kube_apiserver,
    "kube-controller-manager": kube_controller_manager,
    "kube-scheduler": kube_scheduler,
    "kwok": kwok,
}
