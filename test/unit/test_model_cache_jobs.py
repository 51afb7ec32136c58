# SPDX-License-Identifier: Apache-2.0
"""The Jobs: what they run, as whom, where, and what makes one differ from another."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.flexinfer.v1alpha2.model_types import Model
from controllers.model import cache_jobs, names
from controllers.model.cache import Cache, Work, plan_cache
from controllers.model.cache_jobs import arguments, patterns, setup_hash, work_hash
from flexinfer.apply.intent import clean
from flexinfer.meta.envelope import meta_from
from internal.backends.llamacpp import LLAMACPP
from internal.backends.source import parse_source
from internal.backends.vllm import VLLM

if TYPE_CHECKING:
    from flexinfer.meta.envelope import Tree
    from internal.backends.backend import Backend

HUB, PVC = "HF://o/m", "pvc://weights/sub/m"
ENVIRONMENT = {"DEFAULT_FETCH_IMAGE": "registry.example/flexinfer:v1"}
TOKEN = {"tokenSecretRef": {"name": "hub"}}

CASES: dict[Work, tuple[str, Tree]] = {
    Work.PREFETCH: (HUB, TOKEN),
    Work.CHECK: (PVC, {"strategy": "None"}),
    Work.COPY: (PVC, {}),
}


def model(source: str = HUB, cache: Tree | None = None, **spec: object) -> Model:
    meta = meta_from({"name": "m", "namespace": "ns", "uid": "u", "generation": 3})
    tree = {"backend": "vllm", "source": source, "cache": cache or {}, **spec}
    return Model.model_validate({"metadata": meta, "spec": tree})


def plan(of: Model, backend: Backend = VLLM) -> Cache:
    return plan_cache(of, parse_source(of.spec.source), backend)


def job(of: Model, environment: dict[str, str] | None = None) -> Tree:
    found: Tree = clean(
        cache_jobs.job(of, plan(of), environment or ENVIRONMENT, annotations={"a": "1"})
    )
    return found


def pod(of: Model, environment: dict[str, str] | None = None) -> Tree:
    found: Tree = job(of, environment)["spec"]["template"]["spec"]
    return found


def container(of: Model, environment: dict[str, str] | None = None) -> Tree:
    (found,) = pod(of, environment)["containers"]
    assert isinstance(found, dict)
    return found


def of_work(work: Work, **spec: object) -> Model:
    source, cache = CASES[work]
    return model(source, cache, **spec)


# Arguments


@pytest.mark.parametrize(
    ("source", "cache", "words"),
    [
        (HUB, {}, "fetch hub --source HF://o/m --to /models/m"),
        (
            HUB,
            {"revision": "v1", "allowPatterns": ["b", "a"], "ignorePatterns": ["*.bin"]},
            (
                "fetch hub --source HF://o/m --to /models/m --revision v1 --allow=a --allow=b "
                "--ignore=*.bin"
            ),
        ),
        (PVC, {}, "fetch copy --source pvc://weights/sub/m --from /source/sub/m --to /models/m"),
        ("pvc://weights", {}, "fetch copy --source pvc://weights --from /source --to /models/m"),
        (
            PVC,
            {"strategy": "Local"},
            "fetch check --source pvc://weights/sub/m --path /models/sub/m",
        ),
        ("pvc://w/", {"strategy": "None"}, "fetch check --source pvc://w --path /models"),
    ],
)
def test_what_a_job_is_told(source: str, cache: Tree, words: str) -> None:
    of = model(source, cache)
    assert list(arguments(of, plan(of))) == words.split()
    assert container(of)["args"] == words.split()


def test_point_25_nothing_a_user_writes_meets_a_shell_or_becomes_a_variable() -> None:
    evil = "$(rm -rf /); `x`' \""
    of = model(f"pvc://weights/{evil}", {"strategy": "None"})
    words = ("fetch", "check", "--source", f"pvc://weights/{evil}", "--path", f"/models/{evil}")
    assert arguments(of, plan(of)) == words
    check = container(of)
    assert check["command"] == ["flexinfer"]
    assert check["args"] == [word.replace("$(", "$$(") for word in words]
    hub = container(model(HUB, TOKEN | {"allowPatterns": ["$(HF_TOKEN)", "--to=/etc"]}))
    assert hub["command"] == ["flexinfer"]
    assert hub["args"][-2:] == ["--allow=$$(HF_TOKEN)", "--allow=--to=/etc"]


def test_files_of_the_config_narrow_what_is_fetched() -> None:
    config = {"ggufFile": "q4.gguf", "mmproj": "mm[1].gguf"}
    of = model(HUB, config=config)
    assert arguments(of, plan(of, LLAMACPP))[-2:] == ("--allow=mm[[]1].gguf", "--allow=q4.gguf")
    said = model(HUB, {"allowPatterns": ["*.json"]}, config={"ggufFile": "q4.gguf"})
    assert arguments(said, plan(said, LLAMACPP))[-2:] == ("--allow=*.json", "--allow=q4.gguf")
    assert arguments(model(), plan(model(), LLAMACPP))[-2:] == ("--to", "/models/m")


@given(
    st.lists(st.text(alphabet="ab*/. []", max_size=8)),
    st.lists(st.text(alphabet="ab*/. []", max_size=8)),
)
def test_patterns_are_spelled_in_one_way(said: list[str], files: list[str]) -> None:
    found = patterns(said, files)
    assert list(found) == sorted(set(found))
    assert patterns(reversed([*said, *said]), reversed(files)) == found
    assert patterns(found) == found
    for pattern in found:
        assert pattern == pattern.strip()
        assert pattern
        assert not pattern.startswith("/")
        assert ".." not in pattern.split("/")
    for wanted in said:
        trimmed = wanted.strip().lstrip("/ ")
        assert trimmed in found or not trimmed or ".." in trimmed.split("/")


@given(st.text(alphabet="ab*?[]!-.", min_size=1, max_size=8))
def test_a_file_is_matched_by_its_own_name_alone(file: str) -> None:
    for pattern in patterns((), [file]):
        assert fnmatchcase(file, pattern)
        assert not fnmatchcase(f"{file}x", pattern)
        assert not fnmatchcase(f"x{file}", pattern)


def test_without_work_there_is_no_job() -> None:
    of = model(HUB, {"strategy": "None"})
    with pytest.raises(ValueError, match="nothing has to be prepared"):
        arguments(of, plan(of))


# The Job


def test_point_24_the_token_goes_to_the_fetching_container_alone() -> None:
    wanted = {
        "name": "HF_TOKEN",
        "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}},
    }
    assert wanted in container(of_work(Work.PREFETCH))["env"]
    assert [v["name"] for v in container(model(HUB))["env"]] == ["HF_HOME"]
    for of in (model(PVC, TOKEN), model(PVC, TOKEN | {"strategy": "None"})):
        assert container(of)["env"] == []


def test_the_hub_of_the_manager_is_the_hub_of_the_job() -> None:
    environment = ENVIRONMENT | {"HF_ENDPOINT": " http://127.0.0.1:1 "}
    endpoint = {"name": "HF_ENDPOINT", "value": "http://127.0.0.1:1"}
    assert endpoint in container(model(HUB), environment)["env"]
    assert container(model(PVC), environment)["env"] == []


@pytest.mark.parametrize("work", Work)
def test_a_job_says_what_it_is_for(work: Work) -> None:
    of = of_work(work)
    found = job(of)
    assert found["metadata"]["name"] == f"m-cache-{work}"
    assert found["metadata"]["namespace"] == "ns"
    annotations = found["metadata"]["annotations"]
    assert annotations == {
        "a": "1",
        names.SOURCE_ANNOTATION: of.spec.source,
        names.CACHE_KIND_ANNOTATION: work.value,
        names.CACHE_CLAIM_ANNOTATION: plan(of).claim,
    }
    template = found["spec"]["template"]["metadata"]
    assert template == {"labels": found["metadata"]["labels"], "annotations": annotations}
    assert set(cache_jobs.job_names(of)) == {f"m-cache-{name}" for name in Work}


@pytest.mark.parametrize("work", Work)
def test_no_service_sends_requests_to_a_job(work: Work) -> None:
    of = of_work(work)
    labels = job(of)["spec"]["template"]["metadata"]["labels"]
    assert labels[names.MODEL_LABEL] == "m"
    assert not labels.items() >= names.selector_labels(of).items()


@pytest.mark.parametrize(
    ("work", "retries", "deadline"),
    [(Work.PREFETCH, 3, 86400), (Work.COPY, 1, 86400), (Work.CHECK, 1, 3600)],
)
def test_how_often_and_how_long_a_job_tries(work: Work, retries: int, deadline: int) -> None:
    spec = job(of_work(work))["spec"]
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"]) == (retries, deadline)
    assert "ttlSecondsAfterFinished" not in spec
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    hopeless, drained = spec["podFailurePolicy"]["rules"]
    assert hopeless == {
        "action": "FailJob",
        "onExitCodes": {"containerName": "fetch", "operator": "In", "values": [2]},
    }
    assert drained["action"] == "Ignore"


@pytest.mark.parametrize("work", Work)
def test_a_job_has_no_rights_to_lose(work: Work) -> None:
    found = pod(of_work(work))
    (fetcher,) = found["containers"]
    assert found["automountServiceAccountToken"] is False
    assert found["securityContext"]["runAsNonRoot"] is True
    assert found["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert fetcher["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert fetcher["image"] == "registry.example/flexinfer:v1"
    assert fetcher["imagePullPolicy"] == "IfNotPresent"
    assert fetcher["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert fetcher["resources"] == {
        "requests": {"cpu": "100m", "memory": "1Gi"},
        "limits": {"memory": "8Gi"},
    }


def volumes(of: Model) -> dict[str, Tree]:
    found = pod(of)
    mounts = {m["name"]: m["mountPath"] for m in found["containers"][0]["volumeMounts"]}
    return {mounts[v.pop("name")]: v for v in found["volumes"]}


def test_what_a_job_mounts() -> None:
    scratch: dict[str, Tree] = {"/tmp": {"emptyDir": {}}}  # noqa: S108 - in the pod
    own = {"persistentVolumeClaim": {"claimName": "m-cache"}}
    source = {"persistentVolumeClaim": {"claimName": "weights", "readOnly": True}}
    assert volumes(of_work(Work.PREFETCH)) == scratch | {"/models": own}
    assert volumes(of_work(Work.COPY)) == scratch | {"/models": own, "/source": source}
    assert volumes(of_work(Work.CHECK)) == scratch | {"/models": source}


def test_files_of_a_user_keep_their_owners() -> None:
    assert "fsGroup" not in pod(of_work(Work.CHECK))["securityContext"]
    for work in (Work.COPY, Work.PREFETCH):
        security = pod(of_work(work))["securityContext"]
        assert security["fsGroup"] == security["runAsUser"]
        assert security["fsGroupChangePolicy"] == "OnRootMismatch"


def test_a_job_runs_where_the_model_may() -> None:
    """Point 32: tolerations are applied; a claim may bind to the node of the Job."""
    of = model(
        HUB,
        gpu={"vendor": "nvidia"},
        nodeSelector={"zone": "a"},
        tolerations=[{"key": "team", "operator": "Exists"}],
    )
    found = pod(of)
    assert found["nodeSelector"] == {"zone": "a"}
    assert [t["key"] for t in found["tolerations"]] == ["dedicated", "team"]
    terms = found["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    labels = {e["key"] for term in terms for e in term["preference"]["matchExpressions"]}
    assert labels == {"nvidia.com/gpu.compute.major", "flexinfer.ai/gpu.arch"}
    assert {"nodeSelector", "tolerations", "affinity"}.isdisjoint(pod(model(HUB)))
    assert "affinity" not in pod(model(HUB, gpu={"vendor": "cpu"}))


# What makes one Job differ from another


def hashes(
    of: Model, uids: tuple[str, ...] = ("1",), environment: dict[str, str] = ENVIRONMENT
) -> tuple[str, str]:
    cache = plan(of)
    return work_hash(of, cache, uids), setup_hash(of, cache, environment)


SAME = hashes(model(HUB))


@pytest.mark.parametrize(
    "of",
    [
        model("HF://o/other"),
        model(HUB, {"revision": "v2"}),
        model(HUB, {"allowPatterns": ["a"]}),
        model(HUB, {"ignorePatterns": ["a"]}),
        model(HUB, {"pvcName": "kept"}),
    ],
)
def test_point_22_other_weights_are_other_work(of: Model) -> None:
    work, setup = hashes(of)
    assert work != SAME[0]
    assert setup != SAME[1]


def test_a_claim_made_anew_is_other_work() -> None:
    assert hashes(model(HUB), ("2",))[0] != SAME[0]
    copy = model(PVC)
    assert hashes(copy, ("1", "2"))[0] != hashes(copy, ("1", "3"))[0]


@pytest.mark.parametrize(
    ("spec", "environment"),
    [
        ({"cache": TOKEN}, {}),
        ({"nodeSelector": {"a": "b"}}, {}),
        ({"tolerations": [{"operator": "Exists"}]}, {}),
        ({}, {"DEFAULT_FETCH_IMAGE": "other"}),
        ({}, {"HF_ENDPOINT": "http://mirror"}),
    ],
)
def test_another_setup_does_not_undo_what_is_done(spec: Tree, environment: dict[str, str]) -> None:
    work, setup = hashes(model(HUB, **spec), environment=ENVIRONMENT | environment)
    assert work == SAME[0]
    assert setup != SAME[1]


def test_what_is_equal_is_equal() -> None:
    of = model(HUB, {"allowPatterns": ["b", "a", "b"], "size": "1Ti", "retain": True})
    assert hashes(of) == hashes(model(HUB, {"allowPatterns": ["a", "b"]}))
    cache = plan(of)
    assert work_hash(of, replace(cache, notes=("x",)), ["1"]) == hashes(of)[0]
