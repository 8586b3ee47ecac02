"""The newest records of topics as DataFrames, and Spark sessions for so few rows.

Previews and differences are computed on records that this process has read, so that Spark starts no Python
worker for reading, and so that two versions of the code get the same records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from klamm.client.results import Record, TopicPartition
from klamm.pipelines.project import Project
from klamm.pipelines.runner import make_session
from klamm.pipelines.sampling import last_offsets, newest, newest_of
from klamm.pipelines.table_sources import PinnedTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JAVA_OPTIONS = "spark.driver.extraJavaOptions"

QUICK_JAVA = "-XX:TieredStopAtLevel=1"
"""Java's first compiler alone: the better one needs longer than such a session has to do."""

QUICK_SETTINGS: Mapping[str, str] = {
    # For some thousand rows one partition takes no longer than two, and each step of a plan costs a job less.
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
}
"""For sessions that look at few records. What klamm.toml says counts more."""

ARROW_COLUMNS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
"""The columns of the data source, in Arrow's types."""


def quick_session(project: Project) -> SparkSession:
    """A session for few rows."""
    java = " ".join(filter(None, [QUICK_JAVA, project.spark.get(JAVA_OPTIONS)]))
    return make_session(replace(project, spark={**QUICK_SETTINGS, **project.spark, JAVA_OPTIONS: java}))


class Records:
    """The newest records of topics, each topic read once, and the rows of one version of each table.

    `last` is how many of each source a frame has.
    """

    def __init__(self, project: Project, last: int) -> None:
        self._project = project
        self.last = last
        self._topics: dict[str, list[Record]] = {}
        self.tables = PinnedTables(project)

    def newest(self, topics: Sequence[str]) -> list[Record]:
        """The newest records of these topics together, the newest first. Raises SamplingFailed."""
        found = [record for topic in topics for record in self._of(topic)]
        return newest_of(found, self.last)

    def frame(self, topics: Sequence[str], spark: SparkSession) -> DataFrame:
        """The newest records of these topics together, with the columns of the data source."""
        rows = [_row(record) for record in self.newest(topics)]
        return spark.createDataFrame(pa.Table.from_pylist(rows, ARROW_COLUMNS))

    def _of(self, topic: str) -> list[Record]:
        if topic not in self._topics:
            self._topics[topic] = newest(self._project, topic, self.last)
        return self._topics[topic]


class KeptRecords(Records):
    """Records that are kept until newer ones are there."""

    def __init__(self, project: Project, last: int) -> None:
        super().__init__(project, last)
        self._ends: dict[str, dict[TopicPartition, int]] = {}

    def drop_outdated(self) -> bool:
        """Forget the records of topics that have newer ones, and the versions of tables. Returns whether
        there are newer records. Raises SamplingFailed."""
        outdated = self.outdated()
        for topic in outdated:
            del self._topics[topic]
        self.tables = PinnedTables(self._project)
        return bool(outdated)

    def outdated(self) -> list[str]:
        """The topics that have newer records. Raises SamplingFailed."""
        return [topic for topic in self._topics if self._ends_of(topic) != self._ends[topic]]

    def is_full(self) -> bool:
        """Whether each topic has as many records as are wanted."""
        return all(len(records) >= self.last for records in self._topics.values())

    def first(self, last: int) -> Records:
        """The newest `last` of these."""
        return _Part(self, self._project, last)

    def _of(self, topic: str) -> list[Record]:
        if topic not in self._topics:
            # Asked before reading: what comes meanwhile is newer than this.
            self._ends[topic] = self._ends_of(topic)
        return super()._of(topic)

    def _ends_of(self, topic: str) -> dict[TopicPartition, int]:
        return {each: end for each, (_, end) in last_offsets(self._project, [topic], 1).items()}


class _Part(Records):
    """Fewer of the records that another one keeps."""

    def __init__(self, whole: KeptRecords, project: Project, last: int) -> None:
        super().__init__(project, last)
        self._whole = whole
        self.tables = whole.tables

    def _of(self, topic: str) -> list[Record]:
        return self._whole._of(topic)


def _row(record: Record) -> dict[str, object]:
    return {
        "key": record.key,
        "value": record.value,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp * 1000,
        "timestampType": 0,
        "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
    }
