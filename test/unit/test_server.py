# SPDX-License-Identifier: Apache-2.0
"""The servers of probes and metrics: addresses, and what is served."""

from __future__ import annotations

import socket

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from flexinfer.errors import ConfigurationError
from flexinfer.server import Address, metrics_route, serve


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        (":8080", "", 8080),
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("localhost:65535", "localhost", 65535),
        ("[::1]:9443", "::1", 9443),
    ],
)
def test_addresses_are_read(text: str, host: str, port: int) -> None:
    assert Address.parse(text, setting="metrics_address") == Address(host, port, "metrics_address")


def test_zero_is_off() -> None:
    assert Address.parse("0", setting="metrics_address") is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "metrics_address '' is no address: write host:port, :port,"),
        ("8080", "metrics_address '8080' is no address"),
        ("::1:8080", "metrics_address '::1:8080' is no address"),
        ("host:", "metrics_address 'host:' has no valid port: use a number from 0 to 65535"),
        ("host:http", "metrics_address 'host:http' has no valid port"),
        (":65536", "metrics_address ':65536' has no valid port"),
        (":-1", "metrics_address ':-1' has no valid port"),
    ],
)
def test_what_is_no_address_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Address.parse(text, setting="metrics_address")
    assert str(raised.value).startswith(complaint)


async def test_a_taken_address_is_refused_by_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1], "probe_address")
        with pytest.raises(ConfigurationError, match=r"probe_address 127\.0\.0\.1:\d+ cannot be"):
            async with serve(address, []):
                pass


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", ""])
async def test_the_chosen_port_answers_and_is_free_afterwards(host: str) -> None:
    registry = CollectorRegistry()
    Counter("meals", "Meals served", registry=registry).inc()
    async with (
        serve(Address(host, 0, "metrics_address"), [metrics_route(registry)]) as port,
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/metrics") as response,
    ):
        assert response.status == 200
        assert response.content_type == "text/plain"
        assert "meals_total 1.0" in await response.text()
    with socket.create_server(("127.0.0.1", port)):
        pass


async def test_the_scraper_chooses_the_format() -> None:
    registry = CollectorRegistry()
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    async with (
        serve(Address("127.0.0.1", 0, "metrics_address"), [metrics_route(registry)]) as port,
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/metrics", headers=accept) as response,
    ):
        assert response.content_type == "application/openmetrics-text"
        assert (await response.text()).endswith("# EOF\n")
