# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import functools
import string
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from internal.backends.backend import Backend, Launch, Weights
from internal.backends.config import Key, Kind
from internal.backends.image import pin
from internal.backends.registry import BACKENDS, find_backend, known_backends
from internal.backends.source import Scheme, Source, SourceError, parse_source
from internal.gpu.accelerator import CPU, Accelerator, Vendor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flexinfer.meta.envelope import Tree

H100 = Accelerator(vendor=Vendor.NVIDIA, count=1, architecture="sm_90")
MAXWELL = Accelerator(vendor=Vendor.NVIDIA, count=1, architecture="sm_52")
MI300 = Accelerator(vendor=Vendor.AMD, count=1, architecture="gfx942")
RADEON = Accelerator(vendor=Vendor.AMD, count=1, architecture="gfx1100")
NAVI32 = Accelerator(vendor=Vendor.AMD, count=1, architecture="gfx1101")
VEGA = Accelerator(vendor=Vendor.AMD, count=1, architecture="gfx906")
TWO = Accelerator(vendor=Vendor.NVIDIA, count=2)
DIGEST = "a" * 64
DEEP: dict[str, object] = functools.reduce(lambda inner, _: {"a": [inner]}, range(16), {})


def backend(name: str) -> Backend:
    found = find_backend(name)
    assert found is not None
    return found


def launch_of(
    source: str,
    config: Mapping[str, object] | None = None,
    accelerator: Accelerator = H100,
    *,
    fetched: str = "",
) -> Launch:
    return Launch(
        name="my-model",
        source=parse_source(source),
        accelerator=accelerator,
        config=config or {},
        fetched=fetched,
    )


def arguments(
    name: str,
    source: str,
    config: Mapping[str, object],
    accelerator: Accelerator = H100,
    *,
    fetched: str = "",
) -> list[str]:
    launch = launch_of(source, config, accelerator, fetched=fetched)
    found = backend(name)
    weights = Weights(source=launch.source, config=config, fetched=fetched)
    assert found.problems(weights) == ()
    return list(found.arguments(launch))


def problems(
    name: str, source: str, config: Mapping[str, object], *, fetched: str = ""
) -> tuple[str, ...]:
    weights = Weights(source=parse_source(source), config=config, fetched=fetched)
    return backend(name).problems(weights)


# Finding


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("llamacpp", "llamacpp"),
        ("llama.cpp", "llamacpp"),
        ("llama-cpp", "llamacpp"),
        ("LLAMA_CPP", "llamacpp"),
        (" LlamaCpp ", "llamacpp"),
        ("vllm-diffusion", "vllm-omni"),
        ("vllm_omni", "vllm-omni"),
        ("mlc", "mlc-llm"),
        ("mlc_llm", "mlc-llm"),
        ("mlc-llm-chat", "mlc-llm"),
        ("Diffusers", "diffusers"),
        ("comfy", "comfyui"),
        ("comfy-ui", "comfyui"),
        ("comfy_ui", "comfyui"),
    ],
)
def test_aliases_in_any_case_find_the_backend(alias: str, name: str) -> None:
    assert backend(alias).name == name


def test_an_unknown_name_finds_nothing() -> None:
    assert find_backend("tensorrt") is None
    assert known_backends() == "comfyui, diffusers, llamacpp, mlc-llm, ollama, vllm, vllm-omni"


def test_no_two_backends_share_a_name() -> None:
    names = [name for found in BACKENDS for name in (found.name, *found.aliases)]
    assert len(names) == len(set(names))


HTTP_8000: Tree = {"httpGet": {"path": "/health", "port": "http"}, "timeoutSeconds": 5}
TCP: Tree = {"tcpSocket": {"port": "http"}}


@pytest.mark.parametrize(
    ("name", "port", "readiness", "startup"),
    [
        ("ollama", 11434, {"httpGet": {"path": "/", "port": "http"}, "timeoutSeconds": 5}, None),
        ("vllm", 8000, HTTP_8000, None),
        ("vllm-omni", 8000, HTTP_8000 | {"timeoutSeconds": 3}, None),
        ("llamacpp", 8080, HTTP_8000, None),
        (
            "mlc-llm",
            8000,
            {"httpGet": {"path": "/v1/models", "port": "http"}, "timeoutSeconds": 5},
            None,
        ),
        ("diffusers", 8000, TCP | {"timeoutSeconds": 3}, HTTP_8000),
        ("comfyui", 8188, TCP | {"timeoutSeconds": 5}, None),
    ],
)
def test_ports_and_probes(name: str, port: int, readiness: Tree, startup: Tree | None) -> None:
    found = backend(name)
    assert found.port == port
    assert found.readiness.check("http") == readiness
    assert found.startup_probe.check("http") == (startup or readiness)
    assert found.readiness.failure_threshold == 3


