"""The errors of connections that ended without `close`: what happened, and what to do. A core."""

from __future__ import annotations

import ssl

from klamm.client.errors import ClientError, ConnectionFailed, NotKafka, TlsFailed
from klamm.client.network.addresses import BrokerAddress
from klamm.security.tls import explain_tls_error, may_pass


def error_for_lost_connection(
    address: BrokerAddress, error: Exception | None, *, is_trusted: bool, has_answered: bool
) -> ClientError:
    """The connection ended. `has_answered`: the broker had answered at least ApiVersions. `is_trusted`: it
    had answered other requests as well.

    An error of TLS is final only before the first answer: with TLS 1.3 brokers refuse our certificate after
    the handshake. After an answer it is a lost connection like any other.
    """
    if isinstance(error, ssl.SSLError) and not has_answered:
        problem, advice = explain_tls_error(error)
        refused = TlsFailed(f"{address} ended the TLS connection: {problem}", advice=advice)
        refused.retriable = may_pass(error)
        return refused
    reason = f": {error}" if error is not None and str(error) else ""
    if is_trusted:
        return ConnectionFailed(f"{address} closed the connection{reason}")
    if has_answered:
        return ConnectionFailed(
            f"{address} closed the connection at the first request{reason}",
            advice="If this goes on, look at security_protocol: a listener that requires a login does this",
        )
    failure = NotKafka(
        f"{address} closed the connection without an answer{reason}",
        advice="If this goes on, look whether the address is a Kafka listener without TLS",
    )
    failure.retriable = True  # a broker that is just stopping does the same
    return failure


def error_for_broken_protocol(address: BrokerAddress, problem: str) -> ClientError:
    """The server answered correctly before, and now sent bytes that are not an answer. Retriable."""
    failure = NotKafka(f"{address} broke Kafka's protocol: {problem}")
    failure.retriable = True
    return failure


def error_for_other_protocol(address: BrokerAddress, first_bytes: bytes) -> ClientError:
    """The server never sent a valid answer."""
    guess, advice = guess_protocol(first_bytes)
    return NotKafka(f"{address} does not speak Kafka's protocol: {guess}", advice=advice)


def guess_protocol(first_bytes: bytes) -> tuple[str, str]:
    """What protocol a server speaks whose answer starts with these bytes, and what to do."""
    if first_bytes[:4] in (b"HTTP", b"<htm", b"<!DO"):
        return "it speaks HTTP", "Give the address of a broker's Kafka listener"
    if first_bytes[:2] in (b"\x15\x03", b"\x16\x03"):
        return "it speaks TLS", "Set security_protocol to SSL or SASL_SSL"
    if first_bytes[:4] == b"SSH-":
        return "it speaks SSH", "Give the address of a broker's Kafka listener"
    return f"its answer starts with {first_bytes!r}", "Look whether the address is a broker's Kafka listener"
