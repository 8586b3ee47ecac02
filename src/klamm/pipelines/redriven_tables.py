"""Which dead-letter records were redriven into tables, or count no more. The logs of the tables say so, in
transactions:

    klamm/<owner>/redrive/<rule>/<dead-letter topic>/<partition>     the offset below which all are redriven

The rule is `*` for a redrive of all rules. Replays of ranges have their own (`range_replacing.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from deltalake import Transaction

from klamm.pipelines.definitions import Definitions, Pipeline, TableSink
from klamm.pipelines.project import Project
from klamm.pipelines.sinks.writing import open_table
from klamm.pipelines.state import EpochName
from klamm.pipelines.tables.range_replacing import dead_letters_before, is_in, replayed_range, replays_in
from klamm.pipelines.tables.replacing import REDRIVEN
from klamm.pipelines.tables.table import METADATA, Commit, Table

if TYPE_CHECKING:
    from klamm.pipelines.originals import DeadLetter

ALL_RULES = "*"


@dataclass(frozen=True)
class RedriveCommit(Commit):
    """The rows of redriven dead-letter records: those of all partitions up to `ends`, of one rule or all."""

    owner: str
    topic: str
    rule: str
    ends: Mapping[int, int]
    count: int

    @property
    def label(self) -> str:
        return "redrive"

    @property
    def records(self) -> int:
        return self.count

    def transactions(self) -> list[Transaction]:
        return [
            Transaction(transaction_name(self.owner, self.rule, self.topic, partition), end)
            for partition, end in self.ends.items()
        ]

    def metadata(self, rows: int) -> dict[str, Any]:
        ends = {str(partition): end for partition, end in self.ends.items()}
        return {
            METADATA: {"pipeline": self.owner, REDRIVEN: self.count, "rows": rows, "end": {self.topic: ends}}
        }

    def is_in(self, table: Table) -> bool:
        return all(
            redriven_below(table, self.owner, self.rule, self.topic, partition) >= end
            for partition, end in self.ends.items()
        )

    def __str__(self) -> str:
        return "a redrive of the same dead-letter records"


def transaction_name(owner: str, rule: str, topic: str, partition: int) -> str:
    return f"klamm/{owner}/redrive/{rule}/{topic}/{partition}"


def redriven_below(table: Table, owner: str, rule: str, topic: str, partition: int) -> int:
    """The offset below which the dead-letter records of a rule are redriven."""
    names = [transaction_name(owner, each, topic, partition) for each in {ALL_RULES, rule}]
    return max(table.transaction(name) or 0 for name in names)


class Replayed:
    """The replays of ranges of one pipeline, asked for its dead-letter records."""

    def __init__(self, table: Table, owner: str) -> None:
        self._table = table
        self._owner = owner
        self._replays = range(1, replays_in(table, owner) + 1)
        self._finished = cache(lambda token: is_in(table, owner, token))
        self._before = cache(lambda *place: dead_letters_before(table, owner, *place))
        self._range = cache(lambda *place: replayed_range(table, owner, *place))

    def settles(self, dead_letter: DeadLetter) -> bool:
        """True if a dead-letter record does not count: a replay has read its original again since, or the
        replay that wrote it was not finished."""
        token = EpochName.parse(dead_letter.epoch).replay
        if token and not self._finished(token):
            return True
        if dead_letter.partition is None or dead_letter.offset is None:
            return False
        record = dead_letter.record
        for number in self._replays:
            if record.offset < self._before(number, record.topic, record.partition):
                found = self._range(number, dead_letter.topic, dead_letter.partition)
                if found is not None and found.start <= dead_letter.offset < found.end:
                    return True
        return False


class RedrivenTables:
    """The tables of a project's pipelines, asked for single dead-letter records."""

    def __init__(self, project: Project, definitions: Definitions) -> None:
        self._project = project
        self._pipelines: Mapping[str, Pipeline] = definitions.pipelines
        self._below: dict[tuple[str, str, int], int] = {}
        self._replayed: dict[str, Replayed | None] = {}

    def have(self, dead_letter: DeadLetter) -> bool:
        """True if a dead-letter record was redriven into its pipeline's table."""
        record = dead_letter.record
        key = (dead_letter.pipeline, dead_letter.rule, record.partition)
        if key not in self._below:
            self._below[key] = self._redriven_below(*key)
        return record.offset < self._below[key]

    def settle(self, dead_letter: DeadLetter) -> bool:
        """True if a dead-letter record does not count any more (`Replayed`)."""
        name = dead_letter.pipeline
        if name not in self._replayed:
            table = self._table(name)
            owner = self._project.group_of(name)
            self._replayed[name] = None if table is None else Replayed(table, owner)
        replayed = self._replayed[name]
        return replayed is not None and replayed.settles(dead_letter)

    def _redriven_below(self, pipeline: str, rule: str, partition: int) -> int:
        table = self._table(pipeline)
        if table is None:
            return 0
        owner = self._project.group_of(pipeline)
        return redriven_below(table, owner, rule, self._project.dead_letters, partition)

    def _table(self, pipeline: str) -> Table | None:
        node = self._pipelines.get(pipeline)
        if node is None or not isinstance(node.to, TableSink):
            return None
        return open_table(self._project, node.to)
