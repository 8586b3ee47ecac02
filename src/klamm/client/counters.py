"""The counters of a client, for its user.

Counters are plain numbers that only grow (those that may fall say so). The thread that runs the client's loop
writes them, or a caller under its lock; any thread may read them at any time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


def _counter(doc: str) -> Any:
    return field(default=0, metadata={"doc": doc})


@dataclass(slots=True)
class ClientCounters:
    """The counters of one client. Those of another kind of client stay 0."""

    # Every client
    connections_opened: int = _counter("Connections that were made to brokers.")
    connections_failed: int = _counter("Connections that could not be made, or whose login failed.")
    connections_lost: int = _counter("Connections that ended while they were in use.")
    requests: int = _counter("Requests that were sent.")
    requests_failed: int = _counter("Requests without an answer: timed out, or the connection ended.")
    request_seconds: float = _counter("Time between requests and their answers, added up.")
    bytes_out: int = _counter("Bytes written to brokers, all requests counted.")
    bytes_in: int = _counter("Bytes read from brokers, all answers counted.")
    metadata_refreshes: int = _counter("Times that metadata was fetched.")
    throttled_seconds: float = _counter("How long brokers asked us to wait, added up.")
    retries: int = _counter("Requests that were sent again after an error that may pass.")
    # Producers
    records_sent: int = _counter("Records that were acknowledged; with acks=0, that were written out.")
    bytes_sent: int = _counter("Bytes of the batches of those records, as they were on the wire.")
    batches_sent: int = _counter("Batches of those records.")
    send_errors: int = _counter("Records whose delivery failed.")
    records_waiting: int = _counter("Records that wait to be sent or acknowledged; may fall.")
    buffer_bytes: int = _counter("Bytes of buffer_memory in use; may fall.")
    buffer_full: int = _counter("Times that a send found no room.")
    # Consumers
    records_received: int = _counter("Records that were handed to the user.")
    bytes_received: int = _counter("Bytes of fetched batches, as they were on the wire.")
    fetches: int = _counter("Fetches that were answered.")
    fetch_errors: int = _counter("Partitions in fetches that were answered with an error.")
    prefetched_bytes: int = _counter("Fetched bytes that wait to be polled; may fall.")
    polls: int = _counter("Calls of poll and poll_arrow, and steps of an iteration that had to fetch.")
    commits: int = _counter("Commits that succeeded.")
    commit_errors: int = _counter("Commits that failed.")
    rebalances: int = _counter("Rebalances of the group that this member took part in.")
    heartbeats: int = _counter("Heartbeats that were answered.")
    partitions_lost: int = _counter("Partitions that were taken away without a chance to commit.")

    def as_dict(self) -> dict[str, float]:
        """All counters by name, as they are now."""
        return {name: getattr(self, name) for name in COUNTERS}


COUNTERS: dict[str, str] = {one.name: one.metadata["doc"] for one in fields(ClientCounters)}
"""What each counter counts, by name."""
