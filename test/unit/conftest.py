# SPDX-License-Identifier: Apache-2.0
"""What unit tests share."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
import structlog
from structlog import contextvars

from flexinfer.envtest.certs import CertificateAuthority

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """Undo what a test does to the process's logging, which would write to a closed stream."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()
    contextvars.clear_contextvars()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    """Issue the certificates of nearly every server; making a key takes a tenth of a second."""
    return CertificateAuthority.create(tmp_path_factory.mktemp("ca"))
