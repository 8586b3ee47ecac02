"""The kinds of faults, and whom they can hit. Each ends with its cause gone: then the cluster heals."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

from klamm.model.ids import TopicPartition
from klamm.storage.checkpoints import RECOVERY_POINT_FILE, read_offsets
from tests.faults.cluster.replicas import batches_of
from tests.faults.cluster.scene import HEAL_S, PARTITIONS, TOPIC, Scene, fill
from tests.faults.cluster.stores import ZooKeeperServer
from tests.waiting import wait_until

FULL_DISK = "full disk"
MOMENT_S = (0.0, 0.5)
SHORT_S = (0.5, 3.0)
LONG_S = (1.0, 9.0)
"""May be longer than a session, and longer than a follower may lag."""


def _last(scene: Scene, between_s: tuple[float, float]) -> None:
    """How long a fault lasts is a matter of chance, and nothing tells that it is over."""
    time.sleep(scene.random.uniform(*between_s))


def kill(scene: Scene, broker_id: int) -> None:
    scene.cluster.kill(broker_id)
    scene.wait_for_progress()
    scene.cluster.start_broker(broker_id)


def kill_and_start_at_once(scene: Scene, broker_id: int) -> None:
    scene.cluster.kill(broker_id)
    scene.cluster.start_broker(broker_id)


def pause(scene: Scene, broker_id: int) -> None:
    scene.cluster.pause(broker_id)
    _last(scene, LONG_S)
    scene.cluster.resume(broker_id)


def stop(scene: Scene, broker_id: int) -> None:
    scene.cluster.stop_broker(broker_id)
    scene.wait_for_progress()
    scene.cluster.start_broker(broker_id)


def restart(scene: Scene, broker_id: int) -> None:
    scene.cluster.restart(broker_id)


def cut_off(scene: Scene, broker_id: int) -> None:
    for other in _others(scene, broker_id):
        scene.cluster.partition(broker_id, other)
    _last(scene, LONG_S)


def reset(scene: Scene, broker_id: int) -> None:
    for other in _others(scene, broker_id):
        scene.cluster.partition(broker_id, other)
        scene.cluster.reset_connections(broker_id, other)
    _last(scene, SHORT_S)


def cut_one_way(scene: Scene, broker_id: int) -> None:
    other = scene.random.choice(_others(scene, broker_id))
    way = (broker_id, other) if scene.random.random() < 0.5 else (other, broker_id)
    scene.cluster.cut(*way)
    _last(scene, LONG_S)


def damage_the_tail(scene: Scene, broker_id: int) -> None:
    scene.cluster.kill(broker_id)
    damage_tails(scene.data_of(broker_id), scene.random)
    if scene.random.random() < 0.5:
        scene.wait_for_progress()
    scene.cluster.start_broker(broker_id)


def fill_the_disk(scene: Scene, broker_id: int) -> None:
    """The others lead meanwhile, and the broker comes back by itself."""
    filler = fill(scene.data_of(broker_id))
    try:
        scene.wait_for_progress()
        _last(scene, SHORT_S)
        assert broker_id in scene.cluster.running
    finally:
        filler.unlink()


def suspend(scene: Scene, broker_id: int, *, silent: bool) -> None:
    """Cut a broker off from ZooKeeper for less than its session lasts, unless the machine is busy. What it
    leads goes on."""
    with _cut_off_from_zookeeper(scene, broker_id, silent=silent):
        scene.wait_for_progress()
        # Silence is noticed after up to two thirds of the session timeout.
        _last(scene, MOMENT_S if silent else SHORT_S)


def expire(scene: Scene, broker_id: int, *, silent: bool) -> None:
    """Cut a broker off from ZooKeeper for longer than its session lasts. The others lead in its place, while
    it still talks with clients and brokers; then it registers in a new epoch."""
    store = zookeeper_of(scene)
    epoch = store.epoch_of(broker_id)
    assert epoch is not None
    with _cut_off_from_zookeeper(scene, broker_id, silent=silent):
        wait_until(lambda: store.epoch_of(broker_id) is None, f"the session of broker {broker_id} expires")
        wait_until(lambda: store.controller() not in (None, broker_id), "another broker is the controller")
        scene.wait_for_progress_everywhere()
        _last(scene, SHORT_S)
        assert store.epoch_of(broker_id) is None, f"broker {broker_id} has registered through a cut"
        assert broker_id in scene.cluster.running
    wait_until(lambda: store.epoch_of(broker_id) is not None, f"broker {broker_id} registers", HEAL_S)
    assert store.epoch_of(broker_id) != epoch


@contextmanager
def _cut_off_from_zookeeper(scene: Scene, broker_id: int, *, silent: bool) -> Iterator[None]:
    """The context begins when the broker has noticed."""
    store = zookeeper_of(scene)
    connections = store.connection_count(broker_id)
    with store.cut_off(broker_id, silent=silent):
        wait_until(
            lambda: store.connection_count(broker_id) > connections,
            f"the session of broker {broker_id} is suspended",
        )
        yield


def zookeeper_of(scene: Scene) -> ZooKeeperServer:
    assert isinstance(scene.store, ZooKeeperServer), f"no network is before {scene.store.name}"
    return scene.store


def _others(scene: Scene, broker_id: int) -> list[int]:
    return [each for each in scene.cluster.ids if each != broker_id]


def restart_all(scene: Scene) -> None:
    for broker_id in scene.cluster.ids:
        scene.cluster.restart(broker_id)
        scene.wait_until_healed()


def lose_the_store(scene: Scene) -> None:
    """Producers go on meanwhile; if a leader dies, they wait until the store is back."""
    victim = scene.leader() if scene.random.random() < 0.3 else None
    with scene.store.away(scene.random):
        scene.wait_for_progress()
        if victim is not None:
            scene.cluster.kill(victim)
        _last(scene, LONG_S)
    if victim is not None:
        scene.wait_for_progress()
        scene.cluster.start_broker(victim)


CUTS_FROM_ZOOKEEPER: dict[str, Callable[[Scene, int], None]] = {
    "cut off from ZooKeeper, silent": partial(suspend, silent=True),
    "cut off from ZooKeeper, connections reset": partial(suspend, silent=False),
    "cut off from ZooKeeper until expired, silent": partial(expire, silent=True),
    "cut off from ZooKeeper until expired, connections reset": partial(expire, silent=False),
}
"""No network is before an SQLite file."""
FAULTS: dict[str, Callable[[Scene, int], None]] = {
    "kill -9": kill,
    "kill -9 and start at once": kill_and_start_at_once,
    "SIGSTOP and resume": pause,
    "SIGTERM, later start": stop,
    "SIGTERM and start": restart,
    "cut off, silent": cut_off,
    "cut off, connections reset": reset,
    "cut one way, silent": cut_one_way,
    "kill -9, damaged log tail": damage_the_tail,
    FULL_DISK: fill_the_disk,
    **CUTS_FROM_ZOOKEEPER,
}
VICTIMS: dict[str, Callable[[Scene], int]] = {
    "leader": Scene.leader,
    "follower": Scene.follower,
    "controller": Scene.controller,
    "coordinator": Scene.coordinator,
}
FAULTS_OF_ALL: dict[str, tuple[str, Callable[[Scene], None]]] = {
    "SIGTERM and start, one after the other": ("all brokers", restart_all),
    "coordination store away": ("store", lose_the_store),
}


def kinds_for(scene: Scene) -> list[str]:
    left_out = set()
    if not scene.small_disks:
        left_out.add(FULL_DISK)
    if not isinstance(scene.store, ZooKeeperServer):
        left_out.update(CUTS_FROM_ZOOKEEPER)
    return [kind for kind in (*FAULTS, *FAULTS_OF_ALL) if kind not in left_out]


def do(scene: Scene, kind: str, victim: str) -> None:
    """`victim` matters only to faults that hit one broker."""
    if kind in FAULTS:
        broker_id = VICTIMS[victim](scene)
        if kind == FULL_DISK and broker_id not in scene.small_disks:
            broker_id = scene.random.choice(scene.small_disks)
            victim = f"broker {broker_id}"
        scene.do(kind, victim, lambda: FAULTS[kind](scene, broker_id))
    else:
        name, work = FAULTS_OF_ALL[kind]
        scene.do(kind, name, lambda: work(scene))


def do_any(scene: Scene) -> None:
    """Some fault to some victim."""
    kind = scene.random.choice(kinds_for(scene))
    do(scene, kind, scene.random.choice(list(VICTIMS)))


def damage_tails(data: Path, random: Random) -> list[str]:
    """Cut or garble the end of logs of a broker that was killed, as a loss of power may: above the recovery
    point. Returns what was done."""
    recovery_points = read_offsets(str(data / RECOVERY_POINT_FILE))
    done = []
    for index in range(PARTITIONS):
        place = TopicPartition(TOPIC, index)
        segment = max((data / str(place)).glob("*.log"))
        base_offset = int(segment.stem)
        sizes = [
            len(batch.data)
            for batch in batches_of(data / str(place))
            if batch.header.base_offset >= max(base_offset, recovery_points.get(place, 0))
        ]
        if not sizes:
            continue
        size = segment.stat().st_size
        position = size - sum(sizes[-random.randint(1, len(sizes)) :]) + random.randrange(60)
        with segment.open("r+b") as file:
            if random.random() < 0.5:
                file.truncate(position)
                done.append(f"{place} was cut from {size} to {position} bytes")
            else:
                file.seek(position)
                file.write(random.randbytes(size - position))
                done.append(f"{place} was garbled from {position} to {size}")
    return done
