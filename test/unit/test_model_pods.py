# SPDX-License-Identifier: Apache-2.0
"""What pods say: what keeps them from serving, and what the newest is at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from api.flexinfer.v1alpha2.reasons import LoadingSubstage, Reason
from controllers.model.pods import living, substage, troubles
from flexinfer.kinds.pod import Pod
from flexinfer.meta.envelope import meta_from

if TYPE_CHECKING:
    from flexinfer.meta.envelope import Tree

READY = [{"type": "Ready", "status": "True"}]


def pod(name: str = "m-1-a", *, node: str = "n", created: str = "", **status: object) -> Pod:
    made = created or "2026-01-01T00:00:00Z"
    metadata: Tree = {"name": name, "namespace": "ns", "creationTimestamp": made}
    container = {"name": "model", "image": "img:1"}
    return Pod.model_validate(
        {
            "metadata": meta_from(metadata),
            "spec": {"nodeName": node, "containers": [container]},
            "status": {"phase": "Running", **status},
        }
    )


def with_container(state: Tree, *, name: str = "m-1-a", **more: object) -> Pod:
    return pod(name, containerStatuses=[{"name": "model", "state": state, **more}])


def unscheduled(message: str = "0/3 nodes are available: 3 Insufficient cpu.") -> Pod:
    condition = {"type": "PodScheduled", "status": "False", "message": message}
    return pod(node="", phase="Pending", conditions=[condition])


RUNNING = with_container({"running": {"startedAt": "2026-01-01T00:00:00Z"}})
UNSCHEDULED = unscheduled()
PULLING = with_container({"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}})
CRASHING = with_container({"waiting": {"reason": "CrashLoopBackOff"}}, restartCount=4)


def test_what_several_pods_say_is_said_once() -> None:
    twin = UNSCHEDULED.model_copy(update={"metadata": meta_from({"name": "m-1-b"})})
    (trouble,) = troubles([twin, UNSCHEDULED])
    assert trouble.text.startswith("pod m-1-a and 1 more: 0/3 nodes")


def test_the_gravest_trouble_comes_first() -> None:
    reasons = [t.reason for t in troubles([UNSCHEDULED, PULLING, CRASHING])]
    assert reasons == [Reason.CRASH_LOOP, Reason.IMAGE_PULL_FAILED, Reason.UNSCHEDULABLE]


def test_a_container_that_keeps_ending_loops_while_it_runs_again() -> None:
    last = {"terminated": {"exitCode": 1}}
    again = with_container({"running": {}}, restartCount=2, lastState=last)
    assert troubles([again])[0].reason is Reason.CRASH_LOOP
    once = with_container({"running": {}}, restartCount=1, lastState=last)
    assert troubles([once]) == []
    served = with_container({"running": {}}, restartCount=9, lastState=last, ready=True)
    assert troubles([served]) == []


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (
            {"waiting": {"reason": "CreateContainerConfigError", "message": "no secret"}},
            "container model does not start: CreateContainerConfigError: no secret",
        ),
        (
            {"waiting": {"reason": "CreateContainerError"}},
            "container model does not start: CreateContainerError",
        ),
        ({"terminated": {"exitCode": 2}}, "container model ended with exit code 2"),
    ],
)
def test_other_troubles_of_containers(state: Tree, words: str) -> None:
    (trouble,) = troubles([with_container(state)])
    assert trouble.reason is Reason.STARTING_BACKEND
    assert trouble.text == f"pod m-1-a: {words}"


@pytest.mark.parametrize(
    ("message", "cure"),
    [
        ('secret "hub-token" not found', "create Secret hub-token in namespace ns"),
        ('configmap "settings" not found', "create ConfigMap settings in namespace ns"),
        (
            "couldn't find key token in Secret ns/hub-token",
            "add the key token to Secret ns/hub-token",
        ),
        (
            "couldn't find key port in ConfigMap ns/settings",
            "add the key port to ConfigMap ns/settings",
        ),
    ],
)
def test_what_a_container_cannot_be_configured_without_is_named_with_the_cure(
    message: str, cure: str
) -> None:
    state = {"waiting": {"reason": "CreateContainerConfigError", "message": message}}
    (trouble,) = troubles([with_container(state)])
    assert trouble.reason is Reason.STARTING_BACKEND
    assert trouble.text == (
        f"pod m-1-a: container model does not start: CreateContainerConfigError: {message}; {cure}"
    )


def test_a_container_that_is_being_made_is_no_trouble() -> None:
    assert troubles([with_container({"waiting": {"reason": "ContainerCreating"}})]) == []


def test_pods_that_ended_count_only_alone() -> None:
    ended = pod("m-1-x", phase="Failed", reason="Evicted", message="disk pressure")
    assert living([ended, RUNNING]) == [RUNNING]
    (trouble,) = troubles(living([ended]))
    assert trouble.text == "pod m-1-x: ended with phase Failed: Evicted; disk pressure"


def test_pods_on_their_way_out_do_not_count() -> None:
    gone = Pod.model_validate(
        {"metadata": meta_from({"name": "g", "deletionTimestamp": "2026-01-01T00:00:00Z"})}
    )
    assert living([gone]) == []


def test_init_containers_are_heard_too() -> None:
    waiting = {"reason": "ErrImagePull", "message": "not found"}
    sick = pod(initContainerStatuses=[{"name": "init", "state": {"waiting": waiting}}])
    assert troubles([sick])[0].reason is Reason.IMAGE_PULL_FAILED


def test_a_pod_that_serves_is_in_no_trouble_whatever_it_went_through() -> None:
    last = {"terminated": {"exitCode": 1}}
    status = {"name": "model", "state": {"running": {}}, "restartCount": 9, "lastState": last}
    assert troubles([pod(conditions=READY, containerStatuses=[status])]) == []


def test_a_scheduler_that_says_nothing_is_quoted_all_the_same() -> None:
    assert troubles([unscheduled("")])[0].text == "pod m-1-a: cannot be scheduled"


def test_a_pod_that_ended_tells_how_its_containers_did() -> None:
    states = [
        {"name": "model", "state": {"terminated": {"exitCode": 3, "reason": "Error"}}},
        {"name": "other", "state": {}},
    ]
    (trouble,) = troubles([pod(phase="Failed", containerStatuses=states)])
    text = "ended with phase Failed: container model ended with exit code 3 (Error)"
    assert trouble.text == f"pod m-1-a: {text}"
    (silent,) = troubles([pod(phase="Succeeded")])
    assert silent.text == "pod m-1-a: ended with phase Succeeded"


def test_of_long_last_words_the_end_is_shown_from_a_whole_word() -> None:
    last = {"terminated": {"exitCode": 1, "message": "noise " * 99 + "out of memory"}}
    (trouble,) = troubles([with_container({"running": {}}, restartCount=2, lastState=last)])
    _, _, said = trouble.text.partition("ended with exit code 1: ")
    assert said.startswith("…noise noise ")
    assert said.endswith(" noise out of memory")
    assert len(said) <= 300
    solid = {"terminated": {"exitCode": 1, "message": "x" * 400}}
    (trouble,) = troubles([with_container({"running": {}}, restartCount=2, lastState=solid)])
    assert trouble.text.endswith(": …" + "x" * 299)


def test_a_crash_loop_of_which_nothing_more_is_known_is_said() -> None:
    (trouble,) = troubles([CRASHING])
    assert trouble.text == "pod m-1-a: container model ends again and again"


@pytest.mark.parametrize(
    ("pods", "stage"),
    [
        ([], None),
        ([UNSCHEDULED], None),
        ([pod(conditions=READY)], None),
        ([pod()], LoadingSubstage.INITIALIZING),
        ([PULLING], LoadingSubstage.IMAGE_PULLING),
        ([CRASHING], LoadingSubstage.INITIALIZING),
        ([RUNNING], LoadingSubstage.HEALTH_CHECK_PENDING),
        ([UNSCHEDULED, PULLING, RUNNING], LoadingSubstage.IMAGE_PULLING),
    ],
)
def test_the_newest_pod_that_was_placed_tells_how_far_a_start_is(
    pods: list[Pod], stage: LoadingSubstage | None
) -> None:
    assert substage(pods) is stage
