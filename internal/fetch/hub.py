# SPDX-License-Identifier: Apache-2.0
"""The hub, through its own client library, whose errors become sentences with a cure.

The library's own download keeps nothing of a file that was cut, so only its requests, its
addresses and its errors are used; `download` resumes and verifies.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING

import httpx2
from huggingface_hub import HfApi, get_session, hf_hub_url, hf_raise_for_status
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from internal.fetch.errors import FetchError, HopelessError, TransientError
from internal.fetch.retry import retry_after
from internal.fetch.verify import Algorithm, RemoteFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from huggingface_hub.hf_api import RepoSibling

    from internal.fetch.environment import HubSettings

_USER_AGENT = "flexinfer"
_SECONDS_OF_SILENCE = 30.0
"""How long the hub may say nothing before a request counts as broken."""
_BUSY = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
_RANGE = re.compile(r"bytes (\d+)-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Be the files of a repository at the commit that a revision means now."""

    commit: str
    files: tuple[RemoteFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Be the bytes of a file from *offset* on, which may be less than what was asked for."""

    offset: int
    chunks: Iterator[bytes]


class Hub:
    """Ask the hub about one repository, such as `org/name`."""

    def __init__(self, repository: str, settings: HubSettings) -> None:
        self._repository = repository
        self._settings = settings

    def list(self, revision: str) -> Listing:
        """Return every file of the repository with its size and checksum.

        Raises:
            TransientError: The hub did not answer, or is busy
            HopelessError: No such repository or revision, or no right to read it
            FetchError: The answer is not one of a hub
        """
        token = self._settings.token or False
        api = HfApi(endpoint=self._settings.endpoint, token=token, library_name=_USER_AGENT)
        try:
            with self._asking("the list of files", revision):
                info = api.model_info(
                    self._repository,
                    revision=revision,
                    files_metadata=True,
                    timeout=_SECONDS_OF_SILENCE,
                )
        except (ValueError, TypeError, LookupError) as error:
            raise self._no_hub("gives an unreadable list of files") from error
        if not info.sha or info.siblings is None:
            raise self._no_hub("names no commit or no files")
        return Listing(commit=info.sha, files=tuple(map(self._file, info.siblings)))

    @contextmanager
    def open(self, commit: str, name: str, *, offset: int) -> Iterator[Content]:
        """Begin to read a file at *offset*; the content ends early only with an error.

        Raises:
            TransientError: The hub did not answer, is busy, or broke off
            HopelessError: No right to read the file
            FetchError: Any other refusal
        """
        url = hf_hub_url(self._repository, name, revision=commit, endpoint=self._settings.endpoint)
        headers = {"Accept-Encoding": "identity", "User-Agent": _USER_AGENT}
        if self._settings.token:
            headers["Authorization"] = f"Bearer {self._settings.token}"
        if offset:
            headers["Range"] = f"bytes={offset}-"
        with (
            self._asking(name, commit),
            get_session().stream(
                "GET", url, headers=headers, timeout=_SECONDS_OF_SILENCE
            ) as answer,
        ):
            hf_raise_for_status(answer)
            yield Content(offset=self._offset(answer, name), chunks=answer.iter_raw())

    def _file(self, sibling: RepoSibling) -> RemoteFile:
        name = sibling.rfilename
        if sibling.lfs is not None:
            size, algorithm, checksum = sibling.lfs.size, Algorithm.SHA256, sibling.lfs.sha256
        elif sibling.size is not None and sibling.blob_id:
            size, algorithm, checksum = sibling.size, Algorithm.GIT_BLOB, sibling.blob_id
        else:
            raise self._no_hub(f"names no size or checksum of {name}")
        return RemoteFile(name=name, size=size, algorithm=algorithm, checksum=checksum)

    @contextmanager
    def _asking(self, what: str, revision: str) -> Iterator[None]:
        """Turn what the library raises into our errors; URLs stay out, for some carry secrets."""
        host = self._settings.host
        try:
            yield
        except HfHubHTTPError as error:
            raise self._refusal(error, what, revision) from error
        except httpx2.TransportError as error:
            reason = type(error).__name__
            raise TransientError(
                f"{host} broke off or did not answer: {what} ({reason})"
            ) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._no_hub(f"answers with {type(error).__name__} for {what}") from error

    def _refusal(self, error: HfHubHTTPError, what: str, revision: str) -> FetchError:
        source = f"HF://{self._repository}"
        match error:
            case GatedRepoError():
                return self._gated()
            case RevisionNotFoundError():
                return HopelessError(
                    f"{source} has no revision {revision}; correct spec.cache.revision"
                )
            case RepositoryNotFoundError():
                return HopelessError(
                    f"{source} does not exist or is private; correct spec.source, or name a "
                    "Secret with a token that may read it in spec.cache.tokenSecretRef"
                )
        return self._refusal_by_status(error.response, what)

    def _refusal_by_status(self, answer: httpx2.Response, what: str) -> FetchError:
        status, host = answer.status_code, self._settings.host
        if status in _BUSY or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            pause = retry_after(answer.headers, now=datetime.now(UTC))
            return TransientError(f"{host} answers {status} for {what}", retry_after=pause)
        if status == HTTPStatus.UNAUTHORIZED and self._settings.token:
            return HopelessError(
                f"{host} does not accept the token; put a valid one into the Secret that "
                "spec.cache.tokenSecretRef names"
            )
        if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            return HopelessError(
                f"{host} refuses {what} of HF://{self._repository} with {status}; name a Secret "
                "with a token that may read it in spec.cache.tokenSecretRef"
            )
        return FetchError(
            f"{host} answers {status} for {what} of HF://{self._repository}; look at the source"
        )

    def _offset(self, answer: httpx2.Response, name: str) -> int:
        """Return where the content begins: a hub may not heed the range that was asked for."""
        if answer.status_code != HTTPStatus.PARTIAL_CONTENT:
            return 0
        begin = _RANGE.match(answer.headers.get("Content-Range", ""))
        if begin is None:
            raise self._no_hub(f"does not say which part of {name} it sends")
        return int(begin[1])

    def _gated(self) -> HopelessError:
        source = f"HF://{self._repository}"
        if self._settings.token:
            return HopelessError(
                f"{source} is gated, and the token of spec.cache.tokenSecretRef has no access to "
                "it; accept its terms with the account of that token"
            )
        return HopelessError(
            f"{source} is gated; accept its terms, and name a Secret with your token in "
            "spec.cache.tokenSecretRef"
        )

    def _no_hub(self, what: str) -> FetchError:
        return FetchError(
            f"{self._settings.host} {what}; make sure that HF_ENDPOINT is a hub or a mirror of one"
        )
