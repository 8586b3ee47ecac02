"""Which rules the rows of a preview broke: how many rows, and one example with its record and its values.

The counts and examples are observed while the rows are computed (`expectations.py` with `examples`), so this
needs no second pass. A node that a query uses twice counts twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from klamm.pipelines.counting import (
    EXAMPLE_PREFIX,
    OBSERVATION_PREFIX,
    RULE_PREFIX,
    UNDECODABLE,
)
from klamm.pipelines.definitions import DECODE_RULE, Node, Otherwise, Source
from klamm.pipelines.project import Project
from klamm.pipelines.schemas.explaining import json_explainer
from klamm.pipelines.schemas.resolving import schema_of

SHOWN_CHARACTERS = 60
"""The beginning of a value, enough to recognise it."""


@dataclass(frozen=True)
class Rejection:
    """Rows that break a rule of a node: an expectation, or that values can be decoded (DECODE_RULE).

    `record` is the record of one of them ("orders-0 at offset 7"; empty if the functions dropped its
    columns), and `reason` says what is wrong with it.
    """

    node: str
    rule: str
    otherwise: Otherwise
    count: int
    record: str
    reason: str

    def __str__(self) -> str:
        rows = f"{self.count:,} row{'' if self.count == 1 else 's'}"
        what = "could not be decoded" if self.rule == DECODE_RULE else f"broke the expectation {self.rule!r}"
        where = f"{self.record}: " if self.record else ""
        return f"{self.node}: {rows} {what} ({_FATES[self.otherwise]}); for example {where}{self.reason}"


_FATES: Mapping[Otherwise, str] = {
    "warn": "a run only counts them",
    "drop": "a run drops them",
    "dead_letter": "a run sends them to the dead-letter topic",
    "fail": "a run fails",
}


def read_rejections(collected: DataFrame, nodes: Iterable[Node], project: Project) -> list[Rejection]:
    """The rejections of a frame that was built with `explains`, after its `collect`."""
    observed = _observed(collected)
    found = []
    for node in nodes:
        values = observed.get(node.name, {})
        rules: list[tuple[str, Otherwise, str]] = [
            (rule.name, rule.otherwise, f"{RULE_PREFIX}{rule.name}") for rule in node.expectations
        ]
        if isinstance(node, Source):
            rules.insert(0, (DECODE_RULE, node.undecodable, UNDECODABLE))
        for name, otherwise, metric in rules:
            example = values.get(f"{EXAMPLE_PREFIX}{metric}")
            if values.get(metric) and isinstance(example, dict):
                reason = _reason(project, node, name, example)
                found.append(
                    Rejection(node.name, name, otherwise, values[metric], record_text(example), reason)
                )
    return found


def _observed(collected: DataFrame) -> dict[str, dict[str, Any]]:
    """The observed values by node. They belong to the query that `collect` has run."""
    found = {}
    entries = collected._jdf.queryExecution().observedMetrics().iterator()
    while entries.hasNext():
        entry = entries.next()
        if entry._1().startswith(OBSERVATION_PREFIX):
            found[entry._1().removeprefix(OBSERVATION_PREFIX)] = json.loads(entry._2().json())
    return found


def record_text(example: Mapping[str, Any]) -> str:
    if example.get("topic") is None or example.get("offset") is None:
        return ""
    return f"{example['topic']}-{example.get('partition')} at offset {example['offset']}"


def _reason(project: Project, node: Node, rule: str, example: Mapping[str, Any]) -> str:
    error = str(example.get("error") or "")
    if rule == DECODE_RULE:
        if isinstance(node, Source) and node.format == "json" and example.get("value"):
            explain = json_explainer(schema_of(project, node), node.options)
            error = explain(bytes.fromhex(example["value"])) or error
        return error
    values = json.loads(example.get("columns") or "{}")
    shown = ", ".join(f"{name} is {_shown(value)}" for name, value in values.items())
    return f"{shown}, so it {error}" if shown else f"it {error}"


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"
