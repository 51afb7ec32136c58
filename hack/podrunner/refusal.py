# SPDX-License-Identifier: Apache-2.0
"""Why a container is not started, as its waiting state says it."""

from __future__ import annotations

from typing import Self

from flexinfer.errors import FlexInferError


class LaunchError(FlexInferError):
    """Be a waiting reason and its message; what it speaks of may mend, so it is tried again."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    @classmethod
    def unsupported(cls, what: str) -> Self:
        """Say that the runner does not do *what*."""
        return cls("CreateContainerConfigError", f"the pod runner does not support {what}")
