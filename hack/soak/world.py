# SPDX-License-Identifier: Apache-2.0
"""The Models as they should be: random edits, and a memory of what was asked for last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flexinfer.errors import AlreadyExistsError

if TYPE_CHECKING:
    import random

    from flexinfer.envtest.admin import Admin
    from flexinfer.meta.envelope import Tree

NAMESPACE = "default"
MODELS = f"/apis/ai.flexinfer/v1alpha2/namespaces/{NAMESPACE}/models"
# Of all Models this share runs a replica; the others are Idle, which costs no simulated pod.
_RUNNING = 0.15


@dataclass(frozen=True, slots=True)
class Wish:
    """What was last asked of one Model."""

    replicas: int
    context_size: int

    def spec(self) -> Tree:
        """Return the spec that asks for it."""
        return {
            "backend": "llamacpp",
            "source": "HF://example/model-GGUF",
            "cache": {"strategy": "None"},
            "serverless": {"minReplicas": self.replicas},
            "config": {"ggufFile": "model.gguf", "contextSize": self.context_size},
        }


class World:
    """Create, edit and delete Models, and remember what each should be; None is deleted."""

    def __init__(self, admin: Admin, rng: random.Random) -> None:
        self.wishes: dict[str, Wish | None] = {}
        self.edits = 0
        self._admin = admin
        self._rng = rng

    def create(self, name: str) -> None:
        """Create a Model; one that an unanswered try made already is edited instead."""
        wish = self._wish()
        body = {"apiVersion": "ai.flexinfer/v1alpha2", "kind": "Model", "spec": wish.spec()}
        self.wishes[name] = wish
        try:
            self._admin.create(MODELS, body | {"metadata": {"name": name}})
        except AlreadyExistsError:
            self._admin.merge(f"{MODELS}/{name}", {"spec": wish.spec()})

    def edit(self) -> None:
        """Change, delete or bring back one Model at random."""
        self.edits += 1
        name = self._rng.choice(list(self.wishes))
        if self.wishes[name] is None:
            self.create(name)
        elif self._rng.random() < 0.1:  # noqa: PLR2004 - one edit in ten deletes
            self.wishes[name] = None
            self._admin.delete(f"{MODELS}/{name}")
        else:
            wish = self._wish()
            self.wishes[name] = wish
            self._admin.merge(f"{MODELS}/{name}", {"spec": wish.spec()})

    def assert_all(self) -> None:
        """Ask for every wish once more: an answer may have been lost with the API server."""
        for name, wish in self.wishes.items():
            if wish is None:
                self._admin.delete(f"{MODELS}/{name}")
            else:
                self._admin.merge(f"{MODELS}/{name}", {"spec": wish.spec()})

    def running(self) -> list[str]:
        """Return the names of the Models that should have replicas."""
        return [name for name, wish in self.wishes.items() if wish is not None and wish.replicas]

    def _wish(self) -> Wish:
        replicas = self._rng.choice((1, 1, 2)) if self._rng.random() < _RUNNING else 0
        return Wish(replicas=replicas, context_size=self._rng.randrange(1024, 65536))
