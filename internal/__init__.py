# SPDX-License-Identifier: Apache-2.0
"""What controllers and processes share, and nobody else may rely on.

Imports `api` and the framework; is imported by `controllers` and `flexinfer.cmd`.
"""
