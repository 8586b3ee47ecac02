"""`klamm cluster brokers|reassign|elect` as a user types them, against three brokers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.commands import Shell
from tests.client.topics import unique
from tests.waiting import wait_until

import klamm
from klamm.client.admin.types import ConfigResource, NewTopic
from klamm.testing import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3, racks=["a", "b", "a"]) as made:
        yield made


@pytest.fixture
def on(cluster: Cluster, tmp_path: Path) -> Shell:
    return Shell(tmp_path, cluster.bootstrap)


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[klamm.Admin]:
    with klamm.Admin(cluster.bootstrap) as made:
        yield made


def replicas(admin: klamm.Admin, topic: str) -> list[tuple[int, ...]]:
    return [each.replicas for each in admin.describe_topic(topic).partitions]


def leaders(admin: klamm.Admin, topic: str) -> list[int | None]:
    return [each.leader for each in admin.describe_topic(topic).partitions]


def create(admin: klamm.Admin, placement: dict[int, list[int]]) -> str:
    name = unique("placed")
    admin.create_topics([NewTopic(name, assignments=placement)])
    return name


def last(text: str) -> str:
    return text.splitlines()[-1]


def test_brokers_are_shown_with_their_disks(on: Shell, admin: klamm.Admin) -> None:
    create(admin, {0: [1, 2]})
    lines = on.out("cluster", "brokers").splitlines()
    assert lines[0].split() == ["broker", "address", "rack", "leads", "replicas", "size", "disks"]
    assert [line.split()[0] for line in lines[2:5]] == ["1", "2", "3"] and "% of " in lines[2]
    found = on.json("cluster", "brokers")
    assert [(each["broker_id"], each["rack"], each["alive"]) for each in found] == [
        (1, "a", True),
        (2, "b", True),
        (3, "a", True),
    ]
    assert sum(each["is_controller"] for each in found) == 1
    (disk,) = found[0]["disks"]
    assert 0 < disk["usable_bytes"] < disk["total_bytes"] and disk["replicas"] >= 1


def test_a_topic_moves_to_other_brokers_and_back(on: Shell, admin: klamm.Admin) -> None:
    topic = create(admin, {0: [1, 2], 1: [2, 1]})
    move = ("cluster", "reassign", "-t", topic, "--to", "2,3")
    would = on(*move, "--dry-run")
    assert [line.split()[:4] for line in would.stdout.splitlines()[2:]] == [
        [topic, "0", "1,2", "3,2"],
        [topic, "1", "2,1", "2,3"],
    ]
    assert would.stderr == "klamm: would reassign 2 partitions, copying 0 B\n"
    refused = on(*move)
    assert refused.returncode == 1 and "nothing was done" in refused.stderr
    assert replicas(admin, topic) == [(1, 2), (2, 1)]

    done = on(*move, "-y", "--save", "before.json", "--throttle", "50000000")
    assert (done.returncode, last(done.stderr)) == (0, "klamm: reassigned 2 partitions, copying 0 B"), done
    assert "\x1b" not in done.stderr
    assert replicas(admin, topic) == [(3, 2), (2, 3)]
    settings = admin.describe_config(ConfigResource.topic(topic))
    assert settings["leader.replication.throttled.replicas"].is_default, "the limit is lifted"
    again = on(*move, "-y", "-o", "json")
    assert (json.loads(again.stdout), again.stderr) == ([], "klamm: nothing is to be moved\n")

    back = on.json("cluster", "reassign", "--file", "before.json", "-y")
    assert [(each["replicas"], each["new_replicas"], each["begun"]) for each in back] == [
        ([3, 2], [1, 2], True),
        ([2, 3], [2, 1], True),
    ]
    assert replicas(admin, topic) == [(1, 2), (2, 1)]


def test_a_broker_is_emptied_and_a_topic_gets_more_replicas(on: Shell, admin: klamm.Admin) -> None:
    topic = create(admin, {0: [3], 1: [1]})
    on.out("cluster", "reassign", "-t", topic, "--from-broker", "3", "-y")
    assert replicas(admin, topic)[1] == (1,) and replicas(admin, topic)[0] != (3,)
    on.out("cluster", "reassign", "-t", topic, "--replicas", "3", "-y")
    assert [len(each) for each in replicas(admin, topic)] == [3, 3]


def test_a_slow_move_is_watched_and_cancelled(on: Shell, admin: klamm.Admin, cluster: Cluster) -> None:
    topic = create(admin, {0: [1]})
    with klamm.Producer(cluster.bootstrap) as producer:
        for _ in range(40):
            producer.send(topic, bytes(100_000))
    begun = on("cluster", "reassign", "-t", topic, "--to", "2", "-y", "--throttle", "1", "--no-wait")
    assert last(begun.stderr) == "klamm: then lift the limit: klamm cluster reassign --unthrottle"
    (move,) = on.json("cluster", "reassign", "--status", "-t", topic)
    assert (move["adding"], move["removing"]) == ([2], [1])
    assert move["copied_bytes"] < move["total_bytes"] >= 4_000_000
    line = on.out("cluster", "reassign", "--status").splitlines()[2]
    assert line.split()[:5] == [topic, "0", "2,1", "2", "1"]
    assert "nothing was done" in on.complaint("cluster", "reassign", "--cancel")
    cancelled = on("cluster", "reassign", "--cancel", "-y")
    assert cancelled.stderr == "klamm: cancelled the moves of 1 partition\n"
    assert replicas(admin, topic) == [(1,)]
    lifted = on("cluster", "reassign", "--unthrottle")
    assert lifted.stderr == "klamm: lifted the limits of 0 topics and 0 brokers\n"
    assert on.json("cluster", "reassign", "--status") == []


def test_leaders_are_elected(on: Shell, admin: klamm.Admin, cluster: Cluster) -> None:
    topic = create(admin, {0: [1, 2]})
    admin.alter_partition_reassignments({(topic, 0): [2, 1]})
    wait_until(lambda: replicas(admin, topic) == [(2, 1)], "the order has changed")
    elect = ("cluster", "elect", "preferred")
    assert leaders(admin, topic) == [1]
    would = on(*elect, "-t", topic, "--dry-run")
    assert would.stdout.splitlines()[2].split() == [topic, "0", "1", "2"]
    assert would.stderr == "klamm: would elect leaders of 1 partition\n"
    (elected,) = on.json(*elect, "-t", f"{topic}:0")
    assert elected["elected"] is True
    wait_until(lambda: leaders(admin, topic) == [2], "broker 2 leads")
    again = on(*elect, "--all", "-o", "jsonl")
    assert (again.returncode, last(again.stderr)) == (0, "klamm: elected leaders of 0 partitions")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["reassign"], "a reassignment needs one goal"),
        (["reassign", "--status", "--cancel"], "a reassignment needs one goal"),
        (["reassign", "--to", "1"], "which topics are to move?"),
        (["reassign", "--to", "x", "-t", "*"], "--to x is not valid"),
        (["reassign", "--to", "9", "-t", "*"], "there is no broker 9: there are 1, 2, 3"),
        (["reassign", "--to", "1", "-t", "nowhere"], "there is no topic nowhere"),
        (["reassign", "--from-broker", "9"], "there is no broker 9"),
        (["reassign", "--file", "nothing.json"], "nothing.json cannot be read"),
        (["reassign", "--replicas", "4", "-t", "__*", "-y"], "no topic matches '__*'"),
        (["elect", "preferred"], "an election needs partitions"),
        (["elect", "preferred", "-t", "nowhere"], "nowhere"),
        (["brokers", "-b", "127.0.0.1:1", "--timeout", "1"], "127.0.0.1:1"),
    ],
)
def test_what_cannot_be_done_is_one_line(on: Shell, words: list[str], complaint: str) -> None:
    assert complaint in on.complaint("cluster", *words)


def test_a_broker_that_is_gone_is_named_and_partitions_without_leader_are_elected_uncleanly(
    tmp_path: Path,
) -> None:
    with Cluster(2) as cluster, klamm.Admin(cluster.address(1)) as admin:
        on = Shell(tmp_path, cluster.address(1))
        topic = create(admin, {0: [2, 1]})
        cluster.kill(1)
        wait_until(
            lambda: cluster.broker(2).node.cluster.image.topics[topic].partitions[0].isr == (2,),
            "broker 2 is alone in sync",
        )
        cluster.kill(2)
        cluster.start_broker(1)
        wait_until(lambda: leaders(admin, topic) == [None], "nobody leads")
        shown = on("cluster", "brokers", "-o", "json")
        assert shown.returncode == 1
        assert [(each["broker_id"], each["alive"]) for each in json.loads(shown.stdout)] == [
            (1, True),
            (2, False),
        ]
        elect = ("cluster", "elect", "unclean", "-t", topic)
        assert "nothing was done" in on.complaint(*elect, "-o", "json")
        elected = on(*elect, "-y")
        assert (elected.returncode, last(elected.stderr)) == (0, "klamm: elected leaders of 1 partition")
        assert leaders(admin, topic) == [1]
