# SPDX-License-Identifier: Apache-2.0
"""Kinds of `ai.flexinfer/v1alpha2`: models only, with what `kubectl explain` says of each field.

May import `flexinfer.meta` and the markers of `flexinfer.crd`, nothing that talks to a cluster.

- `groupversion_info`: group and version.
- `reasons`: condition types, reasons and phases.
- `model_spec`, `model_status`, `model_types`: the Model.
- `model_rules`: the rules of the Model in Python, for objects stored under an older CRD.

Invariants: every field has a text; every string, list and map has a bound, so that the CEL
rules stay within the API server's budget; every rule's message names the field and the cure.
"""
