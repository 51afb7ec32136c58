# SPDX-License-Identifier: Apache-2.0
"""What all tests share: the fixtures of flexinfer.envtest."""

from __future__ import annotations

pytest_plugins = ["flexinfer.envtest.pytest_plugin"]
