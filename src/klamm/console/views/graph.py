"""The graph of pipelines, left to right: producers, topics, pipelines, what they write, and who reads that.

Nodes have places on a grid of layers, so that the browser only draws. Edges carry records per second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from klamm.console.addresses import group_url, pipeline_url, topic_url
from klamm.console.views.overview import Tone
from klamm.console.views.pipelines import PipelineRow, pipeline_rows
from klamm.console.views.rates import rate
from klamm.console.watching import history as cluster_series
from klamm.console.watching.history import History
from klamm.console.watching.picture import Picture
from klamm.console.watching.pipelines import PipelineWatch
from klamm.operating.units import several

MOST_GROUPS = 4
"""Of a topic; the others are counted."""
SWEEPS = 6
"""How often nodes are put beside those that they are connected with."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node. `kind`: producers, topic, pipeline, table, group or sink."""

    id: str
    kind: str
    name: str
    note: str = ""
    href: str = ""
    tone: str = ""
    layer: int = 0
    row: float = 0.0


@dataclass(frozen=True, slots=True)
class Edge:
    """From one node to another. `per_s` is None where it is not known."""

    source: str
    target: str
    per_s: float | None = None
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    nodes: Sequence[Node] = ()
    edges: Sequence[Edge] = ()
    layers: int = 0
    rows: int = 0


@dataclass
class _Parts:
    nodes: dict[str, Node] = field(default_factory=dict)
    edges: dict[tuple[str, str], Edge] = field(default_factory=dict)

    def add(self, node: Node) -> str:
        self.nodes.setdefault(node.id, node)
        return node.id

    def join(self, source: str, target: str, per_s: float | None, tone: str = "") -> None:
        self.edges[source, target] = Edge(source, target, per_s, tone)


def graph(watch: PipelineWatch, picture: Picture, history: History) -> Graph:
    parts = _Parts()
    rows = pipeline_rows(watch)
    locations = {
        each.key: each.outline.location for each in watch.pipelines if each.outline and each.outline.location
    }
    for row in sorted(rows, key=lambda row: row.key):
        _add_pipeline(parts, row, picture, history, locations)
    for each in watch.pipelines:
        for read in each.outline.tables if each.outline is not None else ():
            table = parts.add(Node(f"table {read.location}", "table", read.name, "table"))
            row = next(row for row in rows if row.key == each.key)
            alone = not row.reads_topics and len(row.reads_tables) == 1
            parts.join(table, f"pipeline {each.key}", row.in_per_s if alone else None)
    groups_of_pipelines = {row.group for row in rows}
    for topic in [node.name for node in parts.nodes.values() if node.kind == "topic"]:
        _add_readers(parts, topic, picture, history, groups_of_pipelines)
        _add_producers(parts, topic, picture, history)
    return placed(list(parts.nodes.values()), list(parts.edges.values()))


def _add_pipeline(
    parts: _Parts, row: PipelineRow, picture: Picture, history: History, locations: Mapping[str, str]
) -> None:
    own = parts.add(
        Node(f"pipeline {row.key}", "pipeline", row.name, row.state, pipeline_url(row.key), row.tone)
    )
    for topic in row.reads_topics:
        # Of several topics together, only the sum is known.
        per_s = row.in_per_s if len(row.reads_topics) + len(row.reads_tables) == 1 else None
        parts.join(_topic(parts, topic, picture), own, per_s)
    if row.sink == "topic":
        parts.join(own, _topic(parts, row.target, picture), row.out_per_s)
    elif row.target:
        kind = "table" if row.has_table else "sink"
        href = pipeline_url(row.key, "rows") if row.has_table else ""
        place = locations.get(row.key, row.target)
        target = Node(f"table {place}", kind, row.target, "table" if row.has_table else row.sink, href)
        parts.nodes[target.id] = target
        parts.join(own, target.id, row.out_per_s)
    if row.dead_letters and row.dead_letter_topic:
        refused = _topic(parts, row.dead_letter_topic, picture)
        parts.join(own, refused, row.refused_per_s, Tone.BROKEN)


def _topic(parts: _Parts, topic: str, picture: Picture) -> str:
    state = picture.topics.get(topic)
    if state is None:
        return parts.add(Node(f"topic {topic}", "topic", topic, "no such topic yet", "", Tone.LOOK))
    note = several(state.records, "record") if state.records is not None else "topic"
    return parts.add(Node(f"topic {topic}", "topic", topic, note, topic_url(topic)))


