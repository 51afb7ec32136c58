# SPDX-License-Identifier: Apache-2.0
"""Thin read models of the foreign kinds we touch, and the table of their immutable fields.

Imports `meta` alone. A model holds only the fields that somebody here reads.
"""
