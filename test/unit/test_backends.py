# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import functools
import string
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from internal.backends.backend import Backend, Launch
from internal.backends.config import Key, Kind
from internal.backends.image import pin
from internal.backends.registry import BACKENDS, find_backend, known_backends
from internal.backends.source import Scheme, Source, SourceError, parse_source
from internal.gpu.accelerator import CPU, Accelerator, Vendor

if TYPE_CHECKING:
    from collections.abc import Mapping

H100 = Accelerator(vendor=Vendor.NVIDIA, count=1, architecture="sm_90")
MAXWELL = Accelerator(vendor=Vendor.NVIDIA, count=1, architecture="sm_52")
MI300 = Accelerator(vendor=Vendor.AMD, count=1, architecture="gfx942")
RADEON = Accelerator(vendor=Vendor.AMD, count=1, architecture="gfx1100")
DIGEST = "a" * 64
DEEP: dict[str, object] = functools.reduce(lambda inner, _: {"a": [inner]}, range(16), {})


def backend(name: str) -> Backend:
    found = find_backend(name)
    assert found is not None
    return found


def arguments(
    name: str, source: str, config: Mapping[str, object], accelerator: Accelerator = H100
) -> list[str]:
    launch = Launch(
        name="my-model", source=parse_source(source), accelerator=accelerator, config=config
    )
    found = backend(name)
    assert found.problems(launch.source, config) == ()
    return list(found.arguments(launch))


def problems(name: str, source: str, config: Mapping[str, object]) -> tuple[str, ...]:
    return backend(name).problems(parse_source(source), config)


# Finding


@pytest.mark.parametrize("alias", ["llamacpp", "llama.cpp", "llama-cpp", "LLAMA_CPP", " LlamaCpp "])
def test_aliases_in_any_case_find_the_backend(alias: str) -> None:
    assert backend(alias).name == "llamacpp"


def test_an_unknown_name_finds_nothing() -> None:
    assert find_backend("tensorrt") is None
    assert known_backends() == "llamacpp, ollama, vllm"


@pytest.mark.parametrize(
    ("name", "port", "path"),
    [("ollama", 11434, "/"), ("vllm", 8000, "/health"), ("llamacpp", 8080, "/health")],
)
def test_ports_and_probes(name: str, port: int, path: str) -> None:
    assert (backend(name).port, backend(name).health_path) == (port, path)


@pytest.mark.parametrize(
    ("name", "accelerator", "runs"),
    [
        ("llamacpp", CPU, True),
        ("vllm", CPU, False),
        ("ollama", CPU, False),
        ("vllm", MAXWELL, False),
        ("ollama", MAXWELL, True),
        ("vllm", MI300, True),
    ],
)
def test_what_runs_on_what(name: str, accelerator: Accelerator, *, runs: bool) -> None:
    assert backend(name).supports(accelerator) is runs


# Sources


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("HF://meta-llama/Llama-3.1-8B", Source(Scheme.HUGGING_FACE, "meta-llama/Llama-3.1-8B")),
        ("ollama://mistral:7b", Source(Scheme.OLLAMA, "mistral:7b")),
        ("ollama://library/mistral", Source(Scheme.OLLAMA, "library/mistral")),
        ("file:///opt/model", Source(Scheme.FILE, "/opt/model")),
        ("pvc://weights", Source(Scheme.PVC, "", "weights")),
        ("pvc://weights/a/b.gguf", Source(Scheme.PVC, "a/b.gguf", "weights")),
        ("pvc://weights//a/", Source(Scheme.PVC, "a", "weights")),
    ],
)
def test_sources_are_read(text: str, expected: Source) -> None:
    assert parse_source(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "meta-llama/Llama",
        "hf://a/b",
        "s3://bucket/key",
        "HF://only-org",
        "HF://a/b/c",
        "HF://a/b c",
        "ollama://",
        "file://relative",
        "file:///",
        "pvc://",
        "pvc:///path",
        "pvc://Upper/path",
        "pvc://claim/../other",
        "file:///a/../../etc",
    ],
)
def test_sources_that_cannot_be_read_name_the_forms(text: str) -> None:
    with pytest.raises(SourceError) as caught:
        parse_source(text)
    assert "HF://org/name, ollama://name:tag, file:///path or pvc://claim/path" in str(caught.value)


@given(st.text(max_size=40))
def test_reading_a_source_either_works_or_says_why(text: str) -> None:
    try:
        source = parse_source(text)
    except SourceError:
        return
    assert ".." not in source.reference.split("/")
    assert bool(source.claim) == (source.scheme is Scheme.PVC)
    assert parse_source(str(source)) == source


segment = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=8)


