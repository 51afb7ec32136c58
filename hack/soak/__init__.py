# SPDX-License-Identifier: Apache-2.0
"""`make soak`: three managers, thousands of Models, and everything going wrong for a while.

- `world`: the Models as they should be: random edits, and a memory of what was asked for.
- `crew`: the managers as processes: start, kill, restart, memory.
- `chaos`: what goes wrong: the API server, watches, leaders, nodes, pods, children.
- `oracle`: is every object in its right state at the end; knows the API, not our controllers.
- `witness`: no write of a leader after its successor's start, no key worked on twice at once;
  from the audit log and the managers' own logs; pure.

Nothing here imports `controllers` or `internal`: what is tested does not judge itself.
"""
