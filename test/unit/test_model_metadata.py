# SPDX-License-Identifier: Apache-2.0
"""Annotations that routers read: there when they are wanted, and saying what is so."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from api.flexinfer.v1alpha2.model_types import Model
from controllers.model import names
from controllers.model.decision import Plan, Reading, decide, read
from controllers.model.metadata import capabilities, managed_annotations
from flexinfer.kinds.node import Node
from flexinfer.meta.envelope import meta_from

if TYPE_CHECKING:
    from flexinfer.meta.envelope import Tree

GPU: Tree = {"backend": "vllm", "source": "HF://org/model", "gpu": {}}
CPU: Tree = {"backend": "llamacpp", "source": "HF://o/m", "config": {"ggufFile": "m.gguf"}}
COMFY: Tree = {"backend": "comfyui", "source": "pvc://art/sdxl", "gpu": {}}
STATUS: Tree = {
    "allocatable": {"nvidia.com/gpu": "8"},
    "conditions": [{"type": "Ready", "status": "True"}],
}
NODE = Node.model_validate({"metadata": meta_from({"name": "n"}), "status": STATUS})


def model(spec: Tree) -> Model:
    return Model.model_validate(
        {"metadata": meta_from({"name": "m", "namespace": "ns"}), "spec": spec}
    )


def plan(of: Model) -> Plan:
    reading = read(of)
    assert isinstance(reading, Reading), reading
    found = decide(of, reading, [NODE], {})
    assert isinstance(found, Plan), found
    return found


def test_annotations_are_there_when_they_are_wanted() -> None:
    of = model(
        GPU
        | {
            "litellm": {"servedModelName": "chat", "aliases": ["b", "chat"], "copilotAlias": "c"},
            "serviceLabels": ["textgen", "a"],
        }
    )
    found = managed_annotations(of, plan(of))
    said = json.loads(found.pop(names.CAPABILITIES_ANNOTATION))
    assert said == {"toolCalling": True, "vision": False, "imageGeneration": False}
    assert found == {
        "flexinfer.ai/service-labels": "a,textgen",
        "litellm.flexinfer.ai/served-model": "chat",
        "litellm.flexinfer.ai/aliases": "a,b,textgen",
        "litellm.flexinfer.ai/copilot-model": "c",
    }


@pytest.mark.parametrize("litellm", [{}, {"litellm": {"enabled": False}}])
def test_without_litellm_there_are_none(litellm: Tree) -> None:
    of = model(GPU | litellm)
    assert managed_annotations(of, plan(of)) == {}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, {"toolCalling": False, "vision": False}),
        ({"jinja": True, "mmproj": "p.gguf"}, {"toolCalling": True, "vision": True}),
    ],
)
def test_capabilities_of_llamacpp_follow_its_config(spec: Tree, expected: Tree) -> None:
    of = model(CPU | {"config": {"ggufFile": "m.gguf"} | spec})
    assert expected.items() <= capabilities(of, plan(of)).items()


def test_backends_for_images_make_images() -> None:
    of = model(COMFY)
    expected = {"imageGeneration": True, "toolCalling": False, "vision": False}
    assert capabilities(of, plan(of)) == expected


def test_what_the_spec_says_of_capabilities_wins() -> None:
    of = model(GPU | {"capabilities": {"toolCalling": False, "vision": True}})
    found = capabilities(of, plan(of))
    assert (found["toolCalling"], found["vision"]) == (False, True)