@given(segment, st.lists(segment, max_size=3))
def test_a_claim_and_its_path_survive(claim: str, path: list[str]) -> None:
    source = parse_source(f"pvc://{'/'.join([claim, *path])}")
    assert (source.claim, source.reference) == (claim, "/".join(path))


# Images


@pytest.mark.parametrize(
    ("image", "pinned"),
    [
        ("vllm/vllm-openai:latest", "vllm/vllm-openai"),
        ("registry.local:5000/team/vllm", "registry.local:5000/team/vllm"),
        ("registry.local:5000/team/vllm:v1", "registry.local:5000/team/vllm"),
        ("vllm:v1@sha256:" + "b" * 64, "vllm"),
        ("vllm@sha256:" + "b" * 64, "vllm"),
        ("vllm", "vllm"),
    ],
)
def test_a_digest_replaces_tag_and_digest(image: str, pinned: str) -> None:
    assert pin(image, DIGEST) == f"{pinned}@sha256:{DIGEST}"
    assert pin(image, f"sha256:{DIGEST}") == f"{pinned}@sha256:{DIGEST}"


registry = st.builds("{}:{}/".format, segment, st.integers(1, 65535)) | st.just("")
tags = st.builds(":{}".format, segment) | st.just("")


@given(
    host=registry,
    path=st.lists(segment, min_size=1, max_size=3),
    tag=tags,
    digested=st.booleans(),
)
def test_pinning_keeps_registry_and_repository(
    host: str, path: list[str], tag: str, *, digested: bool
) -> None:
    repository = host + "/".join(path)
    image = repository + tag + (f"@sha256:{'b' * 64}" if digested else "")
    once = pin(image, DIGEST)
    assert once == f"{repository}@sha256:{DIGEST}"
    assert pin(once, DIGEST) == once


@pytest.mark.parametrize(
    ("name", "accelerator", "image"),
    [
        ("vllm", H100, "vllm/vllm-openai:latest"),
        ("vllm", MI300, "rocm/vllm:latest"),
        ("vllm", RADEON, "rocm/vllm:latest"),
        ("ollama", H100, "ollama/ollama:latest"),
        ("ollama", MI300, "ollama/ollama:rocm"),
        ("llamacpp", CPU, "ghcr.io/ggml-org/llama.cpp:server"),
        ("llamacpp", H100, "ghcr.io/ggml-org/llama.cpp:server-cuda"),
        ("llamacpp", MI300, "ghcr.io/ggml-org/llama.cpp:server-rocm"),
    ],
)
def test_default_images(name: str, accelerator: Accelerator, image: str) -> None:
    assert backend(name).image(accelerator, {}) == image


@pytest.mark.parametrize(
    ("name", "accelerator", "variable"),
    [
        ("vllm", RADEON, "DEFAULT_VLLM_IMAGE_GFX1100"),
        ("vllm", MI300, "DEFAULT_VLLM_IMAGE_AMD"),
        ("vllm", H100, "DEFAULT_VLLM_IMAGE"),
        ("ollama", H100, "DEFAULT_BACKEND_IMAGE_NVIDIA"),
        ("ollama", MAXWELL, "DEFAULT_BACKEND_IMAGE_MAXWELL"),
        ("ollama", MI300, "DEFAULT_BACKEND_IMAGE_AMD"),
        ("llamacpp", CPU, "DEFAULT_LLAMA_CPP_IMAGE_CPU"),
        ("llamacpp", MAXWELL, "DEFAULT_LLAMA_CPP_IMAGE_MAXWELL"),
        ("llamacpp", H100, "DEFAULT_LLAMA_CPP_IMAGE"),
    ],
)
def test_a_variable_of_the_manager_replaces_the_default(
    name: str, accelerator: Accelerator, variable: str
) -> None:
    assert backend(name).image(accelerator, {variable: "mine:1"}) == "mine:1"
    assert backend(name).image(accelerator, {variable: " "}) != ""


@pytest.mark.parametrize("found", BACKENDS, ids=lambda found: found.name)
def test_whatever_a_backend_supports_has_a_default_image(found: Backend) -> None:
    for vendor in found.vendors:
        for architecture in ("", "sm_52", "sm_90", "gfx906", "gfx1100", "gfx942"):
            hardware = Accelerator(vendor=vendor, count=1, architecture=architecture)
            assert found.image(hardware, {})


def test_no_default_image_is_private() -> None:
    hosts = {"vllm", "rocm", "ollama", "ghcr.io"}
    images = {rule.image for found in BACKENDS for rule in found.images if rule.image}
    assert {image.partition("/")[0] for image in images} <= hosts


# Config


