"""What the bench of the pipelines does without Spark, in small: topics filled, read, decoded and written; and
what it makes of a session that does not answer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bench.spark import children, material, section
from bench.spark.children import SparkChild
from bench.spark.material import CHUNK_ROWS, PARTITION_COUNT
from bench.workers import run_worker

import klamm.testing
from bench import spark

pytestmark = pytest.mark.klamm_config({"num.partitions": PARTITION_COUNT})
ROWS = CHUNK_ROWS * PARTITION_COUNT
SIZE = 100
CONFLUENT, DECODE = "bench.spark.confluent_arrow", "bench.spark.decode_worker"


@pytest.fixture
def broker(klamm: klamm.testing.Broker) -> Any:
    """What the bench knows of a broker: where it listens."""
    return SimpleNamespace(port=int(klamm.bootstrap.rpartition(":")[2]))


@pytest.fixture
def full(broker: Any, klamm: klamm.testing.Broker) -> dict[str, object]:
    """A topic that is filled as the bench fills it."""
    material.fill(broker, "numbers", ROWS, SIZE)
    assert material.record_count(broker, "numbers") == ROWS
    return {"bootstrap": klamm.bootstrap, "topic": "numbers", "rows": ROWS}


@pytest.mark.long
@pytest.mark.parametrize("sink", section.SINKS)
def test_confluent_kafka_reads_every_row(full: dict[str, object], sink: str, tmp_path: Path) -> None:
    where = {"partition_count": PARTITION_COUNT, "sink": sink, "path": str(tmp_path / "table.parquet")}
    done = run_worker(CONFLUENT, "read", {**full, **where})
    assert done["rows"] == ROWS
    assert section.figures_of(done, SIZE)["rows/s"] > 0
    assert not list(tmp_path.iterdir()), "the table is gone when it has been measured"


def test_confluent_kafka_writes_every_row(broker: Any, klamm: klamm.testing.Broker) -> None:
    arguments = {"bootstrap": klamm.bootstrap, "topic": "copy", "rows": ROWS + 1, "size": SIZE}
    run_worker(CONFLUENT, "write", arguments)
    assert material.record_count(broker, "copy") == ROWS + 1


def test_decoding_takes_every_row_of_a_partition(full: dict[str, object]) -> None:
    arguments = {**full, "rows": CHUNK_ROWS - 1, "seconds": 0.05}
    done = run_worker(DECODE, "decode", arguments)
    assert done["rows"] % (CHUNK_ROWS - 1) == 0 and done["rows"]


def test_a_log_has_the_lines_it_says(tmp_path: Path) -> None:
    lines = material.write_log(tmp_path / "access.log", 1)
    assert (tmp_path / "access.log").read_bytes().count(b"\n") == lines


def test_a_session_that_ends_is_told_with_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "WORKER", spark.__name__ + ".nothing")
    child = SparkChild(tmp_path, "broken", [])
    with pytest.raises(RuntimeError, match=r"the Spark session ended.*nothing"):
        child.wait_until_ready()
