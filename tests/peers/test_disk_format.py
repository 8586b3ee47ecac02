"""Apache Kafka's own reader goes through what Klamm wrote, and finds nothing to complain of."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from klamm.testing import Broker
from tests.clients.confluent import ConfluentClient
from tests.clients.contract import CODECS, PATIENCE_SECONDS, Record
from tests.clients.java_tools import JavaTools
from tests.conftest import cannot_run
from tests.peers.kafka_jars import PeerMissing
from tests.waiting import wait_until

SETTINGS = {
    # The smallest segments that Kafka allows, and indexes dense enough to have something to be wrong in.
    "log.segment.bytes": 1 << 20,
    "log.index.interval.bytes": 2_000,
    "offsets.topic.num.partitions": 1,
    "log.cleaner.backoff.ms": 50,
}
BATCHES_PER_CODEC = 12
RECORDS_PER_BATCH = 25
# Not "non-consecutive": the tool says so of every segment but the first, and compaction leaves gaps.
COMPLAINTS = ("mismatch", "isvalid: false", "exception", "out of order", "duplicat")


@pytest.fixture(scope="module")
def tools() -> Iterator[JavaTools]:
    try:
        made = JavaTools(None)
    except PeerMissing as problem:
        cannot_run(problem)
    yield made
    made.close()


def fill(bootstrap: str, topic: str, codec: str, noise: random.Random) -> None:
    """Produce batches of a known size, which compress to about half."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "enable.idempotence": True,
            "batch.num.messages": RECORDS_PER_BATCH,
            "linger.ms": 1_000,
        }
    )
    for number in range(BATCHES_PER_CODEC * RECORDS_PER_BATCH):
        value = noise.randbytes(700) + bytes(700)
        producer.produce(topic, value, b"%d" % number, 0, headers=[("codec", codec.encode())])
    assert producer.flush(PATIENCE_SECONDS) == 0


@pytest.fixture(scope="module")
def data_dir(tools: JavaTools, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log directory of a broker that wrote a bit of everything and was stopped."""
    directory = tmp_path_factory.mktemp("data")
    broker = Broker(SETTINGS, data_dir=directory).start()
    client = ConfluentClient(broker.bootstrap)
    client.create_topic("codecs")
    client.create_topic("compacted", 1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
    for codec in CODECS:
        fill(broker.bootstrap, "codecs", codec, random.Random(codec))
        fill(broker.bootstrap, "compacted", codec, random.Random(codec))
    member = client.join("readers", "codecs", client_id="reader", strategy="range")
    wait_until(lambda: len(member.received()) >= 100, "something is read")
    member.commit()
    member.leave()
    wait_until(lambda: first_segment_is_compacted(directory / "compacted-0"), "the cleaner has been there")
    client.delete_records("codecs", 0, 10)
    client.produce("codecs", [Record(b"the last")])
    broker.stop()
    return directory


def first_segment_is_compacted(partition: Path) -> bool:
    segments = files(partition, ".log")
    return len(segments) > 1 and segments[0].stat().st_size < SETTINGS["log.segment.bytes"] // 2


def files(partition: Path, *suffixes: str) -> list[Path]:
    return sorted(path for path in partition.iterdir() if path.suffix in suffixes)


def dump(tools: JavaTools, paths: list[Path], *options: str) -> str:
    outcome = tools.try_run("dump-log", *options, "--files", ",".join(map(str, paths)))
    assert outcome.status == 0, outcome
    said = (outcome.printed + outcome.complained).splitlines()
    complaints = [line for line in said if any(word in line.lower() for word in COMPLAINTS)]
    assert not complaints, complaints
    return outcome.printed


@pytest.mark.parametrize("partition", ["codecs-0", "compacted-0", "__consumer_offsets-0"])
def test_kafka_reads_segments_and_indexes(tools: JavaTools, data_dir: Path, partition: str) -> None:
    folder = data_dir / partition
    indexes = files(folder, ".index", ".timeindex")
    assert len(indexes) == 2 * len(files(folder, ".log")) > 0
    checked = dump(tools, indexes, "--index-sanity-check")
    assert checked.count("passed sanity check") + checked.count(" is empty.") == len(indexes)
    dump(tools, indexes, "--verify-index-only")
    printed = dump(tools, files(folder, ".log"), "--deep-iteration")
    assert printed.count("isvalid: true") == printed.count("baseOffset: ") > 0


def test_kafka_finds_every_batch_as_it_was_sent(tools: JavaTools, data_dir: Path) -> None:
    segments = files(data_dir / "codecs-0", ".log")
    assert len(segments) >= 2, "the log should have rolled"
    printed = dump(tools, segments, "--deep-iteration")
    batches = re.findall(r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+) .* compresscodec: (\w+)", printed)
    expected_start = 0
    for start, last, count, _ in batches:
        assert int(start) == expected_start
        assert int(last) - int(start) + 1 == int(count)
        expected_start = int(last) + 1
    assert expected_start == len(CODECS) * BATCHES_PER_CODEC * RECORDS_PER_BATCH + 1
    assert [name for name in dict.fromkeys(batch[3] for batch in batches)] == list(CODECS)
    assert len(re.findall(r"^\| offset: ", printed, re.MULTILINE)) == expected_start


def test_kafka_reads_the_snapshots_of_producers(tools: JavaTools, data_dir: Path) -> None:
    snapshots = files(data_dir / "codecs-0", ".snapshot")
    assert snapshots, "a clean shutdown leaves one"
    producers = re.findall(
        r"producerId: (\d+) producerEpoch: 0 .* lastSequence: (\d+) lastOffset: (\d+)",
        dump(tools, snapshots[-1:]),
    )
    per_producer = BATCHES_PER_CODEC * RECORDS_PER_BATCH
    assert [(int(sequence), int(offset)) for _, sequence, offset in producers] == [
        (per_producer - 1, per_producer * place - 1) for place in range(1, len(CODECS) + 1)
    ]
    assert len({producer_id for producer_id, _, _ in producers}) == len(CODECS)


def test_kafka_decodes_groups_and_offsets(tools: JavaTools, data_dir: Path) -> None:
    segments = files(data_dir / "__consumer_offsets-0", ".log")
    printed = dump(tools, segments, "--offsets-decoder")
    assert re.search(r'"group":"readers","topic":"codecs","partition":0', printed)
    assert re.search(r'"protocolType":"consumer"', printed)


def test_the_reader_complains_about_damage(tools: JavaTools, data_dir: Path, tmp_path: Path) -> None:
    """Or else its silence would mean nothing."""
    damaged = tmp_path / "codecs-0"
    shutil.copytree(data_dir / "codecs-0", damaged)
    log, index = files(damaged, ".log")[0], files(damaged, ".index")[0]
    data = bytearray(log.read_bytes())
    data[3_000] ^= 1
    log.write_bytes(data)
    with pytest.raises(AssertionError, match="isvalid: false"):
        dump(tools, [log])
    positions = bytearray(index.read_bytes())
    positions[8:12] = (1 << 30).to_bytes(4, "big")
    index.write_bytes(positions)
    with pytest.raises(AssertionError, match="Mismatches in"):
        dump(tools, [index], "--verify-index-only")
