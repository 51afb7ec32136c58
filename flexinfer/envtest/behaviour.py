# SPDX-License-Identifier: Apache-2.0
"""The words that tell simulated pods and nodes what to do.

A pod goes Pending, Running, Ready; a Job's pod goes Pending, Running, Succeeded. Annotations on
the pod (in a Deployment, on its template) change that. Delays are Go durations, such as `1500ms`,
and count from the pod's last change.
"""

from __future__ import annotations

from enum import StrEnum

_PREFIX = "envtest.flexinfer.ai/"
BEHAVIOUR = f"{_PREFIX}behaviour"
"""Pod annotation: one of `Behaviour`; when it is taken away, the pod recovers."""
READY_AFTER = f"{_PREFIX}ready-after"
"""Pod annotation: how long a running pod takes to become Ready; not at all by default."""
COMPLETE_AFTER = f"{_PREFIX}complete-after"
"""Pod annotation: how long a pod runs before it completes or fails; not at all by default."""
EXIT_CODE = f"{_PREFIX}exit-code"
"""Pod annotation: what a failing container ends with; 1 by default."""
MESSAGE = f"{_PREFIX}message"
"""Pod annotation: the termination message of a container that ends; empty by default."""
NOT_READY = f"{_PREFIX}not-ready"
"""Node label: `true` keeps the node NotReady."""
LOCAL_IMAGES = "flexinfer.local/"
"""Pods with an image under this are left alone: they are processes of this machine."""


class Behaviour(StrEnum):
    """How a pod misbehaves."""

    FAIL = "fail"
    """Its containers end with an error and are not restarted: phase Failed."""
    CRASH_LOOP = "crash-loop"
    """Its containers end with an error again and again: CrashLoopBackOff."""
    IMAGE_PULL_FAILURE = "image-pull-failure"
    """Its images cannot be pulled: ErrImagePull, then ImagePullBackOff."""
    NEVER_READY = "never-ready"
    """It runs and its readiness probe never succeeds."""
