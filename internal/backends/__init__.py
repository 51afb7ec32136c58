# SPDX-License-Identifier: Apache-2.0
"""The inference servers a Model can run on, one declarative entry each.

Pure: an entry turns a Model's source, config and hardware into a command line, an environment
and probes; nothing here talks to a cluster. Imports `internal.gpu` for hardware and
`flexinfer.meta` for durations and JSON.

- `source`: what `spec.source` says.
- `config`: the typed keys of `spec.config`.
- `image`: which image runs, and how it is pinned.
- `probe`: how to see that a server is up.
- `backend`: the shape of an entry; `paths`: where its weights lie in the container.
- `vllm`, `vllm_omni`, `ollama`, `llamacpp`, `mlc_llm`, `diffusers`, `comfyui`: the entries.
- `registry`: finding an entry by the name or alias that a Model gives.
- `support`, `maxwell`, `rocm`: what GPU architectures can, cannot, and have to be told.
- `hardware`: does an entry run on the chosen hardware, and what should be known if it does.

Invariants: a value of the wrong type is a sentence for the user, never a silent default; no
value becomes part of a shell script; every image is public.
"""
