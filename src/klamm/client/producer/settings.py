"""A producer's configuration: its keyword arguments, and the values in the units that its parts use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from klamm.client.network.backoff import Backoff
from klamm.client.options import ClientOptions
from klamm.client.producer.partitioners import Partitioner
from klamm.config.client_config import Bootstrap, ClientConfig, ConfigGiven
from klamm.records.compression import CODEC_NAMES

MAX_COLUMN_BATCH_BYTES = 1_048_576
"""The default of max.message.bytes of topics. Larger batches would not be faster either."""


class ProducerOptions(ClientOptions, total=False):
    """The keyword arguments of a Producer besides those of every client: docs/CLIENT_CONFIGURATION.md
    describes each. `partitioner` is an argument of its own, because it also takes a function."""

    acks: str | int
    batch_size: int
    buffer_memory: int
    compression_level: int
    compression_type: str
    delivery_timeout_ms: int
    enable_idempotence: bool
    linger_ms: float
    max_block_ms: int
    max_in_flight_requests_per_connection: int
    max_request_size: int
    metadata_max_idle_ms: int
    retries: int


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """The values of client_keys.PRODUCER_KEYS, whose rows describe them."""

    acks: int = -1
    batch_bytes: int = 65_536
    column_batch_bytes: int = 1_048_576
    """The batch size for columns: all rows are there already, so a large batch does not delay any of them."""
    buffer_bytes: int = 33_554_432
    codec: int = 0
    level: int | None = None
    delivery_timeout: float = 120.0
    idempotent: bool = True
    linger: float = 0.0
    max_block: float = 60.0
    max_in_flight: int = 5
    max_request_bytes: int = 1_048_576
    partitioner: str = "murmur2"
    retries: int = 2**31 - 1
    request_timeout: float = 30.0
    topic_idle: float = 300.0
    backoff: Backoff = Backoff(0.1, 1.0)  # noqa: RUF009  it has no state

    @classmethod
    def of(cls, config: ClientConfig) -> ProducerSettings:
        acks = config.str_("acks")
        max_request_bytes = config.int_("max.request.size")
        column_batch_bytes = config.int_("batch.size") if config.given("batch.size") else max_request_bytes
        return cls(
            acks=-1 if acks == "all" else int(acks),
            batch_bytes=config.int_("batch.size"),
            column_batch_bytes=min(column_batch_bytes, max_request_bytes, MAX_COLUMN_BATCH_BYTES),
            buffer_bytes=config.int_("buffer.memory"),
            codec=CODEC_NAMES[config.str_("compression.type")],
            level=config["compression.level"],
            delivery_timeout=config.seconds("delivery.timeout.ms"),
            idempotent=config.bool_("enable.idempotence"),
            linger=config.seconds("linger.ms"),
            max_block=config.seconds("max.block.ms"),
            max_in_flight=config.int_("max.in.flight.requests.per.connection"),
            max_request_bytes=max_request_bytes,
            partitioner=config.str_("partitioner"),
            retries=config.int_("retries"),
            request_timeout=config.seconds("request.timeout.ms"),
            topic_idle=config.seconds("metadata.max.idle.ms"),
            backoff=Backoff(config.seconds("retry.backoff.ms"), config.seconds("retry.backoff.max.ms")),
        )


def producer_config(
    bootstrap: Bootstrap,
    config: ConfigGiven,
    partitioner: Partitioner | str | None,
    options: Mapping[str, object],
) -> tuple[ClientConfig, Partitioner | None]:
    """The configuration from a producer's arguments, and the partitioner if the user gave a function."""
    if partitioner is not None and not callable(partitioner):
        options = {**options, "partitioner": partitioner}
    chooser = partitioner if callable(partitioner) else None
    return ClientConfig("producer", bootstrap, config, options), chooser
