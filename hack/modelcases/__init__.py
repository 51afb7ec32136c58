# SPDX-License-Identifier: Apache-2.0
"""Builders that the unit tests of Models share.

Tables of cases are made of them when a test module is loaded, which is before any fixture.

- `plans`: nodes, and the plan of a Model on them.
- `members`: the members of a shared group.
- `weights`: Models with their claims, Jobs and pods.

May import what the operator consists of. Nothing here runs or waits; times count from `NOW`.
"""

from __future__ import annotations

from datetime import UTC, datetime

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
