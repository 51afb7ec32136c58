# SPDX-License-Identifier: Apache-2.0
"""Bringing weights into a claim: what the Jobs of a Model's cache run.

One process, one thread, no cluster: files come from the hub or from another claim, and land in one
directory. Imports `internal.backends.source` for the sources it reads, and `flexinfer.errors`.

- `errors`: what can go wrong, ordered by whether another try may help.
- `patterns`, `paths`: which files are wanted, and where they may land.
- `verify`: sizes and checksums.
- `space`: room on the volume.
- `marker`: the record that tells a directory that is whole from one that is not.
- `workspace`: the directory that is filled: its lock, its parts, what is stale in it.
- `retry`, `progress`: patience with the hub, and lines for who watches.
- `environment`: where the hub is and who asks, and what its client is kept from doing.
- `hub`: the hub's client library, and the only module that knows it.
- `download`, `copy`, `check`: the three things a Job does.
- `report`: what the process says at its end.

Invariants: a marker is written last, by rename, and never lies beside the files of another
source; nothing outside the target directory is written or removed; a file bears its name only
once its size and checksum are right; a token is sent to the hub alone and is never written down.
"""
