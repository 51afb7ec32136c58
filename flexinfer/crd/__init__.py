# SPDX-License-Identifier: Apache-2.0
"""Generation: one truth in pydantic models and rule tuples, everything else written from it.

Imports `flexinfer.meta` and `flexinfer.errors` only. Pure but for `drift`, which touches files.

- `markers`: what a model says beyond its types: validation rules, list types, columns.
- `conditioned`: the base of kinds whose status holds conditions.
- `docstrings`: the texts below fields, read from the source.
- `schema`: a pydantic model to the structural schema that the API server accepts.
- `generate`: a kind to its CustomResourceDefinition.
- `rbac`: the rules that stand beside each reconciler to roles.
- `reference`: a kind to its page of the API reference.
- `document`: trees to YAML text.
- `modules`: an author's modules to all of their files.
- `drift`: generated text to files, and files that no longer are what would be generated.

Invariants: the same input gives the same bytes; what the API server would refuse or silently
change is refused here with the path of the field; every field has a text for `kubectl explain`.
"""
