# SPDX-License-Identifier: Apache-2.0
"""The API kinds that users write, by group and version: models only.

Imports `flexinfer.meta` and the markers of `flexinfer.crd`; nothing here talks to a cluster.
"""
