# SPDX-License-Identifier: Apache-2.0
"""The way to the API server: transport, credentials, and the Client that everything writes through.

Imports `errors`, `meta`, `metrics`, `log` and the table of `kinds`. The only package that
imports kubernetes_asyncio, and it does so only when a kubeconfig is given, because that import
costs 1.2 s and 113 MB.

- `protocol`: the `Client` every reconciler sees.
- `direct`: the Client that asks each time; `creation`: a create whose answer may be lost.
- `transport`: bytes over HTTP; one typed error per kind of failure, a deadline on every call.
- `exchange`, `failure`, `retry`, `lines`, `proxy`: what a transport does, a step each: send once,
  read a refusal, wait before the next try, cut a watch into lines, choose the way.
- `connection`: HTTP/1.1 on one connection; `response`: an answer as it comes; `pool`: connections
  opened, kept and closed.
- `slots`: how many calls at once; `deadline`: how long one may take.
- `auth`: service-account files and fixed tokens; `renewal`: credentials issued for a while, by
  `exec_plugin` or `oidc`; `kubeconfig`: which of them a kubeconfig means.
- `tls`: whom all of them trust; `reload`: how their files are read again.
"""
