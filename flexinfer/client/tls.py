# SPDX-License-Identifier: Apache-2.0
"""The TLS settings of every connection to an API server, the same on every Python."""

from __future__ import annotations

import ssl

from flexinfer.errors import ConfigurationError

_BEGIN = "-----BEGIN CERTIFICATE-----"


def client_context(ca_pem: str | None = None, *, source: str = "the CA") -> ssl.SSLContext:
    """Return a context that trusts the certificates of *ca_pem* alone, or the system's if None.

    Certificates are judged as client-go judges them. So strict RFC 5280 checks are off, which
    Python 3.13 turned on and which refuse the CAs of many older clusters, and an intermediate
    certificate may be an anchor. Raises ConfigurationError, naming *source*, when there is no
    certificate in it.
    """
    # Python takes an empty string for none at all, and would trust the system's instead.
    if ca_pem is not None and _BEGIN not in ca_pem:
        raise _no_certificate(source)
    try:
        context = ssl.create_default_context(cadata=ca_pem)
    except (ssl.SSLError, ValueError) as error:
        raise _no_certificate(source) from error
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _no_certificate(source: str) -> ConfigurationError:
    return ConfigurationError(f"{source} holds no valid PEM certificate: give the API server's CA")
