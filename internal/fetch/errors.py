# SPDX-License-Identifier: Apache-2.0
"""What a fetch ends with, ordered by whether another try may help.

```
FetchError             another try may help
├── TransientError     the hub is busy or the connection broke: tried again within the same run
└── HopelessError      no try helps until somebody changes something
```
"""

from __future__ import annotations

import errno

from flexinfer.errors import FlexInferError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}


class FetchError(FlexInferError):
    """Report, in one sentence with the cure, why a fetch failed; another try may help.

    `exit_code` is what the process ends with.
    """

    exit_code = 1


class TransientError(FetchError):
    """Report an answer that a later request may not get.

    `retry_after` is in seconds, None when the hub named no time.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class HopelessError(FetchError):
    """Report what no try cures: a setting, a right or a source has to change first."""

    exit_code = 2


def from_os_error(error: OSError) -> FetchError:
    """Say what the file system refused, and what to do about it."""
    path = error.filename or "the volume"
    reason = error.strerror or type(error).__name__
    if error.errno in _FULL:
        return FetchError(f"{path}: {reason}; raise spec.cache.size or clear the volume")
    if error.errno in _FORBIDDEN:
        return FetchError(f"{path}: {reason}; give the pod's user the right to use the volume")
    return FetchError(f"{path}: {reason}; look at the volume and its node")
