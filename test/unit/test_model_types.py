# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from api.flexinfer.v1alpha2.model_rules import violations
from api.flexinfer.v1alpha2.model_status import ModelStatus, read_status
from api.flexinfer.v1alpha2.model_types import Model
from api.flexinfer.v1alpha2.reasons import Phase, Reason
from flexinfer.crd.generate import crd_for
from flexinfer.crd.markers import custom_resource
from flexinfer.errors import DecodeError
from flexinfer.meta.envelope import decode_object, encode, meta_from
from flexinfer.meta.quantity import Quantity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flexinfer.meta.envelope import Tree

BASE: Tree = {"backend": "vllm", "source": "HF://org/model"}


def model(spec: Tree | None = None, name: str = "m") -> Model:
    meta = meta_from({"name": name, "namespace": "ns", "generation": 1})
    return Model.model_validate({"metadata": meta, "spec": BASE | (spec or {})})


def test_the_seeds_reasons_are_there_to_the_letter() -> None:
    seed = {
        "NoMatchingNodes",
        "AmbiguousGPUVendor",
        "BackendUnsupported",
        "CacheNotReady",
        "WaitingForActivation",
        "StartingBackend",
        "BackendReady",
        "Preempted",
        "Schedulable",
        "NoCacheJob",
    }
    assert seed <= {reason.value for reason in Reason}


@pytest.mark.parametrize(
    ("gpu", "count"),
    [(None, 0), ({"vendor": "cpu"}, 0), ({}, 1), ({"vendor": "amd"}, 1), ({"count": 4}, 4)],
)
def test_gpus_per_replica(gpu: Tree | None, count: int) -> None:
    assert model({"gpu": gpu} if gpu is not None else {}).gpu_count == count


@pytest.mark.parametrize(
    ("serverless", "replicas"),
    [
        (None, 0),
        ({}, 0),
        ({"minReplicas": 3}, 3),
        ({"enabled": False}, 1),
        ({"enabled": False, "minReplicas": 3}, 3),
    ],
)
def test_replicas_that_nobody_asked_for(serverless: Tree | None, replicas: int) -> None:
    spec = {"serverless": serverless} if serverless is not None else {}
    assert model(spec).wanted_replicas == replicas


def test_the_served_name_is_the_models_own_unless_it_is_said() -> None:
    assert model().served_name == "m"
    assert model({"litellm": {"servedModelName": "chat"}}).served_name == "chat"


def test_defaults_suit_no_cluster_in_particular() -> None:
    spec = model({"gpu": {}, "cache": {}, "serverless": {}}).spec
    assert spec.cache is not None
    assert spec.cache.storage_class is None
    assert spec.cache.size == Quantity.parse("50Gi")
    assert spec.serverless is not None
    assert spec.serverless.cold_start_timeout.seconds == 60
    assert spec.gpu is not None
    assert (spec.gpu.vendor, spec.gpu.priority) == ("auto", 100)
    assert spec.image_pull_policy is None


@pytest.mark.parametrize(
    "spec",
    [
        {"gpu": {"count": 0}},
        {"gpu": {"count": 9}},
        {"gpu": {"priority": 1001}},
        {"gpu": {"vendor": "intel"}},
        {"serverless": {"minReplicas": 11}},
        {"serverless": {"idleTimeout": "-5m"}},
        {"serviceLabels": [f"l{n}" for n in range(11)]},
        {"imageDigest": "sha256:ABC"},
        {"imageDigest": "a" * 63},
        {"image": "two words"},
        {"cache": {"size": "much"}},
        {"cache": {"hostPath": "models"}},
        {"cache": {"storageClass": "Fast Disk"}},
        {"cache": {"storageClass": "a..b"}},
        {"cache": {"pvcName": "a..b"}},
        {"cache": {"tokenSecretRef": {"name": "a.-b"}}},
        {"tolerations": [{"key": "no key"}]},
        {"tolerations": [{"key": "Example.com/pool"}]},
        {"tolerations": [{"key": f"example.com/{'a' * 64}"}]},
        {"imagePullPolicy": "Sometimes"},
        {"litellm": {"aliases": ["one,two"]}},
    ],
)
def test_bounds_hold_without_the_api_server_too(spec: Tree) -> None:
    with pytest.raises(ValidationError):
        model(spec)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"gpu": {"vendor": "cpu", "count": 1}}, "spec.gpu.count must be absent"),
        ({"gpu": {"vendor": "cpu", "vramEstimateMB": 1}}, "spec.gpu.vramEstimateMB must be"),
        ({"gpu": {"vendor": "cpu", "shared": "g"}}, "spec.gpu.shared must be absent"),
        ({"resources": {"limits": {"amd.com/gpu": 1}}}, "spec.resources.limits must not name"),
        ({"resources": {"requests": {"nvidia.com/gpu": 1}}}, "spec.resources.requests must not"),
        ({"source": "pvc://c/p", "cache": {"strategy": "Memory"}}, "must not be Memory"),
        ({"cache": {"strategy": "None", "pvcName": "c"}}, "spec.cache.pvcName needs"),
        ({"cache": {"allowPatterns": ["a", "../b", "c/.."]}}, "write them without '..'"),
        ({"cache": {"ignorePatterns": ["a/../b"]}}, "write them without '..'"),
        ({"cache": {"hostPath": "/srv/../etc"}}, "spec.cache.hostPath must be a directory"),
        ({"cache": {"size": 0}}, "spec.cache.size must be more than 0"),
        ({"cache": {"size": "0Gi"}}, "spec.cache.size must be more than 0"),
        ({"tolerations": [{"value": "a"}]}, "needs a key, unless its operator is Exists"),
        ({"tolerations": [{"operator": "Exists", "value": "a"}]}, "takes any value; remove value"),
        ({"tolerations": [{"key": "a", "tolerationSeconds": 5}]}, "needs effect NoExecute"),
    ],
)
def test_rules_of_today_hold_for_objects_of_yesterday(spec: Tree, words: str) -> None:
    (message,) = violations(model(spec))
    assert words in message


