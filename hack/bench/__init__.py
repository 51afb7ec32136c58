# SPDX-License-Identifier: Apache-2.0
"""The benchmark: what a process of ours costs, measured on a real API server.

`make bench` prints a table and writes `bench-results.json`. One work so far:

| work | what is done | measured |
|---|---|---|
| sync | an informer lists 10,000 custom resources of 3.2 KB | wall and CPU seconds, RSS in MiB |

Each figure is the median of the rounds, less that of an idle process that has the same imports and
an open transport. Absolute times depend on the machine; compare them within one run.

- `fixture`: the custom resource, and enough of them.
- `subject`: the process that is measured.
- `measure`: runs a subject and reads what it cost from the kernel.
- `results`: medians, the table and the file; pure.
"""