def test_vllm_serves_by_both_names() -> None:
    line = " ".join(arguments("vllm", "HF://org/model", {"maxModelLen": 8192}))
    assert line.startswith("org/model --host 0.0.0.0 --port 8000")
    assert "--served-model-name my-model org/model" in line
    assert "--max-model-len 8192" in line
    assert backend("vllm").command == ("vllm", "serve")


def test_vllm_uses_all_gpus_of_the_pod() -> None:
    two = Accelerator(vendor=Vendor.NVIDIA, count=2)
    assert "--tensor-parallel-size 2" in " ".join(arguments("vllm", "HF://o/m", {}, two))
    chosen = arguments("vllm", "HF://o/m", {"pipelineParallelSize": 2}, two)
    assert "--tensor-parallel-size" not in chosen
    assert "--tensor-parallel-size" not in arguments("vllm", "HF://o/m", {})


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({"gpuMemoryUtilization": "0.9"}, "--gpu-memory-utilization 0.9"),
        ({"gpuMemoryUtilization": 0.9}, "--gpu-memory-utilization 0.9"),
        ({"enforceEager": True}, "--enforce-eager"),
        ({"enablePrefixCaching": False}, "--no-enable-prefix-caching"),
        ({"limitMmPerPrompt": {"image": 2}}, '--limit-mm-per-prompt {"image":2}'),
        ({"maxNumSeqs": 4.0}, "--max-num-seqs 4"),
        ({"enableToolCalling": True}, "--enable-auto-tool-choice --tool-call-parser hermes"),
        (
            {"enableToolCalling": True, "toolCallParser": "llama3_json"},
            "--enable-auto-tool-choice --tool-call-parser llama3_json",
        ),
        ({"quantization": "$(HOME)"}, "--quantization $$(HOME)"),
        ({"servedModelName": "chat"}, "--served-model-name chat o/m"),
    ],
)
def test_vllm_flags(config: Mapping[str, object], line: str) -> None:
    assert line in " ".join(arguments("vllm", "HF://o/m", config))


def test_a_switch_that_is_off_and_has_no_opposite_says_nothing() -> None:
    assert "--enforce-eager" not in arguments("vllm", "HF://o/m", {"enforceEager": False})


def test_vllm_paths() -> None:
    assert arguments("vllm", "pvc://claim/qwen", {})[0] == "/models/qwen"
    assert arguments("vllm", "pvc://claim", {})[0] == "/models"
    assert arguments("vllm", "file:///opt/m", {})[0] == "/opt/m"
    assert arguments("vllm", "pvc://c/q", {"ggufFile": "m.gguf"})[0] == "/models/q/m.gguf"


def test_llamacpp_on_cpus_offloads_nothing() -> None:
    config = {"ggufFile": "m.gguf", "nGPULayers": 20}
    line = " ".join(arguments("llamacpp", "HF://o/m", config, CPU))
    assert line.startswith("--hf-repo o/m --hf-file m.gguf --host 0.0.0.0 --port 8080")
    assert "--alias my-model --n-gpu-layers 0" in line
    assert "--n-gpu-layers 20" in " ".join(arguments("llamacpp", "HF://o/m", config))
    assert "--n-gpu-layers 999" in " ".join(arguments("llamacpp", "file:///m.gguf", {}))


@pytest.mark.parametrize(
    ("source", "config", "line"),
    [
        ("pvc://c/a.gguf", {}, "--model /models/a.gguf"),
        ("pvc://c/d", {"modelFile": "a.gguf"}, "--model /models/d/a.gguf"),
        ("file:///a.gguf", {"fitOff": True}, "--fit off"),
        ("file:///a.gguf", {"flashAttention": True}, "--flash-attn on"),
        ("file:///a.gguf", {"flashAttention": False}, "--flash-attn off"),
        ("pvc://c/d/a.gguf", {"mmproj": "p.gguf"}, "--mmproj /models/d/p.gguf"),
        (
            "HF://o/m",
            {"ggufFile": "a.gguf", "mmproj": "p.gguf"},
            "--mmproj-url https://huggingface.co/o/m/resolve/main/p.gguf",
        ),
    ],
)
def test_llamacpp_flags(source: str, config: Mapping[str, object], line: str) -> None:
    assert line in " ".join(arguments("llamacpp", source, config))


def test_ollama_keeps_its_models_on_the_volume() -> None:
    for source, path in (("ollama://mistral", "/models"), ("pvc://c/ollama", "/models/ollama")):
        launch = Launch(name="m", source=parse_source(source), accelerator=H100, config={})
        variables = backend("ollama").environment(launch)
        assert variables["OLLAMA_MODELS"] == path
        assert variables["OLLAMA_HOST"] == "0.0.0.0:11434"
        assert variables["OLLAMA_KEEP_ALIVE"] == "-1"
        assert list(backend("ollama").arguments(launch)) == ["serve"]


