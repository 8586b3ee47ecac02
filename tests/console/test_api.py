"""The JSON API: what it tells, what it changes, and how it refuses. By HTTP, without a browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.console.running import RunningConsole
from tests.waiting import wait_until

import klamm
from klamm.testing import Broker

ODD = "of a/b ~ café"
ODD_SEGMENT = "of~20a~2Fb~20~7E~20caf~C3~A9"


@pytest.fixture(scope="module", autouse=True)
def contents(broker: Broker, console: RunningConsole) -> Iterator[klamm.Admin]:
    """Thirty records of orders, of which two groups have read some."""
    with klamm.Admin(broker.bootstrap) as admin, klamm.Producer(broker.bootstrap) as producer:
        admin.create_topic("orders", 3)
        for number in range(30):
            producer.send("orders", b"{}", partition=number % 3)
        producer.flush()
        admin.alter_group_offsets("billing", {("orders", number): 4 for number in range(3)})
        admin.alter_group_offsets(ODD, {("orders", 1): 10})
        wait_until(lambda: console.get("/overview")["groups"] == 2, "the groups are seen")
        yield admin


def seen(console: RunningConsole, path: str, **expected: object) -> dict[str, object]:
    """The answer of a path once it has these values: the console looks every few seconds."""

    def has_them() -> dict[str, object] | None:
        status, found = console.ask(f"/api/v1{path}")
        row = found.get("group", found) if status == 200 else {}
        return found if all(row.get(name) == value for name, value in expected.items()) else None

    return wait_until(has_them, f"{path} has {expected}") or {}


def test_it_lists_its_endpoints(console: RunningConsole) -> None:
    listed = {(one["method"], one["path"]): one["what"] for one in console.get("")["endpoints"]}
    assert all(listed.values()), "each says what it is for"
    assert ("GET", "/api/v1/topics/{topic}/partitions") in listed
    assert ("POST", "/api/v1/groups/{group}/seek") in listed


def test_the_overview_has_the_health(console: RunningConsole) -> None:
    found = seen(console, "/overview", lag=18)
    assert found["health"] == {"findings": []}
    assert (found["brokers"], found["offline"], found["under_replicated"]) == (1, 0, 0)
    assert [one["name"] for one in found["behind"]] == ["billing"]


def test_topics_are_searched_sorted_and_paged(console: RunningConsole) -> None:
    seen(console, "/topics/orders", records=30, lag=18, groups=2)
    internal = seen(console, "/topics?show=internal&sort=-records&per_page=1", total=2, pages=2)
    assert internal["rows"][0]["name"] == "orders"  # type: ignore[index]
    assert console.get("/topics?search=ord+ers")["total"] == 1
    assert console.get("/topics?search=nothing")["rows"] == []
    assert console.ask("/api/v1/topics?per_page=0")[0] == 400


def test_partitions_have_offsets_and_replicas(console: RunningConsole) -> None:
    seen(console, "/topics/orders", records=30)
    rows = console.get("/topics/orders/partitions")["rows"]
    assert [(row["partition"], row["first_offset"], row["end_offset"]) for row in rows] == [
        (number, 0, 10) for number in range(3)
    ]
    assert all(row["leader"] == 1 and row["in_sync"] == [1] for row in rows)


def test_a_group_has_its_lag_by_partition(console: RunningConsole) -> None:
    seen(console, "/groups/billing", lag=18, members=0, state="Empty")
    rows = console.get("/groups/billing/offsets")["rows"]
    assert {row["partition"]: row["lag"] for row in rows} == {0: 6, 1: 6, 2: 6}
    assert console.get("/groups/billing/lag?range_s=60")["lag"][-1][1] == 18
    found = console.get(f"/groups/{ODD_SEGMENT}")["group"]
    assert (found["name"], found["lag"]) == (ODD, 0)


def test_what_is_not_there_is_said(console: RunningConsole) -> None:
    for path in ("/topics/nothing", "/topics/nothing/partitions", "/groups/nobody", "/nowhere"):
        status, found = console.ask(f"/api/v1{path}")
        assert status == 404 and "there is no" in found["error"], path


def test_a_topic_is_created_grown_configured_and_deleted(console: RunningConsole) -> None:
    body = {"name": "made", "partitions": 2, "settings": {"retention.ms": "60000"}}
    assert console.ask("/api/v1/topics", body | {"validate_only": True})[0] == 200
    assert console.ask("/api/v1/topics/made")[0] == 404
    status, made = console.ask("/api/v1/topics", body)
    assert (status, made["partitions"]) == (201, 2)
    seen(console, "/topics/made", partitions=2)
    status, found = console.ask("/api/v1/topics", body)
    assert status == 409 and "exists" in found["error"]

    assert console.ask("/api/v1/topics/made/partitions", {"total": 5})[0] == 200
    seen(console, "/topics/made", partitions=5)
    assert console.ask("/api/v1/topics/made/partitions", {"total": 3})[0] == 409

    settings = "/api/v1/topics/made/configs"
    change = {"set": {"retention.ms": "1000", "segment.ms": "2000"}}
    status, found = console.ask(settings, change, "PATCH")
    assert (status, found["undo"]) == (200, {"set": {"retention.ms": "60000"}, "unset": ["segment.ms"]})
    assert value_of(console, "retention.ms") == ("1000", "topic")
    assert console.ask(settings, found["undo"], "PATCH")[0] == 200
    assert value_of(console, "retention.ms") == ("60000", "topic")
    assert value_of(console, "segment.ms")[1] != "topic"
    status, found = console.ask(settings, {"set": {"retention.ms": "soon"}}, "PATCH")
    assert status == 409 and "retention.ms" in found["error"]

    assert console.ask("/api/v1/topics/made", method="DELETE") == (200, {"deleted": "made"})
    assert console.ask("/api/v1/topics/made")[0] == 404
    assert console.ask("/api/v1/topics/made", method="DELETE")[0] == 404


def value_of(console: RunningConsole, name: str) -> tuple[str, str]:
    found = next(one for one in console.get("/topics/made/configs") if one["name"] == name)
    return found["value"], found["source"]


def test_offsets_are_planned_moved_copied_and_deleted(console: RunningConsole, contents: klamm.Admin) -> None:
    contents.alter_group_offsets("mover", {("orders", number): 4 for number in range(3)})
    seek = "/api/v1/groups/mover/seek"
    status, plan = console.ask(seek, {"to": "start", "dry_run": True})
    assert (status, plan["done"], plan["read_again"]) == (200, False, 12)
    assert [(move["old"], move["new"]) for move in plan["moves"]] == [(4, 0)] * 3
    assert offsets_of(contents, "mover") == [4, 4, 4]

    status, plan = console.ask(seek, {"by": 100, "topics": ["orders:1"]})
    assert (status, plan["passed_over"]) == (200, 6)
    assert offsets_of(contents, "mover") == [4, 10, 4]
    assert console.ask("/api/v1/groups/copied/seek", {"like": "mover"})[0] == 200
    assert offsets_of(contents, "copied") == [4, 10, 4]

    for body in ({}, {"to": "start", "by": 1}):
        assert console.ask(seek, body)[0] == 400
    status, found = console.ask(seek, {"too": "start"})
    assert status == 400 and "too" in found["error"]
    status, found = console.ask(seek, {"to": "yesterday"})
    assert status == 409 and "yesterday" in found["error"]

    assert console.ask("/api/v1/groups/copied", method="DELETE")[0] == 200
    wait_until(lambda: console.ask("/api/v1/groups/copied")[0] == 404, "it is gone")


def offsets_of(admin: klamm.Admin, group: str) -> list[int]:
    return [one.offset for _, one in sorted(admin.list_group_offsets(group).items())]


def test_the_search_ranks_what_is_called_like_it(console: RunningConsole) -> None:
    found = console.get("/search?text=orders")["found"]
    assert (found[0]["kind"], found[0]["url"]) == ("topic", "/topics/orders")
    assert [one["kind"] for one in console.get("/search")["found"]][:1] == ["page"]
    assert console.get("/search?text=caf%C3%A9")["found"][0]["url"] == f"/groups/{ODD_SEGMENT}"


def test_brokers_have_their_disks(console: RunningConsole, broker: Broker) -> None:
    wait_until(lambda: console.get("/brokers")[0]["directories"], "the disks are known")
    (row,) = console.get("/brokers")
    assert (row["id"], row["address"], row["is_controller"], row["is_gone"]) == (
        1,
        broker.bootstrap,
        True,
        False,
    )
    (directory,) = row["directories"]
    assert directory["path"] == str(broker.data_dir) and directory["total_bytes"] > 0
