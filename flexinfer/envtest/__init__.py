# SPDX-License-Identifier: Apache-2.0
"""A real Kubernetes control plane on loopback for tests and local runs; works from the wheel.

`ControlPlane.start()` gives one in a few seconds, and `python -m flexinfer.envtest` to a shell.
What it consists of:

- `controlplane`: `ControlPlane`, a context manager with everything a test asks of a cluster.
- `binaries`, `build`, `components`: etcd, kube-apiserver, kube-controller-manager, kube-scheduler
  and kwok: found, cached, or built from the Go modules in `modules/`.
- `processes`, `supervisor`: one process is the parent of all others, and ends them when its pipe
  closes.
- `arguments`, `ports`, `certs`: command lines and the files and ports that they name.
- `apiservers`, `etcd`, `kubectl`: further API servers, what only etcd can be asked, and how a
  person would ask.
- `crds`: CustomResourceDefinitions in files.
- `admin`, `audit`: a small client for the harness itself, and the witness of what was sent.
- `nodes`, `volumes`: simulated machines and their disks.
- `behaviour`, `stages`, `podstatus`: what kwok, the kubelet of those machines, does to pods.
- `eventually`: wait for something to come true; for tests too.

What stands beside it:

- `script`, `wire`: what a server on the wire says, and how it is written there.
- `scripted`: a TLS server that says what a real API server cannot be made to say.
- `connect_proxy`: an HTTP proxy that tunnels, for clients that must use one.
- `faults`: a proxy between a process and a real API server that breaks what passes.
- `simulated`, `history`: one kind of an API server in memory, for what lists and watches.
- `clock`: time that a test moves.
- `loopback`: a guard that nothing connects outside this machine.
- `pytest_plugin`: fixtures.

May import `flexinfer.errors` and `flexinfer.meta` alone, so that what is tested does not test
itself. Invariants: everything listens on loopback; clients verify TLS; no process outlives its
owner unless it was detached.
"""
