# SPDX-License-Identifier: Apache-2.0
"""The API group and version of everything in this package."""

from __future__ import annotations

GROUP = "ai.flexinfer"
VERSION = "v1alpha2"
