#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Build the wheel and check that it holds the four packages, whole, and nothing else.
# usage: hack/check-wheel.sh VENV_BIN
set -euo pipefail
bin=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$bin/python" -m hatchling build --target wheel --directory "$folder" > /dev/null
"$bin/check-wheel-contents" "$folder"/*.whl
