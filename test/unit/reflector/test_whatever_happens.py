# SPDX-License-Identifier: Apache-2.0
"""Whatever the server and the way to it do, the store ends equal to it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import patch

from anyio.lowlevel import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from flexinfer.cache import reflector
from flexinfer.errors import ExpiredError, ServerError, TransportError
from flexinfer.event import CreateEvent, DeleteEvent, UpdateEvent
from flexinfer.meta.resource import NamespacedName

if TYPE_CHECKING:
    from flexinfer.event import Event
    from flexinfer.meta.envelope import Tree
    from test.unit.reflector.conftest import Rig


class Replay:
    """Check that the events of each key alternate, and keep what they amount to."""

    def __init__(self) -> None:
        self.content: dict[str, str] = {}
        self.uids: dict[str, str] = {}
        self.misfits: list[str] = []

    def __call__(self, event: Event) -> None:
        item = event.new if isinstance(event, UpdateEvent) else event.object
        key, meta = str(item.meta.key), item.meta
        known = self.uids.get(key)
        match event:
            case CreateEvent():
                fits = known is None
            case UpdateEvent(old, _):
                fits = known == old.meta.uid == meta.uid
                fits = fits and self.content[key] == old.meta.resource_version
            case DeleteEvent():
                fits = known == meta.uid
        if not fits:
            self.misfits.append(f"{event} while {known}")
        if isinstance(event, DeleteEvent):
            del self.content[key], self.uids[key]
        else:
            self.content[key], self.uids[key] = meta.resource_version, meta.uid


names = st.sampled_from(["a", "b", "c"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), names, st.booleans()),
        st.tuples(st.just("delete"), names, st.none()),
        st.tuples(
            st.sampled_from(
                [
                    *("cut", "close", "bookmark", "compact", "hold", "send", "garbage", "error"),
                    *("expire", "fail", "page", "recreate", "run"),
                ]
            ),
            names,
            st.none(),
        ),
    ),
    max_size=40,
)


async def play(rig: Rig, verb: str, name: str, *, is_in: bool | None) -> None:
    api = rig.api
    exists = NamespacedName("default", name) in api.objects
    match verb:
        case "put":
            api.put(name, labels={"in": "yes" if is_in else "no"})
        case "delete" | "recreate" if exists:
            api.delete(name)
            if verb == "recreate":
                api.put(name, labels={"in": "yes"})
        case "hold" | "send":
            api.is_holding = verb == "hold"
            api.send()
        case "fail":
            api.faults.extend([TransportError("refused"), ServerError("busy", status=503)])
        case "page":
            api.page_faults.append(ExpiredError("continue is too old"))
        case "cut" | "close" | "bookmark" | "compact":
            getattr(api, verb)()
        case _ if verb in INJECTED:
            api.inject(INJECTED[verb])
        case _:
            for _ in range(7):
                await checkpoint()


INJECTED: dict[str, bytes | Tree] = {
    "garbage": b'{"type":"ADD',
    "error": {"type": "ERROR", "object": {"code": 500, "message": "etcd"}},
    "expire": {"type": "ERROR", "object": {"code": 410, "reason": "Expired"}},
}


@settings(max_examples=150, deadline=None)
@given(steps=steps, selector=st.sampled_from(["", "in=yes"]))
async def test_whatever_happens_store_and_events_end_equal_to_the_server(
    new_rig: type[Rig], steps: list[tuple[str, str, bool | None]], selector: str
) -> None:
    rig, replay = new_rig(labels=selector), Replay()
    rig.informer.add_handler(replay)
    with patch.object(reflector, "PAGE_SIZE", 2):
        await live_through(rig, steps, selector)
    assert replay.misfits == []
    assert replay.content == rig.content()


async def live_through(rig: Rig, steps: list[tuple[str, str, bool | None]], selector: str) -> None:
    async with rig.running():
        for verb, name, is_in in steps:
            await play(rig, verb, name, is_in=is_in)
            await checkpoint()
        rig.api.is_holding = False
        rig.api.send()
        # What a hole has hidden is found when its watch ends, as it does within ten minutes.
        await rig.informer.wait_synced(5)
        await rig.until(lambda: rig.api.watches)
        rig.api.close()
        await rig.until(lambda: rig.content() == rig.truth(selector))
