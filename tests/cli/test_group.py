"""`klamm group …` as a user types it: every verb, in words and in JSON, and what it says when it cannot."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.cli.commands import Shell
from tests.client.admin.wire_member import WireMember
from tests.client.topics import unique

import klamm
from klamm.client.results import TopicPartition


@pytest.fixture
def admin(shell: Shell) -> Iterator[klamm.Admin]:
    with klamm.Admin(shell.bootstrap) as made:
        yield made


@pytest.fixture
def topic(shell: Shell, admin: klamm.Admin) -> str:
    """Two partitions of ten records each."""
    name = unique("read")
    admin.create_topic(name, 2)
    with klamm.Producer(shell.bootstrap) as producer:
        for number in range(20):
            producer.send(name, b"value", partition=number % 2)
    return name


def offsets(admin: klamm.Admin, group: str) -> dict[int, int]:
    return {each.partition: one.offset for each, one in admin.list_group_offsets(group).items()}


def test_groups_are_listed_and_described(shell: Shell, admin: klamm.Admin, topic: str) -> None:
    group = unique("billing")
    admin.alter_group_offsets(group, {(topic, 0): 4, (topic, 1): 9})
    table = shell.out("group", "list", f"{group}*").splitlines()
    assert table[0].split() == ["group", "state", "members", "lag", "topics", "protocol"]
    assert table[2].split() == [group, "Empty", "0", "7", topic, "consumer"][: len(table[2].split())]
    (listed,) = shell.json("group", "list", group)
    assert (listed["state"], listed["lag"], listed["topics"], listed["error"]) == ("Empty", 7, [topic], "")
    assert group not in shell.out("group", "list", "--state", "Stable")
    assert f"there is no group {group} in this state" in shell.complaint(
        "group", "list", group, "--state", "Stable"
    )

    lines = shell.out("group", "lag", group).splitlines()
    assert [line.split() for line in lines[2:]] == [
        [group, topic, "0", "4", "10", "6"],
        [group, topic, "1", "9", "10", "1"],
    ]
    lags = shell.json("group", "lag", group)
    assert [(each["partition"], each["committed"], each["end"], each["lag"]) for each in lags] == [
        (0, 4, 10, 6),
        (1, 9, 10, 1),
    ]


def test_a_group_in_use_is_described_and_neither_moved_nor_deleted(
    shell: Shell, admin: klamm.Admin, topic: str
) -> None:
    group = unique("busy")
    member = WireMember(shell.bootstrap, group, TopicPartition(topic, 1))
    try:
        text = shell.out("group", "describe", group)
        assert text.startswith(f"{group}: Stable, 1 member, lag –, coordinator 1, range\n")
        assert f"{topic}:1" in text and "wire-member" in text
        (described,) = shell.json("group", "describe", group)
        assert described["members"][0]["partitions"] == [{"topic": topic, "partition": 1}]
        assert described["partitions"][0]["member"] == member.member_id
        in_use = f"group {group} is in use: it has 1 member. Stop its consumers first"
        assert shell.complaint("group", "seek", group, "--to", "start", "-t", topic, "-y") == in_use
        assert shell.complaint("group", "delete", group, "--dry-run") == in_use
        assert shell.complaint("group", "delete", group, "-y") == in_use
    finally:
        member.close()


def test_offsets_are_moved_and_moved_back(shell: Shell, admin: klamm.Admin, topic: str) -> None:
    group = unique("moved")
    seek = ("group", "seek", group)
    shell.out(*seek, "--to", "4", "-t", f"{topic}:0", "-y")
    assert offsets(admin, group) == {0: 4}

    dry = shell(*seek, "--to", "end", "-t", topic, "--dry-run")
    assert [line.split()[:6] for line in dry.stdout.splitlines()[2:]] == [
        [topic, "0", "4", "10", "0", "6"],
        [topic, "1", "–", "10", "0", "0"],
    ]
    assert dry.stderr == ("klamm: would move 2 partitions: 0 records are read again, 6 are passed over\n")
    refused = shell(*seek, "--to", "end", "-t", topic)
    assert refused.returncode == 1 and "nothing was done" in refused.stderr
    assert offsets(admin, group) == {0: 4}

    done = shell(*seek, "--to", "end", "-t", topic, "-y", "--save", "undo.json")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        0,
        f"klamm: to undo it: klamm group seek {group} --to-file undo.json",
    )
    assert offsets(admin, group) == {0: 10, 1: 10}
    undone = shell.json(*seek, "--to-file", "undo.json", "-y")
    assert [(each["offset"], each["new_offset"], each["moved"]) for each in undone] == [
        (10, 4, True),
        (10, None, True),
    ]
    assert offsets(admin, group) == {0: 4}

    (back,) = shell.json(*seek, "--by", "-3", "-y")
    assert (back["new_offset"], back["read_again"]) == (1, 3)
    there = shell(*seek, "--to", "1", "-o", "jsonl")
    assert (there.returncode, there.stderr) == (0, f"klamm: group {group} is there already\n")
    assert json.loads(there.stdout)["moved"] is False
    shell.out(*seek, "--to", "-90m", "-y")
    assert offsets(admin, group) == {0: 0}
    copy = unique("copy")
    shell.out("group", "seek", copy, "--like", group, "-y")
    assert offsets(admin, copy) == {0: 0}


def test_groups_and_offsets_are_deleted(shell: Shell, admin: klamm.Admin, topic: str) -> None:
    prefix = unique("gone")
    for number in (1, 2):
        admin.alter_group_offsets(f"{prefix}-{number}", {(topic, 0): 4, (topic, 1): 4})
    part = ("group", "delete", f"{prefix}-1", "-t", f"{topic}:1")
    assert shell.out(*part, "--dry-run") == f"would delete 1 offset of {prefix}-1\n"
    assert shell.out(*part, "-y") == f"deleted 1 offset of {prefix}-1\n"
    assert offsets(admin, f"{prefix}-1") == {0: 4}
    assert "nothing was done" in shell.complaint("group", "delete", f"{prefix}*")
    gone = shell.json("group", "delete", f"{prefix}*", "-y")
    assert [(each["group"], each["offsets"], each["deleted"]) for each in gone] == [
        (f"{prefix}-1", 1, True),
        (f"{prefix}-2", 2, True),
    ]
    assert f"no group matches '{prefix}*'" in shell.complaint("group", "list", f"{prefix}*")


def test_names_from_the_cluster_do_not_steer_the_terminal(
    shell: Shell, admin: klamm.Admin, topic: str
) -> None:
    name = f"[red]\x1b[31m{unique('odd')}"
    admin.alter_group_offsets(name, {(topic, 0): 1})
    table = shell.out("group", "list")
    assert name.replace("\x1b", "\\x1b") in table and "\x1b" not in table
    admin.delete_group(name)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["describe", "nobody"], "nobody"),
        (["lag", "nobody"], "nobody"),
        (["delete", "nobody", "-y"], "nobody"),
        (["list", "nobody"], "there is no group nobody"),
        (["list", "nobody-*"], "no group matches 'nobody-*'"),
        (["seek", "nobody", "--to", "start"], "group nobody has no committed offsets"),
        (["seek", "nobody", "--like", "no-one"], "group no-one has no offset of a partition that is there"),
        (["seek", "nobody", "--to", "start", "-t", "nowhere"], "nowhere"),
        (["seek", "nobody", "--to", "sometime"], "sometime names no records: expected start, end"),
        (["seek", "nobody"], "a seek needs one place to go to. Give one of --to, --by"),
        (["seek", "nobody", "--to", "end", "--by", "3"], "Give one of --to, --by, --like and --to-file"),
        (["seek", "nobody", "--to-file", "nothing.json"], "nothing.json cannot be read"),
        (["seek", "nobody", "--to", "end", "-t", "t:x"], "t:x names no partitions"),
        (["list", "-b", "127.0.0.1:1", "--timeout", "1"], "127.0.0.1:1"),
    ],
)
def test_what_cannot_be_done_is_one_line(shell: Shell, words: list[str], complaint: str) -> None:
    assert complaint in shell.complaint("group", *words)
