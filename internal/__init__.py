# SPDX-License-Identifier: Apache-2.0
"""What controllers and processes share, and nobody else may rely on.

- `backends`: which programs serve models, and how each is started, probed and supported.
- `gpu`: which nodes have which accelerators, and whether a model fits.
- `fetch`: how weights come from a hub or a folder, safely.

Imports `api` and the framework; is imported by `controllers` and `flexinfer.cmd`.
"""
