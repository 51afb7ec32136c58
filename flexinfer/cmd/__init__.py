# SPDX-License-Identifier: Apache-2.0
"""The command line: composition roots, one module a process.

- `manager`: the controllers, until a signal.
- `wake`: ask for a Model that is idle.
- `fetch`: weights from a hub or a folder to a claim, in the Jobs that controllers make.
- `manifests`: CRDs and roles, written or checked.

The only place that imports `api`, `controllers` and `internal`. Modules are imported when their
command is run, so that `--help` stays fast.
"""

from __future__ import annotations

import sys
from importlib.metadata import version

from cyclopts import App

app = App(
    name="flexinfer",
    help="Run large-language-model inference on Kubernetes.",
    version=lambda: version("flexinfer"),
)
app.command("flexinfer.cmd.manager:manager", name="manager", help="Run the controllers.")
app.command(
    "flexinfer.cmd.manifests:manifests",
    name="manifests",
    help="Write CRDs, roles and the API reference, or check that they are fresh.",
)
app.command("flexinfer.cmd.wake:wake", name="wake", help="Wake Models that are idle.")
app.command(
    "flexinfer.cmd.fetch:fetch",
    name="fetch",
    help="Bring weights into a claim, or look whether they are there.",
)


def main() -> None:
    """Run the command that the arguments name; exit 2 on misuse."""
    sys.exit(app())
