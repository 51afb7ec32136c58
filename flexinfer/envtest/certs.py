# SPDX-License-Identifier: Apache-2.0
"""A certificate authority for tests, so that clients verify TLS as they do in a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import trustme

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LOOPBACK = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class CertificateAuthority:
    """Issue certificates into one folder; keys are readable by their owner alone."""

    folder: Path
    ca_pem: Path
    _authority: trustme.CA

    @classmethod
    def create(cls, folder: Path) -> CertificateAuthority:
        """Make a new authority and write its certificate to `ca.crt` in *folder*."""
        folder.mkdir(parents=True, exist_ok=True)
        authority = trustme.CA()
        ca_pem = folder / "ca.crt"
        authority.cert_pem.write_to_path(ca_pem)
        return cls(folder, ca_pem, authority)

    def issue(
        self, names: Sequence[str] = LOOPBACK, *, common_name: str = "", organization: str = ""
    ) -> tuple[Path, Path]:
        """Return the paths of a certificate chain for *names*, and of its key.

        Names are host names or IP addresses. *common_name* and *organization* are what an API
        server reads as user and group from a client certificate. Files are named after the
        common name, or after the first name.
        """
        issued = self._authority.issue_cert(
            *names,
            common_name=common_name or None,
            organization_name=organization or None,
        )
        stem = (common_name or names[0]).replace("/", "_").replace(":", "-")
        certificate, key = self.folder / f"{stem}.crt", self.folder / f"{stem}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        key.touch(mode=0o600)
        key.write_bytes(issued.private_key_pem.bytes())
        return certificate, key
