# SPDX-License-Identifier: Apache-2.0
"""A program that serves as exec plugin and notes its runs, and an authority for the server."""

from __future__ import annotations

import stat
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from flexinfer.client.exec_plugin import API_VERSIONS, ExecPlugin
from flexinfer.client.renewal import RenewedCredentials
from flexinfer.client.tls import TlsFiles, Trust

if TYPE_CHECKING:
    from flexinfer.envtest.scripted import ScriptedServer

V1 = API_VERSIONS[0]


class Plugin:
    """A program in a folder of its own, which notes each of its runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "plugin"

    def does(self, body: str) -> Plugin:
        """Make the program; `answer(**status)` prints, `runs` counts from 1."""
        head = f"""\
            #!{sys.executable} -I
            import json, os, pathlib, sys, time
            folder = pathlib.Path({str(self.folder)!r})
            with open(folder / "runs", "a") as file:
                file.write(f"{{os.getpid()}}\\n")
            runs = len((folder / "runs").read_text().splitlines())
            def answer(version={V1!r}, **status):
                print(json.dumps(dict(apiVersion=version, kind="ExecCredential", status=status)))
            """
        self.path.write_text(textwrap.dedent(head) + textwrap.dedent(body))
        self.path.chmod(self.path.stat().st_mode | stat.S_IXUSR)
        return self

    @property
    def runs(self) -> list[int]:
        """The process ids of its runs."""
        noted = self.folder / "runs"
        return [int(line) for line in noted.read_text().split()] if noted.exists() else []

    def command(self, **options: Any) -> ExecPlugin:
        return ExecPlugin(command=str(self.path), **options)

    def credentials(self, server: ScriptedServer, **options: Any) -> RenewedCredentials:
        tls = TlsFiles(Trust(ca=server.ca_pem))
        return RenewedCredentials(server.url, self.command(**options), tls=tls)

    @staticmethod
    def is_alive(pid: int) -> bool:
        with suppress(OSError):
            return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return False


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)
