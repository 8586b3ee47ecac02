"""All that can happen to connections and to a broker, while a producer and a group of ours are at work.

What was acknowledged is there, once, in order; the group receives all of it and commits nothing that it has
not received; and when the clients are closed nothing of them is left. In both faces.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.client.faces import FACES, Face
from tests.client.faults.checks import check_committed, check_sent, wait_for_the_group
from tests.client.faults.kinds import FAULTS, PROCESS_FAULTS, Round
from tests.client.faults.load import GroupLoad, ProducerLoad
from tests.client.faults.proxy import FaultProxy
from tests.client.faults.stands import InProcessStand, ProcessStand, Stand
from tests.client.leaks import nothing_leaks
from tests.client.topics import make_topic

PARTITIONS = 3
SHORT_ROUNDS = 2
LONG_ROUNDS = int(os.environ.get("ROUNDS", "40"))
LONG_SEED = int(os.environ.get("SEED", "2"))
RECORDS_BETWEEN_ROUNDS = 300
GROUP = "under-faults"

every_face = pytest.mark.parametrize("face_name", list(FACES))
every_fault = pytest.mark.parametrize("fault", [*PROCESS_FAULTS, *FAULTS])

A_FEW = [
    pytest.param(fault, face, marks=pytest.mark.long if (number + turn) % 2 else ())
    for number, fault in enumerate([*PROCESS_FAULTS, *FAULTS])
    for turn, face in enumerate(FACES)
]
"""`make test` has the faults hit the faces by turns, `make test-long` both."""


@contextlib.contextmanager
def stand_for(fault: str, directory: Path) -> Iterator[Stand]:
    """A process of its own costs a second, so only what needs one gets it."""
    with FaultProxy() as proxy:
        is_process = fault in PROCESS_FAULTS
        stand: Stand = ProcessStand(proxy, directory) if is_process else InProcessStand(proxy)
        try:
            yield stand
        finally:
            stand.close()


@contextlib.contextmanager
def face_named(name: str) -> Iterator[Face]:
    face = FACES[name]()
    try:
        yield face
    finally:
        face.close()


def run(stand: Stand, face: Face, rounds: list[Round], seed: int) -> None:
    print(f"seed {seed}")
    topic = make_topic(stand.direct, partitions=PARTITIONS)
    chance = Random(seed)
    through = stand.proxy.bootstrap
    with nothing_leaks(face.loop):
        producer = ProducerLoad(face, through, "producer", topic)
        members = [
            GroupLoad(face, through, "by-hand", topic, GROUP, seed, by_hand=True),
            GroupLoad(face, through, "by-itself", topic, GROUP, seed, by_hand=False),
        ]
        everybody = [producer, *members]
        for load in everybody:
            load.start()
        try:
            for hurt in rounds:
                producer.wait_for_more(RECORDS_BETWEEN_ROUNDS)
                hurt(stand, chance)
            producer.wait_for_more(RECORDS_BETWEEN_ROUNDS)
            producer.finish()
            check_sent(stand, producer, PARTITIONS)
            wait_for_the_group(stand, members, topic, PARTITIONS)
        finally:
            for load in everybody:
                load.stopping.set()
            for load in everybody:
                load.finish()
        check_committed(stand, members, GROUP, topic, PARTITIONS)


@pytest.mark.parametrize(("fault", "face_name"), A_FEW)
def test_a_few_rounds(tmp_path: Path, fault: str, face_name: str) -> None:
    hurt = (PROCESS_FAULTS | FAULTS)[fault]
    with stand_for(fault, tmp_path) as stand, face_named(face_name) as face:
        run(stand, face, [hurt] * SHORT_ROUNDS, seed=1)


@pytest.mark.faults
@pytest.mark.timeout(3600)
@every_face
@every_fault
def test_many_rounds(tmp_path: Path, fault: str, face_name: str) -> None:
    hurt = (PROCESS_FAULTS | FAULTS)[fault]
    with stand_for(fault, tmp_path) as stand, face_named(face_name) as face:
        run(stand, face, [hurt] * LONG_ROUNDS, LONG_SEED)


@pytest.mark.faults
@pytest.mark.timeout(3600)
@every_face
def test_all_faults_in_turn(tmp_path: Path, face_name: str) -> None:
    """Whatever a broker in a process of its own can suffer, in an order that the seed chooses."""
    kinds = PROCESS_FAULTS | {name: hurt for name, hurt in FAULTS.items() if name != "restart"}
    rounds = Random(LONG_SEED).choices(list(kinds.values()), k=LONG_ROUNDS)
    with stand_for("kill", tmp_path) as stand, face_named(face_name) as face:
        run(stand, face, rounds, LONG_SEED)
