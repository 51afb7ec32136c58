#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Install FlexInfer from a checkout into a fresh virtual environment: what the image holds.
# The Dockerfile's only build step, and run by a test in a clean environment.
# usage: hack/image.sh TARGET_FOLDER
set -euo pipefail
target=$(realpath --canonicalize-missing -- "$1")
root=$(cd "$(dirname "$0")/.." && pwd)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
# The wheel is made by the locked hatchling, in an environment that does not reach the image.
python3 -m venv "$build/venv"
"$build/venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --requirement "$root/requirements/build.txt"
(cd "$root" && "$build/venv/bin/python" -m hatchling build --target wheel --directory "$build/dist" > /dev/null)
python3 -m venv --without-pip "$target"
"$build/venv/bin/pip" --python "$target/bin/python" install --quiet --disable-pip-version-check \
  --no-compile --require-hashes --requirement "$root/requirements/run.txt"
"$build/venv/bin/pip" --python "$target/bin/python" install --quiet --disable-pip-version-check \
  --no-compile --no-deps --no-index "$build"/dist/*.whl
# Nobody may write there later, and Python's own image comes without bytecode: imports take four times
# as long then, a second more at each start. This is valid whatever times a builder gives its files.
export PYTHONPYCACHEPREFIX=$target/pycache
compile=("$target/bin/python" -m compileall -q -f --invalidation-mode unchecked-hash)
stdlib=$("$target/bin/python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
"${compile[@]}" -x '/(site-packages|test|tests|ensurepip|idlelib|lib2to3|tkinter|turtledemo)/' "$stdlib"
"${compile[@]}" "$target/lib"
"$target/bin/flexinfer" --help > /dev/null
"$target/bin/flexinfer" manager --help > /dev/null
echo "$target/bin/flexinfer"
