"""Record batches that were damaged on the way: found by their checksum, told, and read again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

import klamm
from klamm.client.consumer.polling import make_columns
from klamm.protocol.apis import ApiKey
from klamm.records.batch import HEADER_SIZE
from klamm.records.builder import build_batch, number_records
from klamm.records.compression import Codec
from klamm.testing.wire import WireConnection
from tests.abuse.calls import produce
from tests.client.bad_input.bounded import SHORT, failure_of
from tests.client.faces import Face
from tests.client.faults.proxy import PASS, Answer, FaultProxy, Verdict, pass_all
from tests.client.faults.stands import InProcessStand
from tests.client.reading import PATIENCE_S, collect, values
from tests.client.topics import make_topic
from tests.moments import MIDNIGHT_MS

RECORDS = 20
TRIES = 15
MOMENT_MS = MIDNIGHT_MS
LENGTH_AT, MAGIC_AT, CRC_AT, COUNT_AT = 8, 16, 17, 57
SENT = [b"marked-%d" % number for number in range(RECORDS)]


@pytest.fixture(scope="module")
def stand() -> Iterator[InProcessStand]:
    make_columns([], None)  # loads pyarrow and numba here, not within the time of a poll
    with FaultProxy() as proxy:
        stand = InProcessStand(proxy)
        yield stand
        stand.close()


def batch(codec: Codec) -> bytes:
    return bytes(build_batch(number_records([(b"key", value) for value in SENT], MOMENT_MS), codec=codec))


@pytest.fixture(params=list(Codec), ids=lambda codec: codec.name.lower())
def stored(request: pytest.FixtureRequest, stand: InProcessStand) -> tuple[str, bytes]:
    """A topic with one batch, and its bytes from the magic byte on, which the broker leaves as they are."""
    topic = make_topic(stand.direct)
    made = batch(request.param)
    with WireConnection(stand.direct) as connection:
        produce(connection, topic, bytearray(made))
    return topic, made[MAGIC_AT:]


Damage = Callable[[bytearray], None]


def damage_batches(stored: bytes, damage: Damage) -> Callable[[Answer], Verdict]:
    """Damage the batch, given from its base offset on, in every Fetch answer that holds it."""

    def plan(answer: Answer) -> Verdict:
        at = answer.frame.find(stored) - MAGIC_AT
        if answer.api_key != ApiKey.FETCH or at < 0:
            return PASS
        end = at + MAGIC_AT + len(stored)
        damaged = bytearray(answer.frame[at:end])
        damage(damaged)
        return Verdict(answer.frame[:at] + bytes(damaged) + answer.frame[end:])

    return plan


def overwrite(at: int, data: bytes) -> Damage:
    def damage(batch: bytearray) -> None:
        batch[at : at + len(data)] = data

    return damage


def flip_last(batch: bytearray) -> None:
    batch[-3] ^= 1


DAMAGES: dict[str, Damage] = {
    "a bit of a record": flip_last,
    "the checksum": overwrite(CRC_AT, b"\x00\x01\x02\x03"),
    "another magic": overwrite(MAGIC_AT, b"\x07"),
    "a length below zero": overwrite(LENGTH_AT, b"\xff\xff\xff\xf0"),
    "a length of nothing": overwrite(LENGTH_AT, bytes(4)),
    "a count of records": overwrite(COUNT_AT, b"\x7f\xff\xff\xff"),
    "no header at all": overwrite(0, bytes(HEADER_SIZE)),
}


def polls(consumer: Any) -> dict[str, Callable[[], Any]]:
    return {
        "poll": lambda: consumer.poll(timeout=PATIENCE_S),
        "poll_arrow": lambda: consumer.poll_arrow(timeout=PATIENCE_S),
        "iteration": lambda: next(iter(consumer)),
    }


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damage_is_told_and_what_is_whole_again_is_read(
    face: Face, stand: InProcessStand, stored: tuple[str, bytes], damage: Damage
) -> None:
    topic, content = stored
    with face.consumer(stand.proxy.bootstrap, start="earliest", **SHORT) as consumer:
        stand.proxy.plan = damage_batches(content, damage)
        try:
            consumer.assign([(topic, 0)])
            for name, poll in polls(consumer).items():
                failure = failure_of(poll)
                assert isinstance(failure, klamm.CorruptRecords), f"{name}: {failure!r}"
                assert topic in str(failure), f"{name}: {failure}"
                assert consumer.position((topic, 0)) == 0
        finally:
            stand.proxy.plan = pass_all
        assert values(collect(consumer, RECORDS)) == SENT


def test_unchecked_damage_is_never_worse_than_wrong_records(
    face: Face, stand: InProcessStand, stored: tuple[str, bytes]
) -> None:
    """Without checksums anything may be in a batch: still a typed error, or records."""
    topic, content = stored
    with face.consumer(stand.proxy.bootstrap, start="earliest", check_crcs=False, **SHORT) as consumer:
        for seed in range(TRIES):
            stand.proxy.plan = damage_batches(content, random_damage(seed))
            for poll in (lambda: consumer.poll(timeout=0.1), lambda: consumer.poll_arrow(timeout=0.1)):
                consumer.assign([(topic, 0)])
                consumer.seek((topic, 0), 0)
                failure = failure_of(poll)
                assert failure is None or isinstance(failure, klamm.CorruptRecords), f"{seed}: {failure!r}"
        stand.proxy.plan = pass_all


def random_damage(seed: int) -> Damage:
    def damage(batch: bytearray) -> None:
        chance = Random(seed)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(CRC_AT, len(batch))
            batch[at] = chance.choice((batch[at] ^ 1 << chance.randrange(8), 0xFF, 0x00, 0x7F))

    return damage
