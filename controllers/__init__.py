# SPDX-License-Identifier: Apache-2.0
"""The controllers, one package a kind, none of which knows another.

- `model`: Models.

Each package has pure modules (what should be, and what is) and one shell that talks to the API
server. May import `internal`, `api` and the framework.
"""
