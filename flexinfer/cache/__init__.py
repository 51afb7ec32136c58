# SPDX-License-Identifier: Apache-2.0
"""The local copy of what the API server holds, as bytes, kept fresh by LIST and WATCH.

Imports `client`, `event`, `meta`, `metrics`, `log`, `errors`. One informer per kind and selector.

- `reflector`: paged LIST, then WATCH from its resourceVersion; relist on 410; backoff.
- `listwatch`: what stands on either side of it, as protocols.
- `trouble`: what a failed list or watch means, in words and for the next attempt.
- `timing`: the waits, the backoff, and the share of the event loop that a reflector takes.
- `store`: key -> StoredObject, with indexes; what readers see.
- `memo`: decoded models, remembered per stored object, bounded.
- `own_writes`: what this process wrote and the informer has not seen yet.
- `underway`: the writes of this process that the server has not answered yet.
- `selection`: kind, namespace and selectors: what one informer holds.
- `informer`: reflector + store + handlers; `has_synced`, freshness, why it is not synced.
- `informers`: the set of informers of one process, started and stopped together.
- `client`: the Client that reads here and writes through.

Invariants: handlers hear what the server said, in its order, each name's events alternating;
readers see that or a newer own write, and never go back in time; nothing a user's function
raises ends a watch, and no failure of this package's own is silent.
"""
