# SPDX-License-Identifier: Apache-2.0
"""`flexinfer wake`: wake Models as the user of a kubeconfig, and wait for them if asked to.

| exit code | meaning |
|---|---|
| 0 | every Model is woken, and Ready if that was waited for |
| 1 | one is not; the reason is on the standard error output |
| 2 | misuse: an option or the kubeconfig |
| 130 | interrupted |
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import anyio
from cyclopts import Parameter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from api.flexinfer.v1alpha2.model_types import Model
    from flexinfer.client.protocol import Client
    from flexinfer.meta.duration import Duration
    from flexinfer.meta.envelope import StoredObject
    from flexinfer.meta.resource import NamespacedName

_FAILED, _MISUSE, _INTERRUPTED = 1, 2, 130
# Long enough for tens of gigabytes of weights from a disk.
_PATIENCE = "10m"
_POLL_SECONDS = 1.0
_REQUEST_SECONDS = 10.0


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Flags:
    """Where the Models are."""

    namespace: Annotated[str | None, Parameter(alias="-n")] = None
    """The Models' namespace; that of the context unless given"""
    kubeconfig: str | None = None
    """A kubeconfig file; that of KUBECONFIG or ~/.kube/config unless given"""
    context: str | None = None
    """A context of the kubeconfig; the current one unless given"""


def wake(
    name: str,
    /,
    *others: str,
    wait: Annotated[bool | str, Parameter(requires_equals=True, negative="")] = False,
    flags: Flags | None = None,
) -> int:
    """Wake Models, as a request for them would.

    Needs the rights to get models and to patch models/status.

    Args:
        name: A Model
        others: More Models of the same namespace
        wait: Wait until they are Ready; --wait=5m waits for at most that long, --wait for 10m
        flags: Where the Models are
    """
    from flexinfer import log
    from flexinfer.errors import ConfigurationError, FlexInferError
    from flexinfer.meta.duration import Duration

    log.configure(level="warning", form=log.LogFormat.CONSOLE)
    try:
        patience = None
        if wait is not False:
            patience = Duration.parse(_PATIENCE if wait is True else wait)
        names = list(dict.fromkeys((name, *others)))
        return anyio.run(_run, names, flags or Flags(), patience)
    except ConfigurationError as error:
        _complain(str(error))
        return _MISUSE
    except FlexInferError as error:
        _complain(str(error))
        return _FAILED
    except KeyboardInterrupt:
        return _INTERRUPTED


async def _run(names: Sequence[str], flags: Flags, patience: Duration | None) -> int:
    from flexinfer.client.direct import DirectClient
    from flexinfer.client.kubeconfig import kubeconfig, namespace_of
    from flexinfer.client.transport import Transport
    from flexinfer.meta.resource import NamespacedName

    credentials = await kubeconfig(flags.kubeconfig, context=flags.context)
    namespace = flags.namespace or await namespace_of(flags.kubeconfig, context=flags.context)
    keys = [NamespacedName(namespace or "default", name) for name in names]
    async with Transport(credentials) as transport:
        client = DirectClient(transport, timeout=_REQUEST_SECONDS)
        done = [key for key in keys if await _wake(client, key)]
        if patience is not None:
            done = await _follow(client, done, patience)
    return 0 if len(done) == len(keys) else _FAILED


async def _wake(client: Client, key: NamespacedName) -> bool:
    """Wake one Model and say so, or say why not."""
    from api.flexinfer.v1alpha2.model_types import Model
    from controllers.model import waking
    from flexinfer.errors import ApiError, NotFoundError

    try:
        stored = await client.read(Model.resource, key)
        if stored is None:
            _complain(f"there is no Model {key.name} in namespace {key.namespace}")
            return False
        await waking.wake(client, stored.meta, now=datetime.now(UTC))
    except NotFoundError as error:
        _complain(f"{key.name}: this cluster has no {Model.resource}: {error}")
        return False
    except ApiError as error:
        _complain(f"{key.name}: {error}")
        return False
    print(f"{Model.resource}/{key.name} woken{_obstacle(stored)}", flush=True)
    return True


def _obstacle(stored: StoredObject) -> str:
    """Say why waking alone will not make this Model Ready, or nothing."""
    from api.flexinfer.v1alpha2.model_types import Model
    from api.flexinfer.v1alpha2.reasons import Phase
    from flexinfer.errors import DecodeError

    try:
        model = Model.decode(stored)
    except DecodeError as error:
        return f", but it cannot start: {error}"
    state = state_of(model)
    is_failed = model.status.phase is Phase.FAILED and not state.is_idle
    return f", but it cannot start: {state.text}" if is_failed else ""


async def _follow(
    client: Client, keys: Sequence[NamespacedName], patience: Duration
) -> list[NamespacedName]:
    """Print how Models come on until all are Ready; return those that are, and report the rest."""
    last = dict.fromkeys(keys, State("it was not looked at yet", is_idle=True))
    with anyio.move_on_after(patience.seconds):
        while waiting := [key for key in keys if not last[key].is_over]:
            for key in waiting:
                state = await _look(client, key)
                if state.is_news_after(last[key]):
                    print(f"{key.name}: {state.text}", flush=True)
                last[key] = state
            if not all(last[key].is_over for key in keys):
                await anyio.sleep(_POLL_SECONDS)
    for key in keys:
        if not last[key].is_ready:
            too_late = "" if last[key].is_over else f" after {patience}"
            _complain(f"{key.name} is not ready{too_late}: {last[key].text}")
    return [key for key in keys if last[key].is_ready]


@dataclass(frozen=True, slots=True)
class State:
    """Be how a Model is doing; `is_idle` when nothing of its waking is to be seen."""

    text: str
    is_ready: bool = False
    is_gone: bool = False
    is_idle: bool = False

    @property
    def is_over(self) -> bool:
        """Tell whether there is nothing more to wait for."""
        return self.is_ready or self.is_gone

    def is_news_after(self, last: State) -> bool:
        """Tell whether to print it: not what was said, nor that what was just woken is idle."""
        return self.text != last.text and not (self.is_idle and last.is_idle)


def state_of(model: Model) -> State:
    """Say how *model* is doing: its phase, and what Ready says of its present spec."""
    from api.flexinfer.v1alpha2.reasons import ConditionType, Phase
    from flexinfer.conditions import find
    from flexinfer.meta.condition import ConditionStatus

    ready = find(model.status.conditions, ConditionType.READY)
    if ready is None or ready.observed_generation != model.metadata.generation:
        return State("the manager has not looked at it yet; is it running?", is_idle=True)
    return State(
        f"{model.status.phase}: {ready.message}",
        is_ready=ready.status is ConditionStatus.TRUE,
        is_idle=model.status.phase is Phase.IDLE,
    )


async def _look(client: Client, key: NamespacedName) -> State:
    """Read how a Model is doing; a passing trouble is a state too."""
    from api.flexinfer.v1alpha2.model_types import Model
    from flexinfer.errors import ServerError, ThrottledError, TransportError

    try:
        model = await client.get(Model, key)
    except (TransportError, ServerError, ThrottledError) as error:
        return State(f"cannot tell: {error}")
    return State("it was deleted", is_gone=True) if model is None else state_of(model)


def _complain(text: str) -> None:
    print(f"flexinfer wake: {text}", file=sys.stderr)
