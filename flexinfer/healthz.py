# SPDX-License-Identifier: Apache-2.0
"""The probe endpoints `/healthz` and `/readyz`, as Kubernetes serves them.

An endpoint is a set of named checks. `GET /readyz` answers 200 `ok`, or 500 and a line per check.
`?verbose` always lists them, `?exclude=<check>` (repeatable) leaves one out, and
`/readyz/<check>` asks a single one. Unlike Kubernetes' own components a failing check says why:
the reader of a probe is the one who has to repair what it reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flexinfer.errors import ConfigurationError
from flexinfer.routing import Answer, Route

if TYPE_CHECKING:
    from collections.abc import Collection

    from flexinfer.routing import Request

__all__ = ["Check", "Checks", "Report"]

Check = Callable[[], str | None]
"""Return why the check fails, or None when all is well; must not wait."""


@dataclass(frozen=True, slots=True)
class Report:
    """Say what an endpoint answers: `text` is the verbose form."""

    healthy: bool
    text: str


class Checks:
    """Be the named checks of one endpoint; without any it is healthy.

    `endpoint` is the path without its slash, such as `readyz`.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._checks: dict[str, Check] = {}
        self._groups: list[Callable[[], Iterable[tuple[str, Check]]]] = []

    def add(self, name: str, check: Check) -> None:
        """Add a check; raise ConfigurationError when the name is taken or is no path segment."""
        if not name or not name.isprintable() or set(name) & set("/?#% "):
            raise ConfigurationError(
                f"check name {name!r} cannot stand in a path: use letters, digits, '-' and '.'"
            )
        if name in self._checks:
            raise ConfigurationError(
                f"/{self.endpoint} has a check {name!r} already: choose another name"
            )
        self._checks[name] = check

    def add_group(self, group: Callable[[], Iterable[tuple[str, Check]]]) -> None:
        """Add checks that come and go: *group* is called for each probe."""
        self._groups.append(group)

    def reason(self, name: str) -> str | None:
        """Run one check; raise KeyError when there is none of that name."""
        return _run(self._current()[name])

    def report(self, *, exclude: Collection[str] = ()) -> Report:
        """Run every check except those of *exclude*."""
        checks = self._current()
        lines: list[str] = []
        healthy = True
        for name, check in checks.items():
            if name in exclude:
                lines.append(f"[+]{name} excluded: ok")
            elif (reason := _run(check)) is None:
                lines.append(f"[+]{name} ok")
            else:
                healthy = False
                lines.append(f"[-]{name} failed: {reason}")
        if unknown := ", ".join(f'"{name}"' for name in exclude if name not in checks):
            lines.append(f"warn: some checks cannot be excluded: no matches for {unknown}")
        lines.append(f"{self.endpoint} check {'passed' if healthy else 'failed'}")
        return Report(healthy, "\n".join(lines) + "\n")

    def routes(self) -> list[Route]:
        """Return the endpoint's routes: all checks, and each of them."""
        return [
            Route(f"/{self.endpoint}", self._serve_all),
            Route(f"/{self.endpoint}/", self._serve_one),
        ]

    def _current(self) -> dict[str, Check]:
        checks = dict(self._checks)
        for group in self._groups:
            checks.update(group())
        return checks

    def _serve_all(self, request: Request) -> Answer:
        report = self.report(exclude=request.query.get("exclude", ()))
        if report.healthy and "verbose" not in request.query:
            return _answer(200, "ok")
        return _answer(200 if report.healthy else 500, report.text)

    def _serve_one(self, request: Request) -> Answer:
        name = request.name
        if not name:
            return self._serve_all(request)
        try:
            reason = self.reason(name)
        except KeyError:
            return _answer(404, f"/{self.endpoint} has no check {name}\n")
        if reason is None:
            return _answer(200, "ok")
        return _answer(500, f"[-]{name} failed: {reason}\n")


def _run(check: Check) -> str | None:
    try:
        reason = check()
    except Exception as error:  # noqa: BLE001 - a broken check is a failed check, and says so
        return f"the check itself failed: {type(error).__name__}: {error}"
    return None if reason is None else " ".join(reason.split())


def _answer(status: int, text: str) -> Answer:
    headers = {"Cache-Control": "no-cache, private", "X-Content-Type-Options": "nosniff"}
    return Answer(status, text.encode(), headers=headers)
