"""What a type checker tells a user of the client: right programs pass, slips are found before they run."""

from __future__ import annotations

from pathlib import Path

from mypy import api

REPOSITORY = Path(__file__).parents[2]

PROGRAM = """\
from datetime import UTC, datetime

import klamm
import klamm.aio

with klamm.Producer("localhost:9092", linger_ms=5, compression_type="zstd") as producer:
    offset: int = producer.send("orders", b"value", key=b"key", timestamp=datetime.now(UTC)).result().offset
    producer.send("orders", "value")  # refused
    producer.sent("orders", b"value")  # refused
klamm.Producer("localhost:9092", linger=5)  # refused
klamm.Produser("localhost:9092")  # refused

with klamm.Consumer("localhost:9092", group="billing", topics=["orders"], start="earliest") as consumer:
    for record in consumer:
        value: bytes | None = record.value
        text: str = record.value  # refused

with klamm.Admin("localhost:9092") as admin:
    partition = klamm.TopicPartition("orders", 0)
    ends: dict[klamm.TopicPartition, int] = {partition: 3}
    starts: dict[klamm.TopicPartition, int] = admin.delete_records(ends)
    admin.delete_records({("orders", 1): 3})
    admin.list_offsets({partition: "latest"})
    admin.list_offsets({partition: "lates"})  # refused
    numbers: list[int] = admin.partitions_for("orders", timeout=5)
    admin.partitions_for(5)  # refused
    admin.describe_topic("orders").partition  # refused
    admin.describe_topics(name="orders")  # refused
    try:
        admin.create_topic("orders", 3, configs={"retention.ms": 1000})
    except klamm.TopicExists as error:
        code: klamm.ErrorCode = error.code


async def main() -> None:
    async with klamm.aio.Producer("localhost:9092") as producer:
        sent: klamm.SentRecord = await producer.send("orders", b"value")
        producer.flush().offset  # refused
    async with klamm.aio.Consumer("localhost:9092", group="billing", topics=["orders"]) as consumer:
        async for session in consumer.sessions():
            async with session:
                for claim in session.claims:
                    async for record in claim:
                        key: bytes | None = record.key
"""


def test_slips_are_found_and_nothing_else(tmp_path, monkeypatch):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    monkeypatch.chdir(REPOSITORY)
    told, failure, _ = api.run(["--strict", "--no-error-summary", str(program)])
    assert not failure
    found = {int(line.split(":")[1]) for line in told.splitlines() if ": error:" in line}
    expected = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# refused")}
    assert found == expected, told
