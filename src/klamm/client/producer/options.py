"""The keyword arguments of a Producer besides those of every client. `partitioner` is an argument of its own:
it takes a function, too."""

from __future__ import annotations

from klamm.client.options import ClientOptions


class ProducerOptions(ClientOptions, total=False):
    """Settings of a producer; docs/CLIENT_CONFIGURATION.md says what they mean."""

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
