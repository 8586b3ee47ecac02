"""Settings of other clients that Klamm has under another name, or does not have, and what to do then.

Only for the text of an error: nothing here is taken. Names are dotted, as `ClientConfig` looks for them. The
table for readers is in docs/MIGRATION.md.
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
"""The key of the same meaning."""

_ENCODE = "Klamm takes and gives bytes: encode before `send`, decode after `poll`"
_TRANSACTIONS = "Klamm has no transactions yet"
_VERSIONS = "leave it out: every broker is asked for its versions"
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
    "enable.auto.offset.store": "leave it out: only what is finished is committed",
    "loop": "leave it out: a client takes the loop on which it is first used",
}
"""What has no counterpart, and what to do instead."""


def hint_for(name: str) -> str | None:
    """What to do about a name of another client; None if it is not known there either."""
    if name in RENAMED:
        return f"here it is {RENAMED[name]}"
    return ABSENT.get(name)
