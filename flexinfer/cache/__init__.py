# SPDX-License-Identifier: Apache-2.0
"""The local copy of what the API server holds, as bytes, kept fresh by LIST and WATCH.

Imports `client`, `event`, `meta`, `metrics`, `errors`. One informer per kind and selector.

- `reflector`: paged LIST, then WATCH from its resourceVersion; relist on 410; backoff.
- `store`: key -> StoredObject, with indexes; decoded models are remembered per entry, bounded.
- `own_writes`: what this process wrote and the informer has not seen yet.
- `informer`: reflector + store + handlers; `has_synced`, freshness, why it is not synced.
- `informers`: the set of informers of one process, started and stopped together.
- `client`: the Client that reads here and writes through.
"""
