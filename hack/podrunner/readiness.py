# SPDX-License-Identifier: Apache-2.0
"""Ask a server on this machine whether it is ready."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from flexinfer.envtest.ports import LOOPBACK

if TYPE_CHECKING:
    from hack.podrunner.pod import Probe

_LONGEST_LINE = 1024


async def answers(probe: Probe, port: int) -> bool:
    """Tell whether the server on *port* of loopback answers the probe in time.

    As for the kubelet, an HTTP answer from 200 to 399 is a good one.
    """
    try:
        with anyio.fail_after(probe.timeout_seconds):
            async with await anyio.connect_tcp(LOOPBACK, port) as stream:
                if probe.http_get is None:
                    return True
                await stream.send(
                    f"GET {probe.http_get.path} HTTP/1.1\r\nHost: {LOOPBACK}:{port}\r\n"
                    "Connection: close\r\nUser-Agent: kube-probe\r\n\r\n".encode()
                )
                lines = BufferedByteReceiveStream(stream)
                status = await lines.receive_until(b"\r\n", _LONGEST_LINE)
    except (OSError, TimeoutError, anyio.EndOfStream, anyio.IncompleteRead):
        return False
    except (anyio.BrokenResourceError, anyio.DelimiterNotFound):
        return False
    code = status.split(b" ", 2)[1:2]
    return (
        bool(code) and code[0].isdigit() and HTTPStatus.OK <= int(code[0]) < HTTPStatus.BAD_REQUEST
    )
