"""The logs of all brokers after a run, when the brokers have stopped: replicas must be the same.

What must hold for each partition: below the high watermark all replicas have the same batches, byte for byte;
leader epochs rise along the log, and brokers agree where an epoch began; and the batches of an idempotent
producer follow one another in each of its epochs, without one that is there twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from klamm.model.ids import TopicPartition
from klamm.records.batch import MAX_SEQUENCE, BatchHeader
from klamm.storage.checkpoints import HIGH_WATERMARK_FILE, LEADER_EPOCH_FILE, read_epochs, read_offsets
from klamm.storage.segments.scanning import iter_batches

Identity = tuple[int, int, int]
"""(producer id, producer epoch, base sequence)"""


class StoredBatch(NamedTuple):
    header: BatchHeader
    data: bytes


def batches_of(directory: Path) -> list[StoredBatch]:
    """All batches of a partition's directory, in the order of its segments."""
    batches = []
    for segment in sorted(directory.glob("*.log")):
        with segment.open("rb") as file:
            size = segment.stat().st_size
            batches += [
                StoredBatch(header, bytes(batch)) for _, header, batch in iter_batches(file.fileno(), 0, size)
            ]
    return batches


def replica_anomalies(brokers: Mapping[int, Path], topic: str, partitions: int) -> list[str]:
    """Compare what the data directories of `brokers` hold of a topic."""
    found: list[str] = []
    for index in range(partitions):
        place = TopicPartition(topic, index)
        logs = {broker_id: batches_of(data / str(place)) for broker_id, data in brokers.items()}
        high_watermark = max(
            read_offsets(str(data / HIGH_WATERMARK_FILE)).get(place, 0) for data in brokers.values()
        )
        found += _differences(place, logs, high_watermark)
        for broker_id, batches in logs.items():
            where = f"{place} on broker {broker_id}"
            found += _epoch_anomalies(where, [batch.header for batch in batches])
            found += sequence_anomalies(where, [batch.header for batch in batches])
        epochs = {
            broker_id: read_epochs(str(data / str(place) / LEADER_EPOCH_FILE))
            for broker_id, data in brokers.items()
        }
        found += epoch_disagreements(str(place), epochs)
    return found


def _differences(
    place: TopicPartition, logs: Mapping[int, Sequence[StoredBatch]], high_watermark: int
) -> Iterator[str]:
    (first, reference), *others = logs.items()
    committed = [batch for batch in reference if batch.header.base_offset < high_watermark]
    end = committed[-1].header.last_offset + 1 if committed else 0
    if end < high_watermark:
        yield f"missing records: {place} ends at {end} on broker {first}, below {high_watermark}"
    for broker_id, batches in others:
        same = [batch for batch in batches if batch.header.base_offset < high_watermark]
        if same == committed:
            continue
        at = next(
            (number for number, pair in enumerate(zip(same, committed, strict=False)) if pair[0] != pair[1]),
            min(len(same), len(committed)),
        )
        offset = (same + committed)[at].header.base_offset if at < len(same) else "its end"
        yield (
            f"replicas differ: {place} on brokers {first} and {broker_id} from offset {offset} on, below the "
            f"high watermark {high_watermark}; {len(committed)} and {len(same)} batches"
        )


def _epoch_anomalies(where: str, headers: Sequence[BatchHeader]) -> Iterator[str]:
    epoch = -1
    for header in headers:
        if header.partition_leader_epoch < epoch:
            yield (
                f"epoch went back: {where} has epoch {header.partition_leader_epoch} at offset "
                f"{header.base_offset} after epoch {epoch}"
            )
        epoch = header.partition_leader_epoch


def epoch_disagreements(where: str, epochs: Mapping[int, Sequence[tuple[int, int]]]) -> Iterator[str]:
    """`epochs` of each broker: (leader epoch, where it began). An epoch that wrote nothing is known to its
    leader only."""
    starts: dict[int, tuple[int, int]] = {}
    for broker_id, entries in epochs.items():
        for epoch, offset in entries:
            known, teller = starts.setdefault(epoch, (offset, broker_id))
            if known != offset:
                yield (
                    f"two starts of an epoch: {where} began epoch {epoch} at {known} for broker {teller} and "
                    f"at {offset} for broker {broker_id}"
                )
        if list(entries) != sorted(entries):
            yield f"epoch went back: {where} has the epochs {entries} on broker {broker_id}"


def sequence_anomalies(where: str, headers: Sequence[BatchHeader]) -> Iterator[str]:
    """A batch that is there twice, or a gap, is the broker's fault, whatever its producer did."""
    expected: dict[tuple[int, int], int] = {}
    for header in headers:
        if header.producer_id < 0:
            continue
        key = (header.producer_id, header.producer_epoch)
        if expected.get(key, header.base_sequence) != header.base_sequence:
            yield (
                f"broken sequence: {where} has sequence {header.base_sequence} of producer {key[0]} in epoch "
                f"{key[1]} at offset {header.base_offset}, expected {expected[key]}"
            )
        expected[key] = (header.base_sequence + header.last_offset_delta + 1) & MAX_SEQUENCE


def who_wrote(data: Path, topic: str, index: int, offsets: Sequence[int]) -> list[Identity]:
    """The producers of the batches that hold `offsets`."""
    headers = [batch.header for batch in batches_of(data / str(TopicPartition(topic, index)))]
    return [
        (header.producer_id, header.producer_epoch, header.base_sequence)
        for offset in offsets
        for header in headers
        if header.base_offset <= offset <= header.last_offset
    ]
