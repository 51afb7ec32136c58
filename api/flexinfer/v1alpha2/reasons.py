# SPDX-License-Identifier: Apache-2.0
"""Condition types, reasons and phases of a Model: the words that alerts and scripts may rely on."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class ConditionType(StrEnum):
    """Name the conditions of a Model."""

    READY = "Ready"
    SCHEDULABLE = "Schedulable"
    CACHED = "Cached"
    IMMUTABLE_FIELD_DRIFT = "ImmutableFieldDrift"


class Reason(StrEnum):
    """Say why a condition has its status, in one word."""

    # Schedulable
    SCHEDULABLE = "Schedulable"
    NO_MATCHING_NODES = "NoMatchingNodes"
    AMBIGUOUS_GPU_VENDOR = "AmbiguousGPUVendor"
    BACKEND_UNSUPPORTED = "BackendUnsupported"
    VRAM_INSUFFICIENT = "VRAMInsufficient"

    # Cached
    NO_CACHE_JOB = "NoCacheJob"
    PVC_BOUND = "PVCBound"
    PREFETCH_SUCCEEDED = "PrefetchSucceeded"
    CACHE_CHECK = "CacheCheck"
    CACHE_COPY = "CacheCopy"
    CACHE_NOT_READY = "CacheNotReady"

    # Ready
    WAITING_FOR_ACTIVATION = "WaitingForActivation"
    STARTING_BACKEND = "StartingBackend"
    BACKEND_READY = "BackendReady"
    PREEMPTED = "Preempted"
    UNSCHEDULABLE = "Unschedulable"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CRASH_LOOP = "CrashLoopBackOff"
    REPLICA_FAILURE = "ReplicaFailure"

    # Ready and Schedulable: the spec, or what the API server says to what it leads to
    INVALID_SPEC = "InvalidSpec"
    NOT_OURS = "NotOurs"
    APPLY_FAILED = "ApplyFailed"
    FIELD_IMMUTABLE = "FieldImmutable"


class Phase(StrEnum):
    """Sum a Model's state up for a column."""

    IDLE = "Idle"
    PENDING = "Pending"
    LOADING = "Loading"
    READY = "Ready"
    PREEMPTED = "Preempted"
    FAILED = "Failed"


class LoadingSubstage(StrEnum):
    """Say what the newest pod is at while a Model is loading."""

    IMAGE_PULLING = "ImagePulling"
    INITIALIZING = "Initializing"
    LOADING_WEIGHTS = "LoadingWeights"
    COMPILING = "Compiling"
    HEALTH_CHECK_PENDING = "HealthCheckPending"
    PREEMPTED = "Preempted"


_BLOCKED: Mapping[str, str] = {
    Reason.NO_MATCHING_NODES: "No Ready, schedulable node has the GPUs that the Model asks for",
    Reason.AMBIGUOUS_GPU_VENDOR: "Nodes of several GPU vendors fit: name one in spec.gpu.vendor",
    Reason.BACKEND_UNSUPPORTED: "The backend is unknown, or does not run on such hardware",
    Reason.VRAM_INSUFFICIENT: "The GPUs of the nodes that fit have less memory than estimated",
    Reason.INVALID_SPEC: "The spec breaks a rule; the message names the field and the cure",
}

MEANINGS: Mapping[str, Mapping[str, str]] = {
    ConditionType.READY: {
        Reason.BACKEND_READY: "The backend answers on every replica, or on some of them",
        Reason.WAITING_FOR_ACTIVATION: "No replica is wanted now",
        Reason.STARTING_BACKEND: "Pods are there, and not ready yet",
        Reason.UNSCHEDULABLE: "The scheduler finds no node for a pod; the message is its own",
        Reason.IMAGE_PULL_FAILED: "A node cannot pull the image",
        Reason.CRASH_LOOP: "The backend keeps ending; the message holds its last words",
        Reason.REPLICA_FAILURE: "Pods cannot be made, say for want of a RuntimeClass or a quota",
        Reason.CACHE_NOT_READY: "The weights are not where the Model mounts them",
        Reason.PREEMPTED: "Another Model of the group has the GPU",
        Reason.NOT_OURS: "An object of the Model's name belongs to somebody else; it is untouched",
        Reason.APPLY_FAILED: "The API server refused a child; the message is its own",
        Reason.FIELD_IMMUTABLE: "A change could not take effect in a field that never changes",
        **_BLOCKED,
    },
    ConditionType.SCHEDULABLE: {
        Reason.SCHEDULABLE: "There are nodes for the Model, or it runs on CPUs",
        **_BLOCKED,
    },
    ConditionType.CACHED: {
        Reason.NO_CACHE_JOB: "There is nothing to prepare: weights are kept in the pod",
        Reason.PVC_BOUND: "The claim with the weights is bound",
        Reason.PREFETCH_SUCCEEDED: "A Job has fetched the weights into the claim",
        Reason.CACHE_CHECK: "A Job has found the weights in the claim of the source",
        Reason.CACHE_COPY: "A Job has copied the weights into the Model's own claim",
        Reason.CACHE_NOT_READY: "The claim or the weights in it are not there yet, or not at all",
    },
    ConditionType.IMMUTABLE_FIELD_DRIFT: {
        Reason.FIELD_IMMUTABLE: "Live objects keep values that the spec no longer asks for",
    },
}
"""What each reason of each condition means, for the API reference."""
