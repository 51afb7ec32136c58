# SPDX-License-Identifier: Apache-2.0
"""What GPUs the cluster offers, and which of them a Model's pods would get.

Pure: reads Node objects that somebody else fetched. Imports `api` for reasons and
`flexinfer.kinds` for nodes.

- `accelerator`: vendors and the chosen hardware.
- `architecture`: what the name of an architecture says.
- `inventory`: what one node offers, from its allocatable resources and labels.
- `detection`: from nodes and wishes to an accelerator, or to why there is none.
- `vram`: does a replica fit into the memory; `caveat`: what works, but should be known.

Invariants: nodes that cannot take a pod (not Ready, cordoned, tainted without a toleration, too
few GPUs) never decide; the answer does not depend on the order of the nodes.
"""