def test_a_probe_says_what_has_to_answer() -> None:
    assert (str(backend("vllm").readiness), str(backend("comfyui").readiness)) == ("/health", "TCP")


@pytest.mark.parametrize(
    ("name", "period", "startup", "idle"),
    [
        ("ollama", 10, 60, 300),
        ("vllm", 10, 300, 300),
        ("vllm-omni", 5, 300, 600),
        ("mlc-llm", 10, 90, 300),
        ("llamacpp", 10, 60, 300),
        ("diffusers", 5, 900, 600),
        ("comfyui", 10, 180, 600),
    ],
)
def test_times(name: str, period: int, startup: int, idle: int) -> None:
    found = backend(name)
    assert found.readiness.period_seconds == period
    assert (found.startup_seconds, found.idle_seconds) == (startup, idle)


def test_who_makes_images_and_who_keeps_models_by_itself() -> None:
    makers = {found.name for found in BACKENDS if found.makes_images}
    assert makers == {"vllm-omni", "diffusers", "comfyui"}
    assert [found.name for found in BACKENDS if not found.needs_volume] == ["ollama"]


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
def test_extract_model_from_source(text: str, expected: Source) -> None:
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
        ("vllm-omni", H100, "vllm/vllm-omni:latest"),
        ("mlc-llm", H100, "ghcr.io/mlc-ai/mlc-llm:cuda"),
        ("mlc-llm", MI300, "ghcr.io/mlc-ai/mlc-llm:rocm"),
        ("mlc-llm", VEGA, "ghcr.io/mlc-ai/mlc-llm:rocm"),
        ("comfyui", H100, "comfyanonymous/comfyui:latest"),
        ("vllm", VEGA, ""),
        ("vllm-omni", MI300, ""),
        ("mlc-llm", MAXWELL, ""),
        ("diffusers", H100, ""),
        ("diffusers", RADEON, ""),
        ("comfyui", MI300, ""),
        ("comfyui", VEGA, ""),
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
        ("vllm", VEGA, "DEFAULT_VLLM_IMAGE_GFX906"),
        ("vllm", NAVI32, "DEFAULT_VLLM_IMAGE_GFX1100"),
        ("vllm-omni", RADEON, "DEFAULT_VLLM_OMNI_IMAGE_GFX1100"),
        ("vllm-omni", RADEON, "DEFAULT_VLLM_OMNI_IMAGE_AMD"),
        ("vllm-omni", H100, "DEFAULT_VLLM_OMNI_IMAGE"),
        ("mlc-llm", RADEON, "DEFAULT_MLC_LLM_IMAGE_GFX1100"),
        ("mlc-llm", VEGA, "DEFAULT_MLC_LLM_IMAGE_GFX906"),
        ("mlc-llm", MI300, "DEFAULT_MLC_LLM_IMAGE_AMD"),
        ("mlc-llm", MAXWELL, "DEFAULT_MLC_LLM_IMAGE_MAXWELL"),
        ("mlc-llm", H100, "DEFAULT_MLC_LLM_IMAGE"),
        ("diffusers", RADEON, "DEFAULT_DIFFUSERS_IMAGE_GFX1100"),
        ("diffusers", VEGA, "DEFAULT_DIFFUSERS_IMAGE_GFX906"),
        ("diffusers", MI300, "DEFAULT_DIFFUSERS_IMAGE_AMD"),
        ("diffusers", H100, "DEFAULT_DIFFUSERS_IMAGE"),
        ("comfyui", RADEON, "DEFAULT_COMFYUI_IMAGE_GFX1100"),
        ("comfyui", VEGA, "DEFAULT_COMFYUI_IMAGE_GFX906"),
        ("comfyui", VEGA, "DEFAULT_COMFYUI_IMAGE_AMD"),
        ("comfyui", H100, "DEFAULT_COMFYUI_IMAGE"),
    ],
)
def test_a_variable_of_the_manager_replaces_the_default(
    name: str, accelerator: Accelerator, variable: str
) -> None:
    found = backend(name)
    assert found.image(accelerator, {variable: "mine:1"}) == "mine:1"
    assert found.image(accelerator, {variable: " "}) == found.image(accelerator, {})
    assert variable in found.image_variables(accelerator)


