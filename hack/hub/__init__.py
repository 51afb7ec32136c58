# SPDX-License-Identifier: Apache-2.0
"""A stand-in of the model hub on loopback, for tests and for `make run`.

It answers what the hub's client library asks when it reads: the list of a repository's files, its
tree, and the files themselves. `catalog` names the repositories, made up and small; some have a
fault, by which a client shows what it does about it. `server` serves them.

```
python -m hack.hub --port 8470      # then: HF_ENDPOINT=http://127.0.0.1:8470
```
"""
