from __future__ import annotations

from pathlib import Path

import pytest

from klamm.pipelines import graph
from klamm.pipelines.definitions import Node, Pipeline, Source, TopicSink, Transform
from klamm.pipelines.errors import GraphError, Place


def project_of(**inputs: str) -> dict[str, Node]:
    """Nodes by name: no inputs make a source, an upper-case name a pipeline."""
    nodes: dict[str, Node] = {}
    for line, (name, text) in enumerate(inputs.items()):
        place = Place(Path("a.py"), line)
        names = tuple(text.split())
        if name.isupper():
            nodes[name] = Pipeline(name, len, place, names, to=TopicSink("t"))
        elif names:
            nodes[name] = Transform(name, len, place, names)
        else:
            nodes[name] = Source(name, len, place)
    return nodes


DIAMOND = {
    "orders": "",
    "people": "",
    "clean": "orders",
    "big": "clean people",
    "ALL": "big clean",
    "OTHER": "people",
}


def test_what_is_needed_comes_first() -> None:
    nodes = project_of(**DIAMOND)
    assert [node.name for node in graph.order("ALL", nodes)] == ["orders", "clean", "people", "big", "ALL"]
    assert [node.name for node in graph.order("orders", nodes)] == ["orders"]
    assert [node.name for node in graph.sources_of("ALL", nodes)] == ["orders", "people"]
    assert not graph.problems(nodes)
    assert not graph.unused(nodes)


def test_what_no_pipeline_reaches_is_unused() -> None:
    nodes = project_of(orders="", people="", lonely="people", ALL="orders")
    assert [node.name for node in graph.unused(nodes)] == ["people", "lonely"]


def test_unknown_inputs_are_told_with_the_nearest() -> None:
    nodes = project_of(orders="", clean="ordres", ALL="clean nothing_like_it")
    first, second = graph.problems(nodes)
    assert "a.py:1: clean has a parameter 'ordres'" in str(first)
    assert "Did you mean orders?" in str(first)
    assert "There are orders, clean" in str(second)
    with pytest.raises(GraphError, match="nothing_like_it"):
        graph.order("ALL", nodes)
    assert [node.name for node in graph.order("orders", nodes)] == ["orders"]


def test_a_pipeline_is_an_end() -> None:
    (problem,) = graph.problems(project_of(orders="", ALL="orders", more="ALL"))
    assert "which is a pipeline" in str(problem)


def test_a_circle_is_told_once() -> None:
    nodes = project_of(orders="", b="c orders", c="d", d="b", ALL="d")
    (problem,) = graph.problems(nodes)
    assert "b → c → d → b" in str(problem)
    with pytest.raises(GraphError, match="circle"):
        graph.order("ALL", nodes)


def test_a_node_that_needs_itself_is_a_circle() -> None:
    (problem,) = graph.problems(project_of(orders="", again="orders again"))
    assert "again → again" in str(problem)


def test_a_transform_needs_an_input_or_the_session() -> None:
    nodes: dict[str, Node] = {
        "a": Transform("a", len, Place(Path("a.py"), 1)),
        "b": Transform("b", len, Place(Path("a.py"), 2), wants_session=True),
    }
    (problem,) = graph.problems(nodes)
    assert "the transform a has no inputs" in str(problem)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(GraphError, match=r"Did you mean clean\?"):
        graph.order("claen", project_of(**DIAMOND))
