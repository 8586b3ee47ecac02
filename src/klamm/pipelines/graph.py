"""The nodes of a project as a graph: a parameter of a function names the node that it reads.

`problems` returns all mistakes in the graph, for lint; `order` raises the first one that concerns a node. No
node can read a pipeline.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from klamm.pipelines.definitions import Node, Pipeline, Source, TableSource
from klamm.pipelines.errors import GraphError


def order(name: str, nodes: Mapping[str, Node]) -> list[Node]:
    """The node and all nodes that it needs, each after its own inputs. Raises GraphError."""
    if name not in nodes:
        raise GraphError(
            f"there is no source, transform or pipeline called {name!r}", advice=_nearest(name, list(nodes))
        )
    for problem in _problems_of(nodes[name], nodes, set()):
        raise problem
    ordered: dict[str, Node] = {}
    _visit(nodes[name], nodes, ordered)
    return list(ordered.values())


def sources_of(name: str, nodes: Mapping[str, Node]) -> list[Source]:
    """The sources that a node reads, directly or through others."""
    return [node for node in order(name, nodes) if isinstance(node, Source)]


def table_sources_of(name: str, nodes: Mapping[str, Node]) -> list[TableSource]:
    """The tables that a node reads, directly or through others."""
    return [node for node in order(name, nodes) if isinstance(node, TableSource)]


def streams_of(name: str, nodes: Mapping[str, Node]) -> list[Source | TableSource]:
    """The sources of a node that have positions: topics, and tables that are not read as snapshots."""
    return [
        node
        for node in order(name, nodes)
        if isinstance(node, Source) or (isinstance(node, TableSource) and not node.is_snapshot)
    ]


def unused(nodes: Mapping[str, Node]) -> list[Node]:
    """Sources and transforms that no pipeline uses."""
    used = {name for node in nodes.values() if isinstance(node, Pipeline) for name in _reached(node, nodes)}
    return [node for node in nodes.values() if not isinstance(node, Pipeline) and node.name not in used]


def problems(nodes: Mapping[str, Node]) -> list[GraphError]:
    """Unknown inputs, inputs that are pipelines, functions without inputs, and circles, each once."""
    told: set[str] = set()
    return [problem for node in nodes.values() for problem in _problems_of(node, nodes, told)]


def _problems_of(node: Node, nodes: Mapping[str, Node], told: set[str]) -> Iterator[GraphError]:
    """The problems of a node and of all nodes that it needs, except those in `told`."""
    pending = [node]
    while pending:
        current = pending.pop()
        if current.name in told:
            continue
        told.add(current.name)
        yield from _own_problems(current, nodes)
        if (circle := _circle(current.name, nodes)) and current.name == min(circle):
            yield GraphError(
                f"these functions need each other in a circle: {' → '.join([*circle, circle[0]])}",
                advice="Remove one of the parameters",
                place=current.place,
            )
        pending += [nodes[name] for name in reversed(current.inputs) if name in nodes]


def _own_problems(node: Node, nodes: Mapping[str, Node]) -> Iterator[GraphError]:
    if isinstance(node, TableSource) and node.is_snapshot and node.expectations:
        yield GraphError(
            f"the source {node.name} is a snapshot, which each batch reads anew: it cannot have expectations",
            advice="Put them on the pipeline that writes the table, or on a transform",
            place=node.expectations[0].place,
        )
    if not isinstance(node, (Source, TableSource)) and not node.inputs and not node.wants_session:
        yield GraphError(
            f"the {node.kind} {node.name} has no inputs",
            advice="Give it a parameter for each input; one called spark gets the session",
            place=node.place,
        )
    for name in node.inputs:
        wanted = nodes.get(name)
        if wanted is None:
            choices = [each.name for each in nodes.values() if not isinstance(each, Pipeline)]
            yield GraphError(
                f"{node.name} has a parameter {name!r}, but there is no source or transform of that name",
                advice=_nearest(name, choices),
                place=node.place,
            )
        elif isinstance(wanted, Pipeline):
            yield GraphError(
                f"{node.name} has a parameter {name!r}, which is a pipeline and cannot be read",
                advice="Move what both need into a transform",
                place=node.place,
            )


def _circle(name: str, nodes: Mapping[str, Node]) -> list[str]:
    """A path from the node back to itself, or an empty list."""
    pending = [[name]]
    seen: set[str] = set()
    while pending:
        way = pending.pop()
        for following in nodes[way[-1]].inputs:
            if following == name:
                return way
            if following in nodes and following not in seen:
                seen.add(following)
                pending.append([*way, following])
    return []


def _visit(node: Node, nodes: Mapping[str, Node], ordered: dict[str, Node]) -> None:
    if node.name not in ordered:
        for name in node.inputs:
            _visit(nodes[name], nodes, ordered)
        ordered[node.name] = node


def _reached(node: Node, nodes: Mapping[str, Node]) -> set[str]:
    reached: set[str] = set()
    pending = list(node.inputs)
    while pending:
        name = pending.pop()
        if name in nodes and name not in reached:
            reached.add(name)
            pending += nodes[name].inputs
    return reached


def _nearest(name: str, names: list[str]) -> str:
    nearest = difflib.get_close_matches(name, names, n=1)
    return f"Did you mean {nearest[0]}?" if nearest else f"There are {', '.join(names) or 'none'}"
