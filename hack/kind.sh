#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Make or delete the kind cluster named flexinfer; kind is built from its Go module.
# usage: hack/kind.sh up|down VERSION
set -euo pipefail
action=$1 version=$2
here=$(cd "$(dirname "$0")" && pwd)
engine=$("$here/container-engine.sh")
command -v go > /dev/null || { echo "kind is built from its Go module: install Go 1.26 or newer." >&2; exit 1; }
export KIND_EXPERIMENTAL_PROVIDER=$engine
kind() { go run "sigs.k8s.io/kind@$version" "$@"; }
case $action in
  up)
    kind get clusters 2> /dev/null | grep -qx flexinfer ||
      kind create cluster --name flexinfer --config "$here/kind-config.yaml" --wait 120s
    ;;
  down) kind delete cluster --name flexinfer ;;
  *) echo "usage: hack/kind.sh up|down VERSION" >&2; exit 2 ;;
esac
