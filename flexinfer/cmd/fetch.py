# SPDX-License-Identifier: Apache-2.0
"""`flexinfer fetch`: bring weights into a claim, or look whether they are there.

What the Jobs of a Model's cache run. The last line on standard error, or on success the last one
on standard output, is also left behind as the pod's termination message.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

if TYPE_CHECKING:
    from collections.abc import Callable

    from internal.fetch.report import Outcome

fetch = App(name="fetch", help="Bring weights into a claim, or look whether they are there.")

Patterns = Annotated[tuple[str, ...], Parameter(negative=(), allow_leading_hyphen=True)]


@fetch.command
def hub(
    *,
    source: str,
    to: Path,
    revision: str = "",
    allow: Patterns = (),
    ignore: Patterns = (),
) -> int:
    """Fetch a repository of the hub: resumed after a cut, verified, and marked when it is whole.

    HF_TOKEN opens gated repositories; HF_ENDPOINT names a mirror.

    Args:
        source: The repository, as HF://org/name
        to: The directory to fill, such as /models/NAME
        revision: A branch, tag or commit; the main branch unless given
        allow: Fetch only files that match this pattern; may be given several times
        ignore: Fetch no file that matches this pattern; may be given several times
    """

    def work() -> Outcome:
        from internal.fetch import environment

        environment.quieten(os.environ)
        from internal.backends.source import Scheme
        from internal.fetch.download import fetch_hub, identify
        from internal.fetch.hub import Hub
        from internal.fetch.retry import Patience

        repository = _reference(source, Scheme.HUGGING_FACE)
        return fetch_hub(
            Hub(repository, environment.hub_settings(os.environ)),
            identify(source, revision=revision, allow=allow, ignore=ignore),
            to,
            patience=Patience(),
            write=_say,
        )

    return _run(work)


@fetch.command
def copy(*, source: str, from_: Annotated[Path, Parameter(name="--from")], to: Path) -> int:
    """Copy a directory of another claim: verified by size, and marked when it is whole.

    Args:
        source: What is copied, as pvc://claim/path
        from_: Where that path is mounted
        to: The directory to fill, such as /models/NAME
    """

    def work() -> Outcome:
        from internal.backends.source import Scheme
        from internal.fetch.copy import fetch_copy

        _reference(source, Scheme.PVC)
        return fetch_copy(source, from_, to, write=_say)

    return _run(work)


@fetch.command
def check(*, source: str, path: Path) -> int:
    """Look whether a path of a claim holds files with content.

    Args:
        source: What is looked at, as pvc://claim/path
        path: Where that path is mounted
    """

    def work() -> Outcome:
        from internal.backends.source import Scheme
        from internal.fetch.check import fetch_check

        _reference(source, Scheme.PVC)
        return fetch_check(source, path)

    return _run(work)


def _reference(source: str, scheme: str) -> str:
    """Return what *source* names in its scheme; raise HopelessError when it is of another."""
    from internal.backends.source import SourceError, parse_source
    from internal.fetch.errors import HopelessError

    try:
        parsed = parse_source(source)
    except SourceError as error:
        raise HopelessError(str(error)) from None
    if parsed.scheme != scheme:
        raise HopelessError(f"--source {source!r} is not of the form {scheme}://; correct it")
    return parsed.reference


def _run(work: Callable[[], Outcome]) -> int:
    """Do *work*, and say at the end how it went; return the exit code."""
    from internal.fetch.errors import FetchError, from_os_error
    from internal.fetch.report import leave_behind, sentence

    # The first process of a container would not heed it otherwise.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        line, code = str(work()), 0
    except FetchError as error:
        line, code = sentence(error), error.exit_code
    except OSError as error:
        line, code = sentence(from_os_error(error)), FetchError.exit_code
    except KeyboardInterrupt:
        line, code = "stopped by a signal; what is there is kept for the next try", 1
    print(line, file=sys.stderr if code else sys.stdout, flush=True)
    leave_behind(line, os.environ)
    return code


def _say(line: str) -> None:
    print(line, flush=True)
