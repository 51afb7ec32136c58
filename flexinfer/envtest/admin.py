# SPDX-License-Identifier: Apache-2.0
"""The harness's own small client: blocking, a connection a request, the admin's token.

It does not use `flexinfer.client`, so that what is tested does not test itself.
"""

from __future__ import annotations

import http.client
import json
import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from flexinfer.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    NotFoundError,
    TransportError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from flexinfer.meta.envelope import Tree

__all__ = ["Admin"]

TIMEOUT = 30.0
"""Seconds that an answer may take."""
FIELD_MANAGER = "envtest"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
_FIRST_FAILURE = 400


class Admin:
    """Do what cluster administrators do; answers are plain trees. Usable from any thread."""

    def __init__(self, url: str, *, ca_file: Path, token: str, timeout: float = TIMEOUT) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname or "", address.port
        self._token = token
        self._timeout = timeout
        self._tls = ssl.create_default_context(cafile=str(ca_file))

    def get(self, path: str, **params: str) -> Tree:
        """Read one object, or a list."""
        return self.request("GET", path, params=params)

    def create(self, path: str, body: Tree) -> Tree:
        """Post *body* to the collection, or subresource, at *path*."""
        return self.request("POST", path, body=body)

    def apply(self, path: str, body: Tree) -> Tree:
        """Apply *body* by server-side apply as manager `envtest`, with force."""
        params = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return self.request("PATCH", path, params=params, body=body, content_type=APPLY)

    def merge(self, path: str, body: Tree) -> Tree:
        """Change what *body* names, by merge patch."""
        return self.request("PATCH", path, body=body, content_type=MERGE)

    def delete(self, path: str, body: Tree | None = None) -> None:
        """Delete the object at *path*; one that is gone already is as good."""
        try:
            self.request("DELETE", path, body=body)
        except NotFoundError:
            return

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Tree | None = None,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> Tree:
        """Send one request and return the answer's JSON; `{"text": …}` when it is not JSON.

        Raises:
            ApiError: The server said no.
            TransportError: There was no answer in time.
        """
        target = f"{path}?{urlencode(params)}" if params else path
        data = None if body is None else json.dumps(body)
        sent = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": content_type,
            **(headers or {}),
        }
        connection = http.client.HTTPSConnection(
            self._host, self._port, timeout=self._timeout, context=self._tls
        )
        try:
            connection.request(method, target, body=data, headers=sent)
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise TransportError(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()
        answer = _parse(content)
        if response.status >= _FIRST_FAILURE:
            raise _error(f"{method} {path}", response.status, answer)
        return answer


def _parse(content: bytes) -> Tree:
    try:
        tree = json.loads(content)
    except ValueError:
        tree = None
    return tree if isinstance(tree, dict) else {"text": content.decode(errors="replace")}


def _error(what: str, status: int, answer: Tree) -> ApiError:
    reason = str(answer.get("reason", ""))
    kinds: dict[int, type[ApiError]] = {404: NotFoundError, 409: ConflictError}
    kind = AlreadyExistsError if reason == "AlreadyExists" else kinds.get(status, ApiError)
    message = answer.get("message") or answer.get("text", "")
    return kind(f"{what}: {status} {message}", status=status, reason=reason)
