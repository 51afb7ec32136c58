# SPDX-License-Identifier: Apache-2.0
"""Condition types, reasons and phases of a Model: the words that alerts and scripts may rely on."""

from __future__ import annotations

from enum import StrEnum


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

    # Cached
    NO_CACHE_JOB = "NoCacheJob"
    PVC_BOUND = "PVCBound"
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
