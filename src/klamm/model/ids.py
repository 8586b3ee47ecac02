"""What identifies topics, partitions and registrations of brokers; how a topic's id is made and written."""

from __future__ import annotations

import base64
import os
from typing import NamedTuple, NewType

TopicId = NewType("TopicId", bytes)
"""A topic's identity: 16 raw bytes, as on the wire. A topic made anew under an old name has a new one."""

ZERO_TOPIC_ID = TopicId(bytes(16))
_RESERVED_TOPIC_IDS = frozenset({bytes(16), bytes(15) + b"\x01"})


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class IntactEpochs(NamedTuple):
    """The broker epochs since which a broker has lost no records, from `first` to `last`.

    A broker has a new epoch whenever it registers: after a clean stop, and when its session had ended while
    it lived on. Several may follow each other before a controller notices any. `NEVER_INTACT` if the broker
    may have lost records since it was last registered.
    """

    first: int
    last: int

    def with_next(self, epoch: int) -> IntactEpochs:
        return IntactEpochs(epoch if self == NEVER_INTACT else self.first, epoch)


NEVER_INTACT = IntactEpochs(-1, -1)


def new_topic_id() -> TopicId:
    """A random (version 4) UUID; one whose text starts with a dash would confuse command lines."""
    while True:
        raw = bytearray(os.urandom(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        topic_id = TopicId(bytes(raw))
        if topic_id not in _RESERVED_TOPIC_IDS and not topic_id_text(topic_id).startswith("-"):
            return topic_id


def topic_id_text(topic_id: bytes) -> str:
    """Kafka's way to write a UUID: 22 characters of URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def topic_id_from_text(text: str) -> TopicId:
    raw = base64.urlsafe_b64decode(text + "==")
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not a topic id: it must be 22 characters of URL-safe base64")
    return TopicId(raw)