@pytest.mark.parametrize("name", ["vllm-omni", "diffusers", "comfyui"])
def test_an_image_for_nvidia_is_none_for_amd(name: str) -> None:
    (variable,) = backend(name).image_variables(H100)
    assert backend(name).image(MI300, {variable: "mine:cuda"}) == ""


@pytest.mark.parametrize("found", BACKENDS, ids=lambda found: found.name)
def test_hardware_without_a_default_image_has_a_variable_for_one(found: Backend) -> None:
    for vendor in found.vendors:
        for architecture in ("", "sm_52", "sm_90", "gfx906", "gfx1100", "gfx942"):
            hardware = Accelerator(vendor=vendor, count=1, architecture=architecture)
            assert found.image_variables(hardware)


def test_no_default_image_is_private() -> None:
    hosts = {"vllm", "rocm", "ollama", "ghcr.io", "comfyanonymous"}
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
    assert "--tensor-parallel-size 2" in " ".join(arguments("vllm", "HF://o/m", {}, TWO))
    chosen = arguments("vllm", "HF://o/m", {"pipelineParallelSize": 2}, TWO)
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


def test_vllm_names_its_attention_backend_once() -> None:
    for accelerator in (H100, RADEON):
        config = {"attentionBackend": "TRITON_ATTN"}
        launch = launch_of("HF://o/m", config, accelerator)
        line = list(backend("vllm").arguments(launch))
        assert line.count("--attention-backend") == 1
        assert line[line.index("--attention-backend") + 1] == "TRITON_ATTN"
        assert "VLLM_ATTENTION_BACKEND" not in backend("vllm").environment(launch)


def test_a_switch_that_is_off_and_has_no_opposite_says_nothing() -> None:
    assert "--enforce-eager" not in arguments("vllm", "HF://o/m", {"enforceEager": False})


@pytest.mark.parametrize(
    ("name", "source", "config", "fetched", "path"),
    [
        ("vllm", "HF://org/model", {}, "", "org/model"),
        ("vllm", "HF://org/model", {}, "/models/m", "/models/m"),
        ("vllm", "HF://org/model", {"ggufFile": "a.gguf"}, "/models/m", "/models/m/a.gguf"),
        ("vllm", "pvc://claim/qwen", {}, "", "/models/qwen"),
        ("vllm", "pvc://claim", {}, "", "/models"),
        ("vllm", "pvc://claim/qwen", {}, "/models/m", "/models/m"),
        ("vllm", "file:///opt/m", {}, "", "/opt/m"),
        ("vllm", "pvc://c/q", {"ggufFile": "m.gguf"}, "", "/models/q/m.gguf"),
        ("vllm-omni", "HF://org/model", {}, "", "org/model"),
        ("vllm-omni", "HF://org/model", {}, "/models/m", "/models/m"),
        ("vllm-omni", "pvc://c/d/a.safetensors", {}, "/models/m", "/models/m/a.safetensors"),
        ("mlc-llm", "HF://mlc-ai/model", {}, "", "HF://mlc-ai/model"),
        ("mlc-llm", "HF://mlc-ai/model", {}, "/models/m", "/models/m"),
        ("mlc-llm", "pvc://c/d", {}, "", "/models/d"),
    ],
)
def test_build_backend_model_spec(
    name: str, source: str, config: Mapping[str, object], fetched: str, path: str
) -> None:
    line = arguments(name, source, config, fetched=fetched)
    assert line[1 if name == "mlc-llm" else 0] == path


@pytest.mark.parametrize(
    ("source", "config", "path"),
    [
        ("HF://o/m", {"ggufFile": "a.gguf"}, "/models/m/a.gguf"),
        ("HF://o/m", {"ggufFile": "q4/a.gguf"}, "/models/m/q4/a.gguf"),
        ("HF://o/m", {"modelFile": "a.gguf"}, "/models/m/a.gguf"),
        ("HF://o/m", {"ggufFile": "a.gguf", "modelFile": "b.gguf"}, "/models/m/a.gguf"),
        ("pvc://c/d", {"ggufFile": "a.gguf"}, "/models/m/a.gguf"),
        ("pvc://c/d/a.gguf", {}, "/models/m/a.gguf"),
    ],
)
def test_build_backend_model_spec_llama_cpp_hf_uses_gguf_file(
    source: str, config: Mapping[str, object], path: str
) -> None:
    found = {**config, "mmproj": "p.gguf"}
    line = " ".join(arguments("llamacpp", source, found, fetched="/models/m"))
    assert line.startswith(f"--model {path} --host")
    assert "--mmproj /models/m/p.gguf" in line
    assert "--hf-" not in line


