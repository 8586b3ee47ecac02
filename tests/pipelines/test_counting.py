from __future__ import annotations

from klamm.pipelines.counting import NodeCounts, observation_name, read_counts


def test_counts_are_read_from_progress() -> None:
    observed: dict[str, dict[str, object]] = {
        observation_name("orders"): {
            "rows": 10,
            "undecodable": 2,
            "dead_letters": 3,
            "rule:amount is positive": 1,
            "unknown_fields": 4,
            "unknown_field": "colour",
        },
        "klamm.clean": {"rows": 7, "rule:a": None},
        "of the user": {"rows": 3},
    }
    assert read_counts(observed) == [
        NodeCounts("orders", 10, 2, 3, 4, "colour", {"amount is positive": 1}),
        NodeCounts("clean", 7, rules={"a": 0}),
    ]
