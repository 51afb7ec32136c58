#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Gate branch coverage: 90 % of all, 100 % of the parts whose every path is a contract.
# usage: hack/coverage.sh COVERAGE
set -euo pipefail
coverage=$1
"$coverage" combine --quiet
"$coverage" report --fail-under=90 --precision=1
"$coverage" report --fail-under=100 --precision=2 --include \
  'flexinfer/workqueue/*,flexinfer/conditions.py,flexinfer/apply/*,flexinfer/crd/*'
