"""The counts of a query's rows, and their names in Spark's progress reports.

`DataFrame.observe` counts rows as they pass. The counts are in the progress of each batch, under
`observedMetrics`: one entry per node, `klamm.<node>`, with

    rows                       rows that reached the node: records of a source, rows that a function returned
    undecodable                records whose value could not be decoded (sources)
    rule:<name>                rows that broke the expectation
    dead_letters               rows that this node sent to the dead-letter topic
    unknown_fields             records, of those sampled, with fields that the schema does not have
    unknown_field              the name of one of those fields
    example:<count>            of previews only: a row that one of the counts above is about (EXAMPLE_FIELDS)

A batch that runs again counts again; so do the rows of a node that a query uses twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

OBSERVATION_PREFIX = "klamm."
ROWS = "rows"
UNDECODABLE = "undecodable"
DEAD_LETTERS = "dead_letters"
UNKNOWN_FIELDS = "unknown_fields"
UNKNOWN_FIELD = "unknown_field"
RULE_PREFIX = "rule:"
EXAMPLE_PREFIX = "example:"
EXAMPLE_FIELDS = ("topic", "partition", "offset", "error", "columns", "value")
"""An example is the row with the smallest coordinates: its record, what is wrong, the columns that the
condition names as JSON, and the record's value in hexadecimal digits."""


@dataclass(frozen=True)
class NodeCounts:
    """The counts of one batch at one node. `rules` has the number of rows that broke each expectation."""

    node: str
    rows: int = 0
    undecodable: int = 0
    dead_letters: int = 0
    unknown_fields: int = 0
    unknown_field: str | None = None
    rules: Mapping[str, int] = field(default_factory=dict)


def observation_name(node: str) -> str:
    return OBSERVATION_PREFIX + node


def read_counts(observed_metrics: Mapping[str, Mapping[str, object]]) -> list[NodeCounts]:
    """The counts in `observedMetrics` of a progress report. Metrics of users are left out."""
    found = []
    for name, values in observed_metrics.items():
        if not name.startswith(OBSERVATION_PREFIX):
            continue
        example = values.get(UNKNOWN_FIELD)
        found.append(
            NodeCounts(
                node=name.removeprefix(OBSERVATION_PREFIX),
                rows=_count(values.get(ROWS)),
                undecodable=_count(values.get(UNDECODABLE)),
                dead_letters=_count(values.get(DEAD_LETTERS)),
                unknown_fields=_count(values.get(UNKNOWN_FIELDS)),
                unknown_field=example if isinstance(example, str) else None,
                rules={
                    key.removeprefix(RULE_PREFIX): _count(value)
                    for key, value in values.items()
                    if key.startswith(RULE_PREFIX)
                },
            )
        )
    return found


def _count(value: object) -> int:
    """A sum over no rows is null."""
    return value if isinstance(value, int) else 0
