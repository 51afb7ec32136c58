# SPDX-License-Identifier: Apache-2.0
"""Server-side apply for controllers: children and status, sent only when something differs.

Imports `client.protocol`, `kinds`, `meta`, `errors` and `log`. All but `applier`, `children`,
`leftovers`, `reverted` and `status` is pure.

- `intent`: an intent without None, its digest, and the live values at its paths.
- `immutable`: live values carried into an intent where the server allows no other.
- `leftovers`: what a deleted owner of the same name left behind.
- `ownership`: the owner reference, and whether an object is ours to touch.
- `request`: what every apply says: who manages, and which object.
- `memory`: what was sent last, and what the server made of it.
- `plan`: what to send for a child, from all of these.
- `live`: what a client has to offer.
- `managers`: fields that we hold under another name, and list entries that others hold too.
- `reverted`: whose change an apply takes back.
- `applier`: `Applier`, for what an object owns.
- `children`: `apply_children`, for all objects of one kind that an object owns.
- `status`: `StatusWriter`, for the status of the object itself.

Invariants: an object that is not ours is never written, and deleted only when its owner is gone
for certain and ours has that one's name; a request on an object that was seen
is bound to it, so nothing that was deleted comes back and no successor is written to; same
intent and same live values at its paths send nothing.
"""

from flexinfer.apply.applier import Applied, Applier
from flexinfer.apply.children import AppliedChildren, apply_children
from flexinfer.apply.live import LiveClient
from flexinfer.apply.memory import Outcome
from flexinfer.apply.reverted import Claim, Reverted, RevertObserver
from flexinfer.apply.status import StatusWriter

__all__ = [
    "Applied",
    "AppliedChildren",
    "Applier",
    "Claim",
    "LiveClient",
    "Outcome",
    "RevertObserver",
    "Reverted",
    "StatusWriter",
    "apply_children",
]
