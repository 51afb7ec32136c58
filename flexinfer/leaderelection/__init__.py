# SPDX-License-Identifier: Apache-2.0
"""Leader election on a Lease: of many processes one works, the others are ready to.

Imports `client`, `meta`, `metrics`, `log` and `errors`; knows nothing of controllers.

Invariants: only the time since a change was observed here counts, by the monotonic clock, never
a time that somebody wrote; nobody claims a Lease before its record has stood unchanged for the
duration that the record names; a leader gives up before that, counted from when it sent its last
successful renewal; a Lease is renewed by a thread of its own, so a stalled event loop keeps it;
it is released only after what it protects has ended.

Two leaders are possible all the same, for as long as a write is on its way or a process stands
still, so writes carry their own preconditions, or the `FencingToken`.

- `options`: `LeaderElectionOptions`, the times and names.
- `lease`: what a Lease says, read and written; pure.
- `election`: what to do next, from what was seen and answered; pure but for injected clocks.
- `elector`: carries that out against an API server.
- `campaign`: the thread with a loop and a connection of its own; `term`: what it shares with the
  main event loop while leading.
- `leadership`: what runs in the main event loop, term after term.
"""

from flexinfer.leaderelection.leadership import Leadership
from flexinfer.leaderelection.lease import FencingToken
from flexinfer.leaderelection.options import LeaderElectionOptions

__all__ = ["FencingToken", "LeaderElectionOptions", "Leadership"]
