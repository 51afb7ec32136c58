# SPDX-License-Identifier: Apache-2.0
"""Job of batch/v1, as far as it is read: how it is doing, and how it ended."""

from __future__ import annotations

from typing import ClassVar

from flexinfer.kinds.condition import ForeignCondition, find, is_true
from flexinfer.meta.object import Model, Object
from flexinfer.meta.resource import GroupVersionKind, Resource

__all__ = ["Job", "JobStatus"]


class JobStatus(Model):
    """Be what the Job controller saw: pods that run, those of them that are ready, and failures.

    `failed` counts pods; while the Job has retries left it is not failed itself.
    """

    active: int = 0
    ready: int = 0
    failed: int = 0
    succeeded: int = 0
    conditions: tuple[ForeignCondition, ...] = ()


class Job(Object):
    """Read a Job."""

    resource: ClassVar[Resource] = Resource(GroupVersionKind("batch", "v1", "Job"), "jobs")

    status: JobStatus = JobStatus()

    @property
    def is_complete(self) -> bool:
        """Tell whether the Job has done its work."""
        return is_true(self.status.conditions, "Complete")

    @property
    def failure(self) -> ForeignCondition | None:
        """Return the condition that says that the Job failed for good, None while it has not."""
        found = find(self.status.conditions, "Failed")
        return found if found is not None and found.is_true else None

    @property
    def is_finished(self) -> bool:
        """Tell whether the Job starts no more pods."""
        return self.is_complete or self.failure is not None
