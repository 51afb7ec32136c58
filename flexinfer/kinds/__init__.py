# SPDX-License-Identifier: Apache-2.0
"""Thin read models of the foreign kinds we touch, and what the API server knows about them.

Imports `meta` and `errors` alone. A model holds the few fields that a controller may want to
read; it is never written back, since what it does not know would be lost.

- `configmap`, `deployment`, `job`, `namespace`, `node`, `persistentvolumeclaim`, `pod`, `service`:
  one kind each.
- `condition`: the part of a condition that every foreign kind shares.
- `immutable`: the fields that the server never lets change, and what to do about each.
- `structure`: how server-side apply merges lists and maps, kind by kind.
"""
