# SPDX-License-Identifier: Apache-2.0
"""The group `ai.flexinfer`, one package a version."""
