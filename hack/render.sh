#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Print config/default with the manager's image replaced; the tracked files stay as they are.
# usage: hack/render.sh KUBECTL IMAGE
set -euo pipefail
kubectl=$1 image=$2
if [ -z "$image" ]; then
  echo "no image: name one, as in make deploy IMG=registry.example/flexinfer:v1" >&2
  exit 2
fi
root=$(cd "$(dirname "$0")/.." && pwd)
overlay=$root/.run/overlay
mkdir -p "$overlay"
case $image in
  *@*) pin="newName: ${image%@*}"$'\n'"    digest: ${image#*@}" ;;
  *:*) pin="newName: ${image%:*}"$'\n'"    newTag: ${image##*:}" ;;
  *) pin="newName: $image"$'\n'"    newTag: latest" ;;
esac
cat > "$overlay/kustomization.yaml" << EOF
resources: [../../config/default]
images:
  - name: flexinfer
    $pin
$(sed -n '/^replacements:/,$p' "$root/config/default/kustomization.yaml")
EOF
"$kubectl" kustomize "$overlay"
