# SPDX-License-Identifier: Apache-2.0
"""Which state each sample has to reach, and what is still missing; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from flexinfer.meta.envelope import Tree


@dataclass(frozen=True, slots=True)
class State:
    """What `kubectl get mdl` shows of one model."""

    phase: str
    ready: str
    reason: str

    def __str__(self) -> str:
        return f"phase {self.phase}, Ready={self.ready}/{self.reason}"


@dataclass(frozen=True, slots=True)
class Stage:
    """Which samples to wake, and the state that each one has to reach then."""

    wake: Sequence[str]
    states: Mapping[str, State]


def load(path: Path) -> list[Stage]:
    """Read the stages that the samples go through."""
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [
        Stage(
            wake=entry.get("wake", ()),
            states={name: State(**state) for name, state in entry["states"].items()},
        )
        for entry in entries
    ]


def ready_condition(model: Tree) -> Tree:
    """Return the Ready condition, empty while there is none."""
    conditions: Sequence[Tree] = model.get("status", {}).get("conditions", ())
    return next((c for c in conditions if c["type"] == "Ready"), {})


def observed(model: Tree) -> State:
    """Return what a model's status says of its present generation.

    A status that speaks of an older generation counts as none.
    """
    status = model.get("status", {})
    if status.get("observedGeneration") != model["metadata"]["generation"]:
        return State("", "", "")
    ready = ready_condition(model)
    return State(status.get("phase", ""), ready.get("status", ""), ready.get("reason", ""))


def unseen(models: Sequence[Tree]) -> list[str]:
    """Return a line for each model whose status does not speak of its present generation."""
    return [f"{m['metadata']['name']}: no status yet" for m in models if not observed(m).phase]


def missing(expected: Mapping[str, State], models: Sequence[Tree]) -> list[str]:
    """Return a line for each sample that is not as expected; empty when all are."""
    states = {model["metadata"]["name"]: observed(model) for model in models}
    lines = []
    for name, state in sorted(expected.items()):
        seen = states.get(name)
        if seen is None:
            lines.append(f"{name}: not there; expected {state}")
        elif seen != state:
            lines.append(f"{name}: {seen}; expected {state}")
    return lines