@pytest.mark.parametrize(
    ("value", "kind", "given"),
    [
        ("8192", "an integer", "the string '8192'"),
        (8192.5, "an integer", "a number"),
        (True, "an integer", "a boolean"),
        (None, "an integer", "null"),
        ([1], "an integer", "a list"),
        ({}, "an integer", "an object"),
    ],
)
def test_a_wrong_type_names_key_expectation_and_value(value: object, kind: str, given: str) -> None:
    expected = (f"spec.config.maxModelLen must be {kind}, not {given}",)
    assert problems("vllm", "HF://o/m", {"maxModelLen": value}) == expected


@pytest.mark.parametrize(
    ("name", "source", "config", "words"),
    [
        ("vllm", "ollama://m", {}, "vllm cannot load ollama:// sources"),
        ("llamacpp", "ollama://m", {}, "set spec.source to one of HF://, file://, pvc://"),
        ("ollama", "file:///m", {}, "ollama cannot load file:// sources"),
        ("llamacpp", "HF://o/m", {}, "set spec.config.ggufFile"),
        ("llamacpp", "HF://o/m.gguf", {}, "set spec.config.ggufFile to one of its files"),
        ("llamacpp", "HF://o/m", {"ggufFile": "m.bin"}, "ends in .gguf"),
        ("llamacpp", "pvc://c/d", {}, "set spec.config.ggufFile"),
        ("llamacpp", "pvc://c/d", {"ggufFile": "../m.gguf"}, "must be a path inside the source"),
        ("llamacpp", "pvc://c/d", {"ggufFile": "/m.gguf"}, "must be a path inside the source"),
        ("vllm", "HF://o/m", {"ggufFile": "m.gguf"}, "vllm cannot pick one file"),
        ("vllm", "HF://o/m", {"gpuMemoryUtilization": "most"}, "a number, or a string"),
        ("vllm", "HF://o/m", {"enforceEager": "yes"}, "must be true or false"),
        ("vllm", "HF://o/m", {"startupTimeout": "soon"}, "a duration string such as 90s"),
        ("vllm", "HF://o/m", {"startupTimeoutSeconds": 0}, "must be at least 1, not 0"),
        ("vllm", "HF://o/m", {"startupTimeoutSeconds": 10**12}, "must be at most 2147483647"),
        ("vllm", "HF://o/m", {"maxModelLen": 10**20}, "maxModelLen is out of range"),
        ("vllm", "HF://o/m", {"gpuMemoryUtilization": -1e300}, "is out of range"),
        ("vllm", "HF://o/m", {"speculativeConfig": DEEP}, "an object of at most 32 levels"),
    ],
)
def test_problems_say_what_to_change(
    name: str, source: str, config: Mapping[str, object], words: str
) -> None:
    (problem,) = problems(name, source, config)
    assert words in problem


def test_keys_that_nobody_reads_are_named() -> None:
    config = {"maxModelLenght": 1, "dtype": "auto", "startupTimeout": "1m", "zeta": 1}
    assert backend("vllm").unread_keys(config) == ("maxModelLenght", "zeta")


@pytest.mark.parametrize(
    ("config", "at_least", "seconds"),
    [
        ({}, 60.0, 300),
        ({}, 600.0, 600),
        ({"startupTimeoutSeconds": 30}, 600.0, 30),
        ({"startupTimeout": "20m"}, 60.0, 1200),
        ({"startupTimeout": "100ms"}, 60.0, 1),
    ],
)
def test_the_startup_budget(config: Mapping[str, object], at_least: float, seconds: int) -> None:
    assert backend("vllm").startup_budget(config, at_least=at_least) == seconds


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(st.sampled_from(BACKENDS), st.data())
def test_any_config_gives_a_command_line_or_sentences(found: Backend, data: st.DataObject) -> None:
    names = [key.name for key in found.all_keys]
    config = data.draw(st.dictionaries(st.sampled_from([*names, "other"]), json_values, max_size=6))
    for source in map(parse_source, ("HF://o/m", "pvc://c/d", "file:///m.gguf", "ollama://m")):
        if found.problems(source, config):
            continue
        launch = Launch(name="m", source=source, accelerator=H100, config=config)
        assert all(isinstance(a, str) for a in found.arguments(launch))
        assert all(isinstance(v, str) for v in found.environment(launch).values())
        assert found.startup_budget(config, at_least=60) >= 1


def test_a_key_without_a_flag_adds_nothing() -> None:
    assert Key(name="x", kind=Kind.STRING).arguments("y") == ()
