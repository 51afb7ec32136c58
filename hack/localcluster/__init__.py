# SPDX-License-Identifier: Apache-2.0
"""What `make run` starts: a cluster, FlexInfer in it, the samples, and a live table of them.

- `expectations`: which state each sample has to reach; pure.
- `table`: the samples as lines of text; pure.
- `processes`: FlexInfer's processes, run as their pods would be.
- `local`: the control plane of this machine with simulated GPU nodes, and `hack.podrunner` for
  pods that really run.
- `attached`: a cluster that is already there (`CLUSTER=current` and `CLUSTER=kind`).
- `show`: follows the samples until they are as expected, or until Ctrl-C.
"""
