# SPDX-License-Identifier: Apache-2.0
"""The API server's audit log: the witness of what was sent, by whom, and what was answered."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from flexinfer.meta.envelope import Tree

__all__ = ["AuditEvent", "AuditLevel", "AuditLog", "AuditTrail"]

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
"""The verbs that change something; server-side apply is a patch."""
AuditLevel = Literal["Metadata", "Request", "RequestResponse"]

_COMPONENTS = (
    "kwok",
    "system:apiserver",
    "system:kube-controller-manager",
    "system:kube-scheduler",
)


def policy(level: AuditLevel) -> Tree:
    """Return the audit policy: everything, except what the control plane itself reads."""
    reads = ["get", "list", "watch"]
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "None", "users": list(_COMPONENTS), "verbs": reads},
            {
                "level": "None",
                "userGroups": ["system:serviceaccounts:kube-system"],
                "verbs": reads,
            },
            {"level": "None", "nonResourceURLs": ["/healthz*", "/livez*", "/readyz*"]},
            # Who led when is told by the Lease itself.
            {
                "level": "RequestResponse",
                "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}],
                "verbs": ["create", "update", "patch"],
                "omitManagedFields": True,
            },
            {"level": level, "omitManagedFields": True},
        ],
    }


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One request that was answered, or a watch that was begun."""

    verb: str
    user: str
    user_agent: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int
    uri: str
    stage: str
    audit_id: str
    body: Tree
    """The whole event; `requestObject` and `responseObject` only at the levels that log them."""

    @property
    def is_write(self) -> bool:
        """Tell whether the request asked for a change."""
        return self.verb in WRITES

    @property
    def field_manager(self) -> str:
        """Return the query's fieldManager; empty when there is none."""
        return parse_qs(urlsplit(self.uri).query).get("fieldManager", [""])[0]

    @classmethod
    def parse(cls, line: bytes | str) -> AuditEvent:
        """Read one line of the log."""
        body: Tree = json.loads(line)
        target = body.get("objectRef", {})
        return cls(
            verb=body["verb"],
            user=body["user"].get("username", ""),
            user_agent=body.get("userAgent", ""),
            group=target.get("apiGroup", ""),
            resource=target.get("resource", ""),
            subresource=target.get("subresource", ""),
            namespace=target.get("namespace", ""),
            name=target.get("name", ""),
            code=body.get("responseStatus", {}).get("code", 0),
            uri=body["requestURI"],
            stage=body["stage"],
            audit_id=body["auditID"],
            body=body,
        )


class AuditTrail(tuple[AuditEvent, ...]):
    """Events in the order of their answers, to be narrowed down."""

    __slots__ = ()

    def by(self, user: str) -> AuditTrail:
        """Keep what *user* sent."""
        return AuditTrail(event for event in self if event.user == user)

    def of(self, resource: str, subresource: str | None = None) -> AuditTrail:
        """Keep what went to *resource* (its plural), with *subresource* unless it is None."""
        return AuditTrail(
            event
            for event in self
            if event.resource == resource and subresource in {None, event.subresource}
        )

    def at(self, namespace: str, name: str | None = None) -> AuditTrail:
        """Keep what went to *namespace*, to the object *name* unless it is None."""
        return AuditTrail(
            event for event in self if event.namespace == namespace and name in {None, event.name}
        )

    def verbs(self, *verbs: str) -> AuditTrail:
        """Keep these verbs."""
        return AuditTrail(event for event in self if event.verb in verbs)

    def writes(self) -> AuditTrail:
        """Keep what asked for a change."""
        return AuditTrail(event for event in self if event.is_write)


class AuditLog:
    """The file that kube-apiserver writes; a mark is a position in it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def mark(self) -> int:
        """Return the present end."""
        return self.path.stat().st_size if self.path.exists() else 0

    def read(self, since: int = 0) -> AuditTrail:
        """Return the finished requests after *since*; a watch counts when it has begun."""
        return AuditTrail(self._read(since))

    def _read(self, since: int) -> Iterator[AuditEvent]:
        with self.path.open("rb") as file:
            file.seek(since)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                event = AuditEvent.parse(line)
                # A watch is logged when it begins and when it ends: count it once.
                if (event.verb == "watch") == (event.stage == "ResponseStarted"):
                    yield event
