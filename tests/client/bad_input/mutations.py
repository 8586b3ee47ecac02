"""Damages answers on their way to a client: single bits, whole fields, cuts. Decided by a seed.

A damaged answer is whole as a frame, its size agrees, and its correlation id is right: so it is decoded, and
what is tested is not the framing. `wrong_id` is about the id.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from random import Random

from klamm.protocol.apis import ApiKey
from klamm.protocol.codec import decode
from klamm.protocol.errors import MalformedMessage
from klamm.protocol.headers import parse_response_header
from klamm.protocol.messages.k03_metadata import MetadataResponse
from tests.client.faults.proxy import PASS, Answer, Plan, Verdict

HEAD_BYTES = 8
"""The size and the correlation id."""

_SIZE = struct.Struct(">i")

Damage = Callable[[bytes, Random], bytes]


def flip_a_bit(frame: bytes, chance: Random) -> bytes:
    damaged = bytearray(frame)
    damaged[chance.randrange(HEAD_BYTES, len(frame))] ^= 1 << chance.randrange(8)
    return bytes(damaged)


def overwrite(frame: bytes, chance: Random) -> bytes:
    """Numbers that do harm: no end, no beginning, nothing."""
    at = chance.randrange(HEAD_BYTES, len(frame))
    number = chance.choice(
        (b"\xff", b"\x7f\xff\xff\xff", b"\xff" * 8, bytes(4), b"\x80\x00\x00\x00", b"\x01")
    )
    return (frame[:at] + number + frame[at + len(number) :])[: len(frame)]


def cut_off(frame: bytes, chance: Random) -> bytes:
    kept = frame[: chance.randrange(HEAD_BYTES, len(frame))]
    return _SIZE.pack(len(kept) - _SIZE.size) + kept[_SIZE.size :]


def add_noise(frame: bytes, chance: Random) -> bytes:
    at = chance.randrange(HEAD_BYTES, len(frame) + 1)
    longer = frame[:at] + chance.randbytes(chance.randint(1, 20)) + frame[at:]
    return _SIZE.pack(len(longer) - _SIZE.size) + longer[_SIZE.size :]


def wrong_id(frame: bytes, chance: Random) -> bytes:
    return frame[: _SIZE.size] + _SIZE.pack(chance.randrange(1 << 31)) + frame[HEAD_BYTES:]


DAMAGES: tuple[Damage, ...] = (flip_a_bit, overwrite, cut_off, add_noise)


def damage_answers(api_key: int, seed: int, most: int, damages: tuple[Damage, ...] = DAMAGES) -> Plan:
    """Damage the first `most` answers of one kind that each client gets; then all is well again.

    What happens to an answer depends on the seed, the number at the end of the client's id, and how many such
    answers the client has had.
    """
    counts: Counter[str] = Counter()

    def plan(answer: Answer) -> Verdict:
        if answer.api_key != api_key or counts[answer.client_id] >= most or len(answer.frame) <= HEAD_BYTES:
            return PASS
        counts[answer.client_id] += 1
        number = answer.client_id.rpartition("-")[2]
        chance = Random(f"{seed}:{number}:{api_key}:{counts[answer.client_id]}")
        damaged = chance.choice(damages)(answer.frame, chance)
        while names_a_future_leader(answer, damaged):
            damaged = chance.choice(damages)(answer.frame, chance)
        return Verdict(damaged)

    return plan


def names_a_future_leader(answer: Answer, damaged: bytes) -> bool:
    """Whether metadata speak of a leader epoch that is not there yet.

    Clients believe that for ever, Java's as well as ours, because epochs never go back: so a broker that lags
    behind cannot send them to an old leader. No client gets over it before the epoch has come.
    """
    if answer.api_key != ApiKey.METADATA:
        return False
    try:
        body = memoryview(damaged)[_SIZE.size :]
        _, offset = parse_response_header(ApiKey.METADATA, answer.version, body)
        metadata, _ = decode(MetadataResponse, answer.version, body, offset)
    except MalformedMessage:
        return False
    return any(one.leader_epoch > 0 for topic in metadata.topics for one in topic.partitions)
