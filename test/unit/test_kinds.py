# SPDX-License-Identifier: Apache-2.0
"""The thin models read what the API server writes, and nothing breaks on what it leaves out."""

from __future__ import annotations

from typing import TypeVar

import pytest

from flexinfer.errors import DecodeError
from flexinfer.kinds.condition import ForeignCondition, find
from flexinfer.kinds.deployment import Deployment
from flexinfer.kinds.job import Job
from flexinfer.kinds.namespace import Namespace
from flexinfer.kinds.node import Node, Taint
from flexinfer.kinds.persistentvolumeclaim import PersistentVolumeClaim
from flexinfer.kinds.pod import Pod
from flexinfer.kinds.service import Service
from flexinfer.meta.envelope import decode_object, encode
from flexinfer.meta.object import Object
from flexinfer.meta.resource import NamespacedName

T = TypeVar("T", bound=Object)

META = {"name": "a", "namespace": "default", "uid": "u", "managedFields": [{"manager": "x"}]}
KINDS: list[type[Object]] = [Deployment, Job, Namespace, Node, PersistentVolumeClaim, Pod, Service]


def read(kind: type[T], **fields: object) -> T:
    return kind.decode(decode_object(encode({"metadata": META, **fields})))


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_without_spec_and_status_is_read(kind: type[Object]) -> None:
    assert read(kind).key == NamespacedName("default", "a")
    assert kind.resource.kind == kind.__name__


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (Deployment, "/apis/apps/v1/namespaces/default/deployments/a"),
        (Job, "/apis/batch/v1/namespaces/default/jobs/a"),
        (Namespace, "/api/v1/namespaces/a"),
        (Node, "/api/v1/nodes/a"),
        (PersistentVolumeClaim, "/api/v1/namespaces/default/persistentvolumeclaims/a"),
        (Pod, "/api/v1/namespaces/default/pods/a"),
        (Service, "/api/v1/namespaces/default/services/a"),
    ],
)
def test_every_kind_knows_its_path(kind: type[Object], path: str) -> None:
    namespace = "default" if kind.resource.namespaced else ""
    assert kind.resource.object_path(NamespacedName(namespace, "a")) == path


def test_a_job_is_read() -> None:
    running = read(Job, status={"active": 1, "ready": 1, "failed": 2, "startTime": "x"})
    assert (running.status.active, running.status.ready, running.status.failed) == (1, 1, 2)
    assert (running.is_finished, running.is_complete, running.failure) == (False, False, None)
    done = read(
        Job, status={"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}
    )
    assert (done.is_finished, done.is_complete, done.failure) == (True, True, None)


@pytest.mark.parametrize(("status", "is_failed"), [("True", True), ("False", False)])
def test_a_job_has_failed_only_when_its_condition_says_so(status: str, *, is_failed: bool) -> None:
    condition = {"type": "Failed", "status": status, "reason": "BackoffLimitExceeded"}
    found = read(Job, status={"failed": 4, "conditions": [condition]})
    assert found.is_finished is is_failed
    assert (found.failure is not None) is is_failed


def test_a_deployment_is_read() -> None:
    found = read(
        Deployment,
        spec={
            "replicas": 2,
            "selector": {"matchLabels": {"name": "m"}},
            "template": {"metadata": {"labels": {"name": "m"}, "creationTimestamp": None}},
            "strategy": {"type": "RollingUpdate"},
        },
        status={
            "observedGeneration": 3,
            "updatedReplicas": 2,
            "readyReplicas": 1,
            "availableReplicas": 1,
            "conditions": [
                {"type": "Available", "status": "False", "reason": "MinimumReplicasUnavailable"},
                {"type": "ReplicaFailure", "status": "True", "message": "no such class"},
            ],
        },
    )
    assert found.spec.replicas == 2
    assert found.spec.selector.match_labels == found.spec.template.metadata.labels == {"name": "m"}
    status = found.status
    assert (status.observed_generation, status.replicas, status.ready_replicas) == (3, 0, 1)
    assert (status.updated_replicas, status.available_replicas) == (2, 1)
    failure = find(status.conditions, "ReplicaFailure")
    assert failure is not None
    assert failure.is_true
    assert failure.message == "no such class"
    assert find(status.conditions, "Progressing") is None
    assert not ForeignCondition(type="Ready", status="Unknown").is_true


def test_a_service_is_read_with_the_addresses_in_their_own_spelling() -> None:
    found = read(
        Service,
        spec={
            "clusterIP": "10.0.0.7",
            "clusterIPs": ["10.0.0.7"],
            "selector": {"name": "m"},
            "type": "ClusterIP",
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": "http"}],
        },
    )
    assert (found.spec.cluster_ip, found.spec.cluster_ips) == ("10.0.0.7", ("10.0.0.7",))
    assert found.spec.ports[0].target_port == "http"
    assert read(Service, spec={"ports": [{"port": 80, "targetPort": 8080}]}).spec.ports[0] == (
        found.spec.ports[0].model_copy(update={"name": "", "target_port": 8080})
    )


def test_a_pod_says_why_it_does_not_run() -> None:
    found = read(
        Pod,
        spec={"nodeName": "n", "containers": [{"name": "server", "image": "i"}]},
        status={
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
            "initContainerStatuses": [
                {"name": "fetch", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
            ],
            "containerStatuses": [
                {
                    "name": "server",
                    "restartCount": 4,
                    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
                    "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
                },
                {"name": "sidecar", "ready": True, "state": {"running": {"startedAt": "t"}}},
            ],
        },
    )
    assert (found.spec.node_name, found.spec.containers[0].image) == ("n", "i")
    server, sidecar = found.status.container_statuses
    assert server.state.waiting is not None
    assert (server.state.waiting.reason, server.restart_count) == ("CrashLoopBackOff", 4)
    assert server.last_state.terminated is not None
    assert server.last_state.terminated.reason == "OOMKilled"
    assert sidecar.ready
    assert sidecar.state.running is not None
    assert found.status.init_container_statuses[0].state.waiting is None


def test_a_node_says_what_it_offers() -> None:
    found = read(
        Node,
        spec={
            "unschedulable": True,
            "taints": [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}],
        },
        status={
            "capacity": {"nvidia.com/gpu": "8"},
            "allocatable": {"nvidia.com/gpu": "7"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    )
    assert found.spec.unschedulable
    assert found.spec.taints == (Taint(key="dedicated", value="gpu", effect="NoSchedule"),)
    assert found.status.capacity != found.status.allocatable == {"nvidia.com/gpu": "7"}


def test_a_claim_tells_no_class_from_the_default_one() -> None:
    found = read(
        PersistentVolumeClaim,
        spec={
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "",
            "volumeName": "pv",
        },
        status={"phase": "Bound", "capacity": {"storage": "2Gi"}},
    )
    assert found.spec.storage_class_name == ""
    assert read(PersistentVolumeClaim).spec.storage_class_name is None
    assert (found.status.phase, found.spec.resources.requests) == ("Bound", {"storage": "1Gi"})
    assert read(Namespace, status={"phase": "Active"}).status.phase == "Active"


def test_a_misfit_names_its_field() -> None:
    with pytest.raises(DecodeError, match=r"Deployment default/a: spec\.replicas") as caught:
        read(Deployment, spec={"replicas": "many"})
    assert caught.value.field == "spec.replicas"