def _add_readers(parts: _Parts, topic: str, picture: Picture, history: History, pipelines: set[str]) -> None:
    names = [name for name in picture.consumers.get(topic, ()) if name not in pipelines]
    names.sort(key=lambda name: (-(picture.groups[name].lag or 0), name))
    for name in names[:MOST_GROUPS]:
        state = picture.groups[name]
        note = f"{state.lag:,} behind" if state.lag else "group"
        own = parts.add(Node(f"group {name}", "group", name, note, group_url(name)))
        alone = len(state.topics) == 1
        parts.join(f"topic {topic}", own, rate(history, cluster_series.consumed(name)) if alone else None)
    if len(names) > MOST_GROUPS:
        more = several(len(names) - MOST_GROUPS, "more group")
        own = parts.add(Node(f"groups {topic}", "group", more, "", topic_url(topic, "consumers")))
        parts.join(f"topic {topic}", own, None)


def _add_producers(parts: _Parts, topic: str, picture: Picture, history: History) -> None:
    """What is written to a topic that no pipeline writes."""
    own = f"topic {topic}"
    per_s = rate(history, cluster_series.produced(topic))
    if topic in picture.topics and not any(edge.target == own for edge in parts.edges.values()):
        source = parts.add(Node(f"producers {topic}", "producers", "producers", ""))
        parts.join(source, own, per_s)


# ---- places


def placed(nodes: Sequence[Node], edges: Sequence[Edge]) -> Graph:
    """The graph with a layer and a row for each node: edges go to the right, and cross little."""
    layers = _layers([node.id for node in nodes], edges)
    columns: dict[int, list[str]] = {}
    for node in nodes:
        columns.setdefault(layers[node.id], []).append(node.id)
    around: dict[str, list[str]] = {node.id: [] for node in nodes}
    for edge in edges:
        around[edge.source].append(edge.target)
        around[edge.target].append(edge.source)
    most = max((len(column) for column in columns.values()), default=0)
    rows: dict[str, float] = {}
    for column in columns.values():
        _spread(column, rows, most)
    for _ in range(SWEEPS):
        for _, column in sorted(columns.items()):
            middle = {one: _mean([rows[other] for other in around[one]] or [rows[one]]) for one in column}
            column.sort(key=lambda one: (middle[one], rows[one]))
            _spread(column, rows, most)
    found = [
        Node(
            node.id,
            node.kind,
            node.name,
            node.note,
            node.href,
            node.tone,
            layers[node.id],
            rows[node.id],
        )
        for node in nodes
    ]
    return Graph(found, list(edges), max(columns, default=-1) + 1, most)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _spread(column: Sequence[str], rows: dict[str, float], most: int) -> None:
    """Put a column's nodes below each other, in the middle of the height."""
    top = (most - len(column)) / 2
    for number, one in enumerate(column):
        rows[one] = top + number


def _layers(names: Sequence[str], edges: Sequence[Edge]) -> dict[str, int]:
    """One more than the layer of what a node comes from. Edges that would close a circle do not count."""
    before: dict[str, list[str]] = {name: [] for name in names}
    for edge in edges:
        before[edge.target].append(edge.source)
    found: dict[str, int] = {}
    for name in names:
        _layer(name, before, found)
    # What comes from nowhere stands beside what it goes to.
    after: dict[str, list[int]] = {}
    for edge in edges:
        if found[edge.target] > found[edge.source]:
            after.setdefault(edge.source, []).append(found[edge.target])
    return {
        name: layer if before[name] or name not in after else min(after[name]) - 1
        for name, layer in found.items()
    }


def _layer(name: str, before: Mapping[str, Sequence[str]], found: dict[str, int]) -> None:
    """Without recursion: a chain of pipelines may be long."""
    open_: dict[str, None] = {}
    stack = [name]
    while stack:
        one = stack[-1]
        if one in found:
            stack.pop()
            continue
        open_[one] = None
        missing = [other for other in before[one] if other not in found and other not in open_]
        if missing:
            stack.append(missing[0])
            continue
        known = [found[other] for other in before[one] if other in found]
        found[one] = max(known) + 1 if known else 0
        open_.pop(one)
        stack.pop()
