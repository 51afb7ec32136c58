#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Print the container engine that answers. The client alone is not an engine, so each is asked.
set -euo pipefail
for client in docker podman nerdctl; do
  if command -v "$client" > /dev/null && timeout 10 "$client" info > /dev/null 2>&1; then
    echo "$client"
    exit 0
  fi
done
echo "No container engine answers (docker, podman and nerdctl were asked): start one and try again." >&2
exit 1
