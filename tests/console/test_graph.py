"""The places of a graph's nodes."""

from __future__ import annotations

from klamm.console.views.graph import Edge, Graph, Node, placed


def graph_of(*edges: str) -> Graph:
    """A graph from texts like "a>b"."""
    pairs = [tuple(edge.split(">")) for edge in edges]
    names = dict.fromkeys(name for pair in pairs for name in pair)
    return placed([Node(name, "topic", name) for name in names], [Edge(one, other) for one, other in pairs])


def layers(graph: Graph) -> dict[str, int]:
    return {node.id: node.layer for node in graph.nodes}


def test_every_edge_goes_to_the_right() -> None:
    found = graph_of("in>a", "a>p", "p>t", "t>q", "q>u", "b>q")
    assert layers(found) == {"in": 0, "a": 1, "p": 2, "t": 3, "q": 4, "u": 5, "b": 3}
    assert (found.layers, found.rows) == (6, 2)


def test_a_circle_has_places_too() -> None:
    found = layers(graph_of("a>b", "b>c", "c>a", "a>a"))
    assert sorted(found.values()) == [0, 1, 2]


def test_nodes_stand_beside_those_they_are_connected_with() -> None:
    nodes = [Node(name, "topic", name) for name in ("a", "b", "c", "z", "y", "x")]
    found = placed(nodes, [Edge("a", "x"), Edge("b", "y"), Edge("c", "z")])
    rows = {node.id: node.row for node in found.nodes}
    assert (rows["a"], rows["b"], rows["c"]) == (rows["x"], rows["y"], rows["z"])
    assert sorted((rows["a"], rows["b"], rows["c"])) == [0, 1, 2]


def test_a_long_chain_and_no_nodes_at_all() -> None:
    assert graph_of(*(f"{number}>{number + 1}" for number in range(3000))).layers == 3001
    assert (graph_of().layers, graph_of().rows) == (0, 0)