def test_clients_may_use_the_repository_of_fetched_weights() -> None:
    for name in ("vllm", "vllm-omni"):
        line = " ".join(arguments(name, "HF://org/model", {}, fetched="/models/m"))
        assert "--served-model-name my-model org/model" in line


@pytest.mark.parametrize(
    ("name", "config", "files"),
    [
        ("llamacpp", {"ggufFile": "a.gguf", "mmproj": "p.gguf"}, ("a.gguf", "p.gguf")),
        ("llamacpp", {"modelFile": "b.gguf"}, ("b.gguf",)),
        ("llamacpp", {}, ()),
        ("vllm", {"ggufFile": "a.gguf"}, ("a.gguf",)),
        ("vllm", {}, ()),
        ("diffusers", {"vaePath": "/vae"}, ()),
    ],
)
def test_files_that_config_names(
    name: str, config: Mapping[str, object], files: tuple[str, ...]
) -> None:
    assert backend(name).source_files(config) == files


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
        launch = launch_of(source)
        variables = backend("ollama").environment(launch)
        assert variables["OLLAMA_MODELS"] == path
        assert variables["OLLAMA_HOST"] == "0.0.0.0:11434"
        assert variables["OLLAMA_KEEP_ALIVE"] == "-1"
        assert list(backend("ollama").arguments(launch)) == ["serve"]


def test_vllm_omni_is_vllm_with_a_switch() -> None:
    config = {"dtype": "bfloat16", "deployConfig": "stages.yaml", "servedModelName": "draw"}
    line = " ".join(arguments("vllm-omni", "HF://Qwen/Qwen-Image", config, fetched="/models/m"))
    assert line == (
        "/models/m --host 0.0.0.0 --port 8000 --served-model-name draw Qwen/Qwen-Image --omni "
        "--deploy-config /models/m/stages.yaml --dtype bfloat16"
    )
    assert backend("vllm-omni").command == ("vllm", "serve")
    assert "--tensor-parallel-size" not in arguments("vllm-omni", "HF://o/m", {}, TWO)
    absolute = arguments("vllm-omni", "HF://o/m", {"deployConfig": "/etc/stages.yaml"})
    assert absolute[-2:] == ["--deploy-config", "/etc/stages.yaml"]


@pytest.mark.parametrize(
    ("source", "config", "accelerator", "rest"),
    [
        ("HF://o/m", {}, H100, ""),
        ("HF://o/m", {"mode": "serve"}, H100, ""),
        ("HF://o/m", {"modelLibPath": "/libs/m.so"}, H100, "--model-lib /libs/m.so"),
        ("pvc://c/d", {"modelLibPath": "m.so"}, H100, "--model-lib /models/d/m.so"),
        ("pvc://c/d", {}, MAXWELL, "--model-lib /models/d/maxwell-lib.so"),
        ("pvc://c/d", {"modelLibPath": "x.so"}, MAXWELL, "--model-lib /models/d/x.so"),
        ("HF://o/m", {}, TWO, "--overrides tensor_parallel_shards=2"),
        ("HF://o/m", {"tensorParallelShards": 1}, TWO, "--overrides tensor_parallel_shards=1"),
        (
            "HF://o/m",
            {"contextWindowSize": 4096, "gpuMemoryUtilization": "0.9", "maxNumSequence": 8.0},
            H100,
            "--overrides max_num_sequence=8;gpu_memory_utilization=0.9;context_window_size=4096",
        ),
    ],
)
def test_mlc_llm(
    source: str, config: Mapping[str, object], accelerator: Accelerator, rest: str
) -> None:
    line = arguments("mlc-llm", source, config, accelerator)
    assert line[0] == "serve"
    assert " ".join(line[2:]) == f"--host 0.0.0.0 --port 8000 --mode server {rest}".rstrip()
    assert backend("mlc-llm").command == ("python", "-m", "mlc_llm")


