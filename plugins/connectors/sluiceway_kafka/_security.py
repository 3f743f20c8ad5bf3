"""Security settings: properties of librdkafka as arguments of kafka-python, and what to check when they fail."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from sluiceway.errors import ConfigurationError

__all__ = ["SECURITY_HINT", "SecurityContext", "check_properties", "coordinator_arguments", "security_context"]

SECURITY_HINT: Final = (
    "Check security.protocol, sasl.mechanism, sasl.username and sasl.password, ssl.ca.location, "
    "ssl.certificate.location, ssl.key.location and ssl.key.password in properties, and that the address is that "
    "of the listener that they are for"
)

_ARGUMENTS: Final = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "client.dns.lookup": "client_dns_lookup",
}
_CONTEXT: Final = (
    "enable.ssl.certificate.verification",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.crl.location",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.location",
    "ssl.key.password",
)
# All others are about data or timing, which kafka-python has no part in. Those that match decide how brokers are
# reached: kafka-python would connect otherwise than librdkafka does, or not at all.
_CONNECTING: Final = re.compile(
    r"(sasl|ssl|security|https)\.|enable\.(sasl|ssl)\.|oauth|(connect|resolve|socket|closesocket)_cb$|broker\.address\.family$"
)
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def check_properties(properties: Mapping[str, Any]) -> None:
    """Check that kafka-python can do what properties ask of librdkafka. Reads no file.

    Raises:
        ConfigurationError: a property has no counterpart.
    """
    for name, value in properties.items():
        if name in ("sasl.mechanism", "sasl.mechanisms") and value not in _MECHANISMS:
            raise ConfigurationError(
                f"{name}={value!r} cannot be used with transactions: they are ended by kafka-python, with which "
                f"the connector supports {', '.join(_MECHANISMS)}"
            )
        if name not in _ARGUMENTS and name not in _CONTEXT and _CONNECTING.match(name):
            known = ", ".join(sorted((*_ARGUMENTS, *_CONTEXT)))
            raise ConfigurationError(
                f"property {name!r} cannot be used with transactions: they are ended by kafka-python, which "
                f"has no counterpart. Properties about connections that have one: {known}"
            )


def coordinator_arguments(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a client of kafka-python.

    Raises:
        ConfigurationError: a property has no counterpart, or a certificate or key cannot be used.
    """
    check_properties(properties)
    found = {_ARGUMENTS[name]: value for name, value in properties.items() if name in _ARGUMENTS}
    protocol = str(found.get("security_protocol", "plaintext")).upper()
    found["security_protocol"] = protocol
    if protocol in ("SSL", "SASL_SSL"):
        found["ssl_context"] = security_context(properties)
    return found


class _Socket(ssl.SSLSocket):
    """A TLS connection that is closed when its handshake fails or takes too long.

    kafka-python leaves such a socket open, and waits without a limit for a peer that does not answer.
    """

    context: SecurityContext
    _shaken = False

    def do_handshake(self, block: bool = False) -> None:
        if not self._shaken:
            self._shaken = True
            self.context.call_later(self._give_up)
        try:
            super().do_handshake(block)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except BaseException:
            self.close()
            raise
        self._shaken = False

    def _give_up(self) -> None:
        if self._shaken and self.fileno() >= 0:
            self.shutdown(2)  # not close(): whoever waits for the socket is woken up


class SecurityContext(ssl.SSLContext):
    """A TLS context whose handshakes end.

    Attributes:
        call_later: calls a function in the thread of the connections when a handshake has taken too long.
    """

    sslsocket_class = _Socket
    call_later: Callable[[Callable[[], None]], None] = staticmethod(lambda function: None)


def security_context(properties: Mapping[str, Any]) -> SecurityContext:
    """Return a TLS context that does what properties ask of librdkafka.

    Raises:
        ConfigurationError: a file is missing, or cannot be used; names the property.
    """
    context = SecurityContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    algorithm = str(properties.get("ssl.endpoint.identification.algorithm", "https")).lower()
    context.check_hostname = algorithm == "https"
    if str(properties.get("enable.ssl.certificate.verification", "true")).lower() not in ("true", "t", "1"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    with _naming(properties, "ssl.ca.pem", "ssl.ca.location"):
        location = properties.get("ssl.ca.location")
        if pem := properties.get("ssl.ca.pem"):
            context.load_verify_locations(cadata=str(pem))
        elif location and str(location) != "probe":
            at = os.fspath(location)
            context.load_verify_locations(**({"capath": at} if os.path.isdir(at) else {"cafile": at}))
        else:
            context.load_default_certs()
    if certificate := properties.get("ssl.certificate.location"):
        with _naming(properties, "ssl.certificate.location", "ssl.key.location", "ssl.key.password"):
            # Never None: OpenSSL would ask for the password at the terminal.
            password = str(properties.get("ssl.key.password", ""))
            context.load_cert_chain(certificate, properties.get("ssl.key.location"), password)
    if crl := properties.get("ssl.crl.location"):
        with _naming(properties, "ssl.crl.location"):
            context.load_verify_locations(cafile=crl)
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context


@contextmanager
def _naming(properties: Mapping[str, Any], *names: str) -> Iterator[None]:
    """Turn an error while files are read into one that names the properties, without secret values."""
    try:
        yield
    except OSError as error:
        given = [name for name in names if name in properties]
        shown = [f"{name}={properties[name]!r}" if name.endswith(".location") else name for name in given]
        raise ConfigurationError(
            f"certificates or keys cannot be read ({', '.join(shown) or 'those of the system'}): {error}"
        ) from None
