"""Throttles of replication: how many bytes a second replicas that catch up may move, without IO.

A reassignment is not to take the network or the disk from the clients. So the leader, the follower and moves
between log directories may each be given a rate. It holds for the replicas that the topic names as throttled;
replicas in sync are never held back. As in Kafka the rate is that of a sliding window of several samples.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

LONGEST_PAUSE_MS = 1_000
"""A throttled replica is looked at again after this time: its throttle may have changed, or be gone."""


class Quota:
    """A rate, and what was moved in the last `samples` times `sample_ms`."""

    def __init__(self, bytes_per_s: int, samples: int, sample_ms: int) -> None:
        self.bytes_per_s = bytes_per_s
        self._sample_ms = sample_ms
        self._window_ms = samples * sample_ms
        self._samples: deque[tuple[int, int]] = deque()
        """(start in milliseconds, bytes), oldest first."""

    def record(self, byte_count: int, now_ms: int) -> None:
        samples = self._samples
        while samples and samples[0][0] <= now_ms - self._window_ms:
            samples.popleft()
        if samples and now_ms < samples[-1][0] + self._sample_ms:
            start_ms, recorded = samples[-1]
            samples[-1] = start_ms, recorded + byte_count
        else:
            samples.append((now_ms, byte_count))

    def pause_ms(self, now_ms: int) -> int:
        """How long nothing more may be moved; 0 if the rate is not exceeded."""
        recent = [sample for sample in tuple(self._samples) if sample[0] > now_ms - self._window_ms]
        total = sum(byte_count for _, byte_count in recent)
        if total == 0:
            return 0 if self.bytes_per_s else LONGEST_PAUSE_MS
        if self.bytes_per_s == 0:
            return LONGEST_PAUSE_MS
        start_ms = recent[0][0]
        allowed_ms = total * 1000 // self.bytes_per_s
        if allowed_ms <= max(now_ms - start_ms, self._sample_ms):
            return 0
        free_ms = start_ms + min(allowed_ms, self._window_ms)
        return max(1, min(free_ms - now_ms, LONGEST_PAUSE_MS))


class Throttle:
    """The throttle of one role of this broker: as leader, as follower, or for moves between directories."""

    def __init__(self) -> None:
        self.quota: Quota | None = None
        """None while there is no throttle, which is the usual case."""

    def set_rate(self, bytes_per_s: int | None, samples: int, sample_ms: int) -> None:
        if bytes_per_s is None:
            self.quota = None
        elif self.quota is None:
            self.quota = Quota(bytes_per_s, samples, sample_ms)
        else:
            self.quota.bytes_per_s = bytes_per_s


class ThrottledReplicas(NamedTuple):
    """Which replicas of a topic are throttled, as `partition:broker`; `*` stands for all."""

    on_leader: tuple[str, ...] = ()
    on_follower: tuple[str, ...] = ()

    def leads_throttled(self, partition: int, broker_id: int) -> bool:
        return _names(self.on_leader, partition, broker_id)

    def follows_throttled(self, partition: int, broker_id: int) -> bool:
        return _names(self.on_follower, partition, broker_id)


NOT_THROTTLED = ThrottledReplicas()


def _names(replicas: tuple[str, ...], partition: int, broker_id: int) -> bool:
    return bool(replicas) and (replicas == ("*",) or f"{partition}:{broker_id}" in replicas)