@pytest.mark.parametrize(
    ("config", "accelerator", "variables"),
    [
        ({}, H100, {}),
        ({"jitPolicy": "READONLY"}, H100, {"MLC_JIT_POLICY": "READONLY"}),
        ({}, MAXWELL, {"MLC_JIT_POLICY": "READONLY"}),
        ({"jitPolicy": "ON"}, MAXWELL, {"MLC_JIT_POLICY": "ON"}),
        ({"gpuMemoryBytes": 24696061952}, H100, {"MLC_GPU_SIZE_BYTES": "24696061952"}),
        ({}, MI300, {"PYTORCH_ROCM_ARCH": "gfx942"}),
    ],
)
def test_mlc_llm_reads_its_environment(
    config: Mapping[str, object], accelerator: Accelerator, variables: Mapping[str, str]
) -> None:
    found = backend("mlc-llm").environment(launch_of("HF://o/m", config, accelerator))
    assert found == {"MLC_LLM_HOME": "/models/.cache/mlc_llm"} | dict(variables)


@pytest.mark.parametrize(
    ("source", "fetched", "model"),
    [
        ("HF://org/sdxl", "", "org/sdxl"),
        ("HF://org/sdxl", "/models/m", "/models/m"),
        ("pvc://c/sdxl", "", "/models/sdxl"),
        ("pvc://c/d/x.safetensors", "/models/m", "/models/m/x.safetensors"),
        ("file:///opt/$(HOME)", "", "/opt/$$(HOME)"),
    ],
)
def test_diffusers_reads_all_from_its_environment(source: str, fetched: str, model: str) -> None:
    found = backend("diffusers")
    launch = launch_of(source, fetched=fetched)
    expected = {"MODEL_ID": model, "MODEL": model, "PORT": "8000"}
    assert found.environment(launch) == expected
    assert found.arguments(launch) == []
    assert found.command == ()


@pytest.mark.parametrize(
    ("config", "variables"),
    [
        ({"numInferenceSteps": 30}, {"DEFAULT_NUM_INFERENCE_STEPS": "30"}),
        ({"numInferenceSteps": 30.0}, {"DEFAULT_NUM_INFERENCE_STEPS": "30"}),
        ({"numInferenceSteps": "30"}, {"DEFAULT_NUM_INFERENCE_STEPS": "30"}),
        ({"guidanceScale": 7.5}, {"DEFAULT_GUIDANCE_SCALE": "7.5"}),
        ({"imageGuidanceScale": "1.5"}, {"DEFAULT_IMAGE_GUIDANCE_SCALE": "1.5"}),
        ({"strength": 0.8}, {"DEFAULT_STRENGTH": "0.8"}),
        ({"scheduler": "euler"}, {"DEFAULT_SCHEDULER": "euler"}),
        ({"negativePrompt": "$(PATH)"}, {"DEFAULT_NEGATIVE_PROMPT": "$$(PATH)"}),
        ({"pipelineMode": "inpainting"}, {"PIPELINE_MODE": "inpainting"}),
        ({"vaePath": "/models/vae"}, {"VAE_PATH": "/models/vae"}),
        ({"useFp16": False}, {"USE_FP16": "0"}),
        ({"cpuOffload": True}, {"USE_CPU_OFFLOAD": "1"}),
        ({"skipWarmup": "true"}, {"SKIP_WARMUP": "1"}),
        ({"skipWarmup": "0"}, {"SKIP_WARMUP": "0"}),
        (
            {"warmupWidth": 512, "warmupHeight": 768},
            {"WARMUP_WIDTH": "512", "WARMUP_HEIGHT": "768"},
        ),
    ],
)
def test_diffusers_settings(config: Mapping[str, object], variables: Mapping[str, str]) -> None:
    assert problems("diffusers", "HF://o/m", config) == ()
    found = backend("diffusers").environment(launch_of("HF://o/m", config))
    assert variables.items() <= found.items()
    assert len(found) == 3 + len(variables)


COMFY = "--listen 0.0.0.0 --port 8188"


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({}, f"{COMFY} --enable-cors-header"),
        ({"enableCORS": True}, f"{COMFY} --enable-cors-header"),
        ({"enableCORS": False}, COMFY),
        ({"enableCORS": False, "lowVRAM": True, "highVRAM": False}, f"{COMFY} --lowvram"),
        (
            {"modelsPath": "paths.yaml", "enableCORS": False},
            f"{COMFY} --extra-model-paths-config /models/m/paths.yaml",
        ),
        (
            {"modelsPath": "/p.yaml", "outputDirectory": "/out", "enableCORS": False},
            f"{COMFY} --extra-model-paths-config /p.yaml --output-directory /out",
        ),
        (
            {"previewMethod": "auto", "reserveVRAM": 1.5},
            f"{COMFY} --enable-cors-header --preview-method auto --reserve-vram 1.5",
        ),
    ],
)
def test_comfyui(config: Mapping[str, object], line: str) -> None:
    assert " ".join(arguments("comfyui", "HF://o/m", config, fetched="/models/m")) == line
    assert backend("comfyui").command == ("python", "main.py")


