# SPDX-License-Identifier: Apache-2.0
"""The command lines and environments that backends make of a source and a config."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from internal.backends.backend import Backend, Launch, Weights
from internal.backends.registry import BACKENDS
from internal.backends.source import parse_source
from internal.gpu.accelerator import CPU, Accelerator, Vendor

if TYPE_CHECKING:
    from collections.abc import Mapping

BACKEND = {found.name: found for found in BACKENDS}
H100 = Accelerator(vendor=Vendor.NVIDIA, count=1, architecture="sm_90")
MAXWELL = Accelerator(vendor=Vendor.NVIDIA, count=1, architecture="sm_52")
MI300 = Accelerator(vendor=Vendor.AMD, count=1, architecture="gfx942")
RADEON = Accelerator(vendor=Vendor.AMD, count=1, architecture="gfx1100")
TWO = Accelerator(vendor=Vendor.NVIDIA, count=2)
segment = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=8)


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
    found = BACKEND[name]
    weights = Weights(source=launch.source, config=config, fetched=fetched)
    assert found.problems(weights) == ()
    return list(found.arguments(launch))


def test_vllm_serves_by_both_names() -> None:
    line = " ".join(arguments("vllm", "HF://org/model", {"maxModelLen": 8192}))
    assert line.startswith("org/model --host 0.0.0.0 --port 8000")
    assert "--served-model-name my-model org/model" in line
    assert "--max-model-len 8192" in line
    assert BACKEND["vllm"].command == ("vllm", "serve")


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
        line = list(BACKEND["vllm"].arguments(launch))
        assert line.count("--attention-backend") == 1
        assert line[line.index("--attention-backend") + 1] == "TRITON_ATTN"
        assert "VLLM_ATTENTION_BACKEND" not in BACKEND["vllm"].environment(launch)


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
        variables = BACKEND["ollama"].environment(launch)
        assert variables["OLLAMA_MODELS"] == path
        assert variables["OLLAMA_HOST"] == "0.0.0.0:11434"
        assert variables["OLLAMA_KEEP_ALIVE"] == "-1"
        assert list(BACKEND["ollama"].arguments(launch)) == ["serve"]


def test_vllm_omni_is_vllm_with_a_switch() -> None:
    config = {"dtype": "bfloat16", "deployConfig": "stages.yaml", "servedModelName": "draw"}
    line = " ".join(arguments("vllm-omni", "HF://Qwen/Qwen-Image", config, fetched="/models/m"))
    assert line == (
        "/models/m --host 0.0.0.0 --port 8000 --served-model-name draw Qwen/Qwen-Image --omni "
        "--deploy-config /models/m/stages.yaml --dtype bfloat16"
    )
    assert BACKEND["vllm-omni"].command == ("vllm", "serve")
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
    assert BACKEND["mlc-llm"].command == ("python", "-m", "mlc_llm")


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
    found = BACKEND["mlc-llm"].environment(launch_of("HF://o/m", config, accelerator))
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
    found = BACKEND["diffusers"]
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
    launch = launch_of("HF://o/m", config)
    found = BACKEND["diffusers"]
    assert found.problems(Weights(source=launch.source, config=config)) == ()
    given = found.environment(launch)
    assert variables.items() <= given.items()
    assert len(given) == 3 + len(variables)


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
    assert BACKEND["comfyui"].command == ("python", "main.py")


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
        BACKEND["comfyui"].environment(launch_of(source, {}, accelerator, fetched=fetched))
    )
    order = found.pop("CUDA_DEVICE_ORDER", "")
    assert found == variables
    assert bool(order) is (accelerator is H100)


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
