# SPDX-License-Identifier: Apache-2.0
"""The benchmark: what our processes cost beside those of peers, on one real API server.

`make bench` measures sync, reconcile, watch and idle; `make bench-growth` what one more object
costs. Both write `bench-results.json` and the tables of `docs/performance.md`, which says what is
measured and how to read it.

- `kinds`, `reconcilers`, `subject`: our process that is measured.
- `peer/`, `kopf_peer`: the same on controller-runtime and on kopf; `peers` makes them runnable.
- `writer`: the process that writes while subjects watch.
- `fixture`: the objects that are worked on, and their deletion.
- `measure`, `process`: CPU clock and memory of a process, and the protocol that it keeps.
- `works`, `idle`, `growth`: the runs.
- `verify`: what the API server holds after a run; pure.
- `results`, `tables`: medians, ratios, marginal costs and how they are shown; pure.
- `report`: the file, and the page.

It may use the whole product, and nothing of the product uses it.
"""