@pytest.mark.parametrize(
    ("source", "fetched", "accelerator", "variables"),
    [
        ("HF://o/m", "/models/m", H100, {"MODEL_PATH": "/models/m"}),
        ("pvc://c/d/x.safetensors", "", H100, {"MODEL_PATH": "/models/d"}),
        ("pvc://c/x.ckpt", "", H100, {"MODEL_PATH": "/models"}),
        (
            "file:///opt/m",
            "",
            MI300,
            {"MODEL_PATH": "/opt/m", "PYTORCH_ROCM_ARCH": "gfx942"},
        ),
    ],
)
def test_comfyui_tells_where_the_weights_are(
    source: str, fetched: str, accelerator: Accelerator, variables: Mapping[str, str]
) -> None:
    found = dict(
        backend("comfyui").environment(launch_of(source, {}, accelerator, fetched=fetched))
    )
    order = found.pop("CUDA_DEVICE_ORDER", "")
    assert found == variables
    assert bool(order) is (accelerator is H100)


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
        ("vllm-omni", "HF://o/m", {"deployConfig": "a.yaml"}, "deployConfig names a file of a"),
        ("vllm-omni", "pvc://c", {"deployConfig": "../a.yaml"}, "must not contain '..'"),
        ("mlc-llm", "HF://o/m", {"modelLibPath": "a.so"}, "modelLibPath names a file of a"),
        ("mlc-llm", "pvc://c", {"modelLibPath": "/a/../b.so"}, "must not contain '..'"),
        ("mlc-llm", "HF://o/m", {"mode": "fast"}, "one of server, serve, local, interactive"),
        ("mlc-llm", "HF://o/m", {"jitPolicy": "on"}, "must be one of ON, OFF, REDO, READONLY"),
        ("mlc-llm", "ollama://m", {}, "mlc-llm cannot load ollama:// sources"),
        ("diffusers", "HF://o/m", {"skipWarmup": "no"}, "must be true or false, or a string"),
        ("diffusers", "HF://o/m", {"numInferenceSteps": "7.5"}, "must be a whole number, or"),
        ("diffusers", "HF://o/m", {"warmupWidth": True}, "must be a whole number, or"),
        ("comfyui", "HF://o/m", {}, "comfyui does not fetch an HF:// source by itself"),
        ("comfyui", "pvc://c", {"modelsPath": "../p.yaml"}, "must not contain '..'"),
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
    fetched = data.draw(st.sampled_from(["", "/models/m"]))
    accelerator = data.draw(st.sampled_from([H100, MAXWELL, MI300, RADEON, TWO]))
    for source in ("HF://o/m", "pvc://c/d", "file:///m.gguf", "ollama://m"):
        launch = launch_of(source, config, accelerator, fetched=fetched)
        weights = Weights(source=launch.source, config=config, fetched=fetched)
        if found.problems(weights):
            continue
        assert all(isinstance(a, str) for a in found.arguments(launch))
        assert all(isinstance(v, str) for v in found.environment(launch).values())
        assert all(found.source_files(config))
        assert found.startup_budget(config, at_least=60) >= 1
        assert found.arguments(launch) == found.arguments(launch)


@given(st.sampled_from([found for found in BACKENDS if found.needs_volume]), segment)
def test_fetched_weights_are_used_and_not_fetched_again(found: Backend, name: str) -> None:
    fetched = f"/models/{name}"
    config = {"ggufFile": "a.gguf"} if found.name == "llamacpp" else {}
    launch = launch_of("HF://org/repo", config, fetched=fetched)
    line, environment = found.arguments(launch), found.environment(launch)
    assert any(text.startswith(fetched) for text in (*line, *environment.values()))
    assert not any("hf-repo" in text or "HF://" in text for text in line)


def test_a_key_without_a_flag_adds_nothing() -> None:
    assert Key(name="x", kind=Kind.STRING).arguments("y") == ()
