# SPDX-License-Identifier: Apache-2.0
"""What all tests share: the fixtures of flexinfer.envtest, and properties without a clock."""

from __future__ import annotations

from hypothesis import settings

# Tests assert no speed: on a busy machine any example may take long.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

pytest_plugins = ["flexinfer.envtest.pytest_plugin"]
