"""Which dead-letter records were redriven into tables. The logs of the tables say so, in transactions:

    klamm/<owner>/redrive/<rule>/<dead-letter topic>/<partition>     the offset below which all are redriven

The rule is `*` for a redrive of all rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deltalake import Transaction

from klamm.pipelines.definitions import Definitions, Pipeline, TableSink
from klamm.pipelines.project import Project
from klamm.pipelines.sinks.writing import open_table
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


class RedrivenTables:
    """The tables of a project's pipelines, asked for single dead-letter records."""

    def __init__(self, project: Project, definitions: Definitions) -> None:
        self._project = project
        self._pipelines: Mapping[str, Pipeline] = definitions.pipelines
        self._known: dict[tuple[str, str, int], int] = {}

    def have(self, dead_letter: DeadLetter) -> bool:
        """True if a dead-letter record was redriven into its pipeline's table."""
        record = dead_letter.record
        key = (dead_letter.pipeline, dead_letter.rule, record.partition)
        if key not in self._known:
            self._known[key] = self._below(*key)
        return record.offset < self._known[key]

    def _below(self, pipeline: str, rule: str, partition: int) -> int:
        node = self._pipelines.get(pipeline)
        if node is None or not isinstance(node.to, TableSink):
            return 0
        owner = self._project.group_of(pipeline)
        return redriven_below(
            open_table(self._project, node.to), owner, rule, self._project.dead_letters, partition
        )
