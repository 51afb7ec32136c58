# SPDX-License-Identifier: Apache-2.0
"""Run the exec plugin of a kubeconfig: client.authentication.k8s.io/v1 and v1beta1.

A plugin has no terminal: its standard input is empty, and one that needs a terminal
(`interactiveMode: Always`) is refused. It runs in a process group of its own, which is killed when
the time is over or nobody waits any more. Both its outputs are read at once and bounded. Errors
hold its command and the end of its standard error; never its standard output, which is the
credential.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

import anyio

from flexinfer.client.renewal import Issued
from flexinfer.errors import ConfigurationError, CredentialError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from anyio.abc import ByteReceiveStream, Process

    from flexinfer.meta.envelope import Tree

API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
TIMEOUT = 60.0
# Where a cluster's entry keeps what it has to say to plugins.
_EXTENSION = "client.authentication.k8s.io/exec"
_ANSWER_LIMIT = 1024 * 1024
_TAIL = 2048
# What a child of the plugin that outlives it may still add to the output.
_LAST_WORDS_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecPlugin:
    """Be a command that prints a credential; `timeout` is in seconds."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    api_version: str = API_VERSIONS[0]
    cluster: Tree | None = field(default=None, repr=False)
    timeout: float = TIMEOUT

    def __str__(self) -> str:
        return f"exec plugin {self.command}"

    async def issue(self) -> Issued:
        """Run the command and return what it printed; raise CredentialError."""
        code, answer, last_words = await self._run()
        if code:
            how = f"ended with {code}" if code > 0 else f"was ended by signal {-code}"
            raise CredentialError(f"{self} {how}{_quote(last_words)}")
        try:
            return _issued(json.loads(answer), self.api_version)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            # The error of a decoder may quote what it read, and that is a secret.
            why = str(error) if isinstance(error, _MisfitError) else "it is no ExecCredential"
            msg = f"the answer of {self} is of no use: {why}{_quote(last_words)}"
            raise CredentialError(msg) from None

    async def _run(self) -> tuple[int, bytes, bytes]:
        """Return exit code, standard output and the end of standard error."""
        answer, last_words = bytearray(), bytearray()
        with anyio.move_on_after(self.timeout):
            async with await self._start() as process:
                try:
                    await _attend(process, answer, last_words)
                finally:
                    if process.returncode is None:
                        _kill_group(process)
                return process.returncode or 0, bytes(answer), bytes(last_words)
        msg = f"{self} did not end within {self.timeout:g} s and was killed"
        raise CredentialError(f"{msg}{_quote(bytes(last_words))}")

    async def _start(self) -> Process:
        spec: Tree = {"interactive": False}
        if self.cluster is not None:
            spec["cluster"] = self.cluster
        info = {"apiVersion": self.api_version, "kind": "ExecCredential", "spec": spec}
        env = {**os.environ, **self.env, "KUBERNETES_EXEC_INFO": json.dumps(info)}
        try:
            return await anyio.open_process(
                (self.command, *self.args),
                stdin=subprocess.DEVNULL,
                env=env,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise CredentialError(f"{self} cannot be run: {reason}") from error


def parse(user_exec: Tree, cluster: Tree, *, folder: Path, ca_pem: str | None) -> ExecPlugin:
    """Return the plugin of a user's `exec` section, for a cluster's entry.

    *folder* is where the kubeconfig lies: a command with a slash is relative to it. Raises
    ConfigurationError for a section that cannot work, such as a command that is not installed.
    """
    version = user_exec.get("apiVersion")
    if version not in API_VERSIONS:
        raise ConfigurationError(
            f"exec.apiVersion must be one of {', '.join(API_VERSIONS)}, not {version!r}: "
            "update the plugin's entry"
        )
    if user_exec.get("interactiveMode") == "Always":
        raise ConfigurationError(
            "exec.interactiveMode is Always, and there is no terminal here: "
            "use a plugin, or a login of it, that asks nothing"
        )
    env = {str(pair["name"]): str(pair["value"]) for pair in user_exec.get("env") or ()}
    return ExecPlugin(
        command=_command(user_exec, folder, env),
        args=tuple(str(argument) for argument in user_exec.get("args") or ()),
        env=env,
        api_version=version,
        cluster=_cluster(cluster, ca_pem) if user_exec.get("provideClusterInfo") else None,
    )


def _command(user_exec: Tree, folder: Path, env: Mapping[str, str]) -> str:
    command = str(user_exec.get("command") or "")
    if "/" in command:
        command = str(folder / command)
    if not command or shutil.which(command, path=env.get("PATH")) is None:
        hint = str(user_exec.get("installHint") or "install it or name another").strip()
        raise ConfigurationError(f"exec.command {command!r} is no program here: {hint}")
    return command


def _cluster(cluster: Tree, ca_pem: str | None) -> Tree:
    """Return a cluster's entry as plugins are told of it."""
    names = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url")
    told: Tree = {name: cluster[name] for name in names if cluster.get(name)}
    if ca_pem:
        told["certificate-authority-data"] = base64.b64encode(ca_pem.encode()).decode()
    for extension in cluster.get("extensions") or ():
        if extension.get("name") == _EXTENSION:
            told["config"] = extension.get("extension")
    return told


async def _attend(process: Process, answer: bytearray, last_words: bytearray) -> None:
    """Wait for the end of the process, reading all the while."""
    # Both are pipes, because nothing else was asked for.
    stdout = cast("ByteReceiveStream", process.stdout)
    stderr = cast("ByteReceiveStream", process.stderr)
    async with anyio.create_task_group() as readers:
        readers.start_soon(_read_answer, stdout, answer)
        readers.start_soon(_read_tail, stderr, last_words)
        await process.wait()
        readers.cancel_scope.deadline = anyio.current_time() + _LAST_WORDS_SECONDS


async def _read_answer(stream: ByteReceiveStream, answer: bytearray) -> None:
    async for chunk in stream:
        # One byte too many is kept, which no JSON of a credential is long enough for.
        answer += chunk[: _ANSWER_LIMIT + 1 - len(answer)]


async def _read_tail(stream: ByteReceiveStream, tail: bytearray) -> None:
    async for chunk in stream:
        tail += chunk
        del tail[:-_TAIL]


def _kill_group(process: Process) -> None:
    """End the plugin and what it started; its group has the number of its process."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class _MisfitError(ValueError):
    """Say what is wrong with an answer, in words that are not its own."""


def _issued(answer: Tree, api_version: str) -> Issued:
    if answer["kind"] != "ExecCredential" or answer["apiVersion"] != api_version:
        raise _MisfitError(f"it must be an ExecCredential of {api_version}")
    status = answer.get("status") or {}
    token = status.get("token") or ""
    certificate = status.get("clientCertificateData") or ""
    key = status.get("clientKeyData") or ""
    if not all(isinstance(value, str) for value in (token, certificate, key)):
        raise _MisfitError("token, clientCertificateData and clientKeyData must be strings")
    if bool(certificate) != bool(key):
        raise _MisfitError("clientCertificateData and clientKeyData come together")
    if not token and not certificate:
        raise _MisfitError("it has neither a token nor a client certificate")
    return Issued(token, certificate, key, _expires(status.get("expirationTimestamp")))


def _expires(timestamp: str | None) -> float | None:
    if timestamp is None:
        return None
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        msg = "expirationTimestamp must be a time such as 2030-01-31T12:00:00Z"
        raise _MisfitError(msg) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _quote(last_words: bytes) -> str:
    """Return the end of standard error as one printable line, to follow a sentence."""
    text = " ".join(last_words.decode("utf-8", "replace").split())
    printable = "".join(letter for letter in text if letter.isprintable())
    return f": {printable}" if printable else ""
