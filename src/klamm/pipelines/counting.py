"""What a query counts of its rows, and how that is named in Spark's progress.

Counts are made by `DataFrame.observe` while rows go by and come out in the progress of each batch, under
`observedMetrics`: one entry per node, `klamm.<node>`, with

    rows                       that reached the node: records of a source, rows that a function returned
    undecodable                records whose value could not be decoded (sources)
    rule:<name>                rows for which the rule did not hold
    dead_letters               rows that went to the dead-letter topic from here
    unknown_fields             records, of those looked at, with fields the schema does not know
    unknown_field              the name of one of those fields

A batch that is tried again counts again; so do rows of a node that a query uses twice.
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


@dataclass(frozen=True)
class NodeCounts:
    """What one batch counted at one node. `rules` has rows by the name of the rule that did not hold."""

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
    """The counts in `observedMetrics` of a progress, as its JSON has them; those of users are left out."""
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