@pytest.mark.parametrize("name", ["a" * 49, "a.b", "1a", "a-", "A"])
def test_names_that_no_service_can_have(name: str) -> None:
    (message,) = violations(model(name=name))
    assert "DNS-1035" in message
    assert "48" in message


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"gpu": {"vendor": "cpu"}},
        {"gpu": {"vendor": "nvidia", "count": 8, "shared": "g", "vramEstimateMB": 8000}},
        {"resources": {"limits": {"cpu": "2"}, "requests": {"memory": "1Gi"}}},
        {"cache": {"hostPath": "/srv/a..b", "size": "1m", "storageClass": ""}},
        {"cache": {"storageClass": "fast.example.com", "size": 1}},
        {"tolerations": [{"key": f"example.com/{'a' * 63}"}, {"key": "a.b_C"}]},
        {"tolerations": [{"operator": "Exists"}, {"key": "a"}, {"key": "a", "value": "b"}]},
        {"tolerations": [{"key": "a", "effect": "NoExecute", "tolerationSeconds": 0}]},
        {"source": "pvc://c/p", "cache": {"strategy": "Local"}},
        {"cache": {"pvcName": "c"}},
        {"cache": {"allowPatterns": ["*.safetensors", "a..b/*"], "ignorePatterns": ["...x"]}},
        {"cache": {"strategy": "SharedPVC", "pvcName": "c"}},
    ],
)
def test_what_is_right_breaks_no_rule(spec: Tree) -> None:
    assert violations(model(spec, name="a" * 48)) == ()


@pytest.mark.parametrize(
    "status", [None, "Ready", {"phase": "Downloading"}, {"gpu": {"memoryMB": "24Gi"}}]
)
def test_a_status_that_another_version_wrote_counts_as_none(status: object) -> None:
    assert read_status(status) == ModelStatus()
    assert Model.model_validate({"spec": BASE, "status": status}).status == ModelStatus()
    ours = {"phase": "Ready", "endpoint": "http://m"}
    assert read_status(ours) == ModelStatus(phase=Phase.READY, endpoint="http://m")


def test_a_misfit_is_named_by_its_path() -> None:
    stored = decode_object(
        encode(
            {"metadata": {"name": "m", "namespace": "ns"}, "spec": BASE | {"gpu": {"count": "x"}}}
        )
    )
    with pytest.raises(DecodeError) as caught:
        Model.decode(stored)
    assert caught.value.field == "spec.gpu.count"


def test_a_misfit_is_said_in_our_own_words() -> None:
    spec = BASE | {"serverless": {"idleTimeout": "9999999h"}}
    stored = decode_object(encode({"metadata": {"name": "m", "namespace": "ns"}, "spec": spec}))
    with pytest.raises(DecodeError) as caught:
        Model.decode(stored)
    assert str(caught.value) == (
        "Model ns/m: spec.serverless.idleTimeout: a duration is out of range: stay within 2562047h"
    )


def test_the_kind_is_known_by_the_names_users_type() -> None:
    info = custom_resource(Model)
    assert str(info.resource) == "models.ai.flexinfer"
    assert info.short_names == ("mdl",)
    assert info.categories == ("flexinfer",)
    columns = [(column.name, column.priority) for column in info.columns]
    assert columns == [
        ("Backend", 0),
        ("Phase", 0),
        ("Ready", 0),
        ("Reason", 0),
        ("Shared", 1),
        ("Priority", 1),
        ("Age", 0),
        ("Message", 1),
    ]
    paths = {column.name: column.json_path for column in info.columns}
    assert paths["Message"] == ".status.conditions[?(@.type=='Ready')].message"


def properties(schema: Tree, path: str) -> Iterator[tuple[str, Tree]]:
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from properties(field, f"{path}.{name}")
    if "items" in schema:
        yield from properties(schema["items"], f"{path}[]")


def test_every_field_is_explained_and_bounded() -> None:
    schema = crd_for(Model)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for part in ("spec", "status"):
        for path, field in properties(schema["properties"][part], part):
            assert field.get("description"), path
            if field.get("type") == "array":
                assert "maxItems" in field, path
            is_free_text = field.get("type") == "string" and not {"enum", "format"} & set(field)
            if is_free_text:
                assert "maxLength" in field, path


def test_what_comes_later_is_not_there_yet() -> None:
    schema = crd_for(Model)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    spec, status = schema["spec"]["properties"], schema["status"]["properties"]
    assert {"kvCache", "quantize"}.isdisjoint(spec)
    assert {"flashLoader", "compilationCache"}.isdisjoint(spec["cache"]["properties"])
    assert "metrics" not in status
