# SPDX-License-Identifier: Apache-2.0
"""API machinery: what every Kubernetes object has, whatever its kind.

Imports pydantic, msgspec and `flexinfer.errors`, nothing else of this project. Every type is
frozen; names are snake_case here and camelCase on the wire.

- `envelope`: typed metadata beside the raw bytes of the rest; `frozendict`: its maps, shared.
- `wire`: what else the API server answers with: lists, watch lines, errors.
- `depth`: what both do about JSON that is nested absurdly deep.
- `object`: the pydantic base of kinds that are read and written as models.
- `resource`: where a kind lives in the API's URL space.
- `condition`, `quantity`, `duration`, `selector`: the scalar types of the API conventions.
"""
