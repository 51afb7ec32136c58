# SPDX-License-Identifier: Apache-2.0
"""A real Kubernetes control plane on loopback for tests and local runs; works from the wheel.

- `binaries`: etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kwok: found,
  cached, or built from the Go modules in `modules/`.
- `supervisor`: one parent of all children, that ends them when its pipe closes.
- `controlplane`: `ControlPlane`, started in about two seconds, torn down whatever happens.
- `nodes`: node profiles of simulated GPU machines.
- `stages`: what kwok does to nodes and pods.
- `scripted`: a TLS server that says what a real API server cannot be made to say.
- `pytest_plugin`: fixtures.
"""
