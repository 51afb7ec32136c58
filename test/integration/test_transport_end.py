# SPDX-License-Identifier: Apache-2.0
"""A transport that ends leaves no socket behind, also of calls that were cut off."""

from __future__ import annotations

import gc
import warnings
from typing import TYPE_CHECKING

import anyio

from flexinfer.client.auth import StaticCredentials
from flexinfer.client.tls import client_context
from flexinfer.client.transport import Transport
from flexinfer.envtest.eventually import eventually

if TYPE_CHECKING:
    from flexinfer.envtest.controlplane import ControlPlane


async def cut_off(plane: ControlPlane) -> None:
    """End ten watches in the middle, and the transport right after them."""
    credentials = StaticCredentials(
        plane.url, token=plane.admin_token, context=client_context(plane.ca_file.read_text())
    )
    async with Transport(credentials) as transport, anyio.create_task_group() as group:

        async def watch() -> None:
            params = {"watch": "1"}
            async with transport.stream("/api/v1/nodes", params=params, idle_timeout=60) as lines:
                opened.append(1)
                async for _ in lines:
                    pass

        opened: list[int] = []
        for _ in range(10):
            group.start_soon(watch)
        await eventually(lambda: len(opened) == 10)
        group.cancel_scope.cancel()


def test_the_end_of_a_loop_finds_every_socket_closed(control_plane: ControlPlane) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(5):
            anyio.run(cut_off, control_plane)
            gc.collect()
    assert [str(w.message) for w in caught if "unclosed" in str(w.message)] == []
