# SPDX-License-Identifier: Apache-2.0
"""Faults between a process and a real API server, and what to measure while they last.

```python
with ControlPlane.start() as plane, FaultProxy.start(plane) as proxy:
    before = Footprint.take(proxy)
    ...  # a Transport to proxy.url that trusts proxy.ca_pem; tokens pass through
    proxy.script("GET", "/api/v1/configmaps", Answer(body=()), query={"watch": "true"})
    ...  # every watch is closed at once, until
    proxy.heal()
    assert proxy.traffic.select(path="/api/v1/configmaps").peak_per_second() < 5
    await eventually(lambda: before.assert_no_growth(Footprint.take(proxy)))
```

- `forward`: `Forward`, what a script of `flexinfer.envtest.script` can do to what passes through.
- `proxy`: `FaultProxy`, which plays such a script, and strikes at what is open already.
- `traffic`: what was asked, when, on which connection, and what came of it.
- `footprint`: `Footprint`, to show that a fault leaves no task, socket or descriptor behind.
- `relay`, `edits`: the insides of the proxy: one exchange, and the lines of one watch.

Faults of the server itself are on the control plane: `processes.kill`, `restart`, `compact`,
`add_apiserver` for a second API server on the same etcd, `snapshot` and `rollback` of etcd.

May import what `flexinfer.envtest` may. Invariants: the proxy has a thread and an event loop of
its own, so that a test that blocks its loop does not stop it; it verifies the real server; what
no route names passes unchanged.
"""

from flexinfer.envtest.faults.footprint import Footprint
from flexinfer.envtest.faults.forward import (
    Bookmarks,
    CutInside,
    Drop,
    Forward,
    Hold,
    Insert,
    Rewrite,
)
from flexinfer.envtest.faults.proxy import FaultProxy
from flexinfer.envtest.faults.traffic import Exchange, Traffic

__all__ = [
    "Bookmarks",
    "CutInside",
    "Drop",
    "Exchange",
    "FaultProxy",
    "Footprint",
    "Forward",
    "Hold",
    "Insert",
    "Rewrite",
    "Traffic",
]
