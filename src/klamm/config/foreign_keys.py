"""Settings of other Kafka clients that Klamm's client names differently or does not have.

The tables serve only error messages, which tell the user what to write instead: no setting in them is
accepted. Names are dotted, as `ClientConfig` looks them up. docs/MIGRATION.md has the table for users.
"""

from __future__ import annotations

from collections.abc import Mapping

RENAMED: Mapping[str, str] = {
    # aiokafka, kafka-python
    "max.batch.size": "batch.size",
    "ssl.cafile": "ssl.ca.location",
    "ssl.certfile": "ssl.certificate.location",
    "ssl.keyfile": "ssl.key.location",
    "ssl.password": "ssl.key.password",
    "ssl.check.hostname": "ssl.endpoint.identification.algorithm",
    "sasl.plain.username": "sasl.username",
    "sasl.plain.password": "sasl.password",
    # librdkafka
    "metadata.broker.list": "bootstrap.servers",
    "message.timeout.ms": "delivery.timeout.ms",
    "message.max.bytes": "max.request.size",
    "message.send.max.retries": "retries",
    "queue.buffering.max.kbytes": "buffer.memory",
    "queue.buffering.max.messages": "buffer.memory",
    "queue.buffering.max.ms": "linger.ms",
    "queued.max.messages.kbytes": "prefetch.max.bytes",
    "compression.codec": "compression.type",
    "request.required.acks": "acks",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "sasl.mechanisms": "sasl.mechanism",
}
"""Klamm's key with the same meaning."""

_ENCODE = "Klamm sends and returns bytes: encode before `send`, decode after `poll`"
_TRANSACTIONS = "Klamm has no transactions yet"
_VERSIONS = "leave it out: the client asks each broker which versions it speaks"
_KEY_STORES = "Klamm reads PEM files: ssl.ca.location, ssl.certificate.location, ssl.key.location"

ABSENT: Mapping[str, str] = {
    "key.serializer": _ENCODE,
    "value.serializer": _ENCODE,
    "key.deserializer": _ENCODE,
    "value.deserializer": _ENCODE,
    "transactional.id": _TRANSACTIONS,
    "transaction.timeout.ms": _TRANSACTIONS,
    "api.version": _VERSIONS,
    "api.version.request": _VERSIONS,
    "broker.version.fallback": _VERSIONS,
    "ssl.keystore.location": _KEY_STORES,
    "ssl.truststore.location": _KEY_STORES,
    "sasl.jaas.config": "give sasl.username and sasl.password",
    "oauth.cb": "give the argument sasl_oauth_token_provider, a function that returns a token",
    "consumer.timeout.ms": "use poll(timeout=...), which returns an empty list",
    "enable.auto.offset.store": "leave it out: only offsets of processed records are committed",
    "loop": "leave it out: a client uses the event loop on which it is first called",
}
"""Settings without a counterpart in Klamm, and what to do instead."""


def hint_for(name: str) -> str | None:
    """What to write instead of the setting `name` of another client; None if no table has it."""
    if name in RENAMED:
        return f"in Klamm the key is {RENAMED[name]}"
    return ABSENT.get(name)
