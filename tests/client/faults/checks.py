"""What must hold when the faults are over, read straight from the broker."""

from __future__ import annotations

from tests.abuse.calls import end_offset
from tests.client.faults.load import GroupLoad, ProducerLoad
from tests.client.faults.stands import Stand, connect
from tests.faults.checks import check_producer, committed_offset, read_numbers
from tests.faults.load import Partition
from tests.waiting import wait_until


def check_sent(stand: Stand, load: ProducerLoad, partitions: int) -> None:
    """Everything that was sent is there once, in order, and where the acknowledgement said."""
    with connect(stand) as connection:
        count = 0
        for index in range(partitions):
            read = read_numbers(connection, Partition(load.topic, index))[load.name]
            check_producer(f"{load.name} in {load.topic}-{index}", read, load.acknowledged.get(index, {}))
            count += len(read)
    assert count == load.sent_count == load.acknowledged_count, (
        f"{load.name}: {load.sent_count} sent, {load.acknowledged_count} acknowledged, {count} in the log"
    )


def wait_for_the_group(stand: Stand, members: list[GroupLoad], topic: str, partitions: int) -> None:
    """Wait until the members together have received every record of the log."""
    with connect(stand) as connection:
        ends = {index: end_offset(connection, topic, partition=index) for index in range(partitions)}

    def missing() -> int:
        for member in members:
            member.check()
        return sum(len(set(range(end)) - received(members, index)) for index, end in ends.items())

    wait_until(lambda: missing() == 0, f"the group has received all of {ends}", 60)


def check_committed(stand: Stand, members: list[GroupLoad], group: str, topic: str, partitions: int) -> None:
    """Nothing was committed that nobody has received."""
    with connect(stand) as connection:
        for index in range(partitions):
            committed = committed_offset(connection, group, Partition(topic, index))
            lost = set(range(committed)) - received(members, index)
            assert not lost, f"{topic}-{index}: {committed} is committed, and {min(lost)} never came"


def received(members: list[GroupLoad], partition: int) -> set[int]:
    return set().union(*(set(member.received.get(partition, ())) for member in members))
