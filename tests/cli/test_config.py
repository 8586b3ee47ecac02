"""`klamm config …` as a user types it: every verb, in words and in JSON, and what it says when it cannot."""

from __future__ import annotations

import pytest
from tests.cli.commands import Shell
from tests.client.topics import unique

import klamm


def test_settings_of_topics_are_shown_set_and_unset(shell: Shell) -> None:
    prefix = unique("configured")
    names = [f"{prefix}-{number}" for number in (1, 2)]
    with klamm.Admin(shell.bootstrap) as admin:
        for name in names:
            admin.create_topic(name, 1)
    get = ("config", "get", "topic", names[0])
    (before,) = shell.json(*get, "segment.bytes")
    assert (before["topic"], before["value"], before["source"]) == (names[0], "1073741824", "default")
    assert before["documentation"] and before["type"] == "int" and not before["read_only"]

    both = ("config", "set", "topic", f"{prefix}-*", "segment.bytes=10000000", "retention.ms=1000")
    would = shell.out(*both, "--dry-run")
    assert would == f"would change topic {names[0]}\nwould change topic {names[1]}\n"
    assert shell.json(*get, "--changed") == []
    assert shell.json(*both) == [{"topic": name, "changed": True} for name in names]

    lines = shell.out(*get, "--changed").splitlines()
    assert lines[0].split() == ["setting", "value", "set", "in"]
    assert [line.split() for line in lines[2:]] == [
        ["retention.ms", "1000", "topic"],
        ["segment.bytes", "10000000", "topic", "else", "1073741824"],
    ]
    lines = shell.out("config", "get", "topic", f"{prefix}-*", "segment.bytes").splitlines()
    assert [line.split()[0] for line in lines[2:4]] == names
    assert any(line.startswith("segment.bytes: The size") for line in lines)

    assert shell.out("config", "unset", "topic", names[0], "segment.bytes") == f"changed topic {names[0]}\n"
    assert shell.json(*get, "segment.bytes") == [before]


def test_settings_of_brokers_and_groups(shell: Shell) -> None:
    lines = shell.out("config", "get", "broker", "1").splitlines()
    (dirs,) = [line for line in lines if line.startswith("log.dirs ")]
    assert dirs.rstrip().endswith("read-only")
    (secret,) = [line for line in lines if line.startswith("ssl.keystore.key ")]
    assert "(hidden)" in secret
    shell.out("config", "set", "broker", "all", "log.cleaner.backoff.ms=20000")
    (value,) = shell.json("config", "get", "broker", "1", "log.cleaner.backoff.ms")
    assert (value["value"], value["source"], value["default"]) == ("20000", "all brokers", "15000")
    shell.out("config", "unset", "broker", "all", "log.cleaner.backoff.ms")
    shell.out("config", "get", "group", "anyone")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["get", "topic", "nowhere"], "nowhere"),
        (["get", "topic", "nowhere-*"], "no topic matches 'nowhere-*'"),
        (["get", "broker", "x"], "x is not the id of a broker: expected a number, or all"),
        (["get", "broker", "7", "--timeout", "1"], "broker 7"),
        (["get", "broker", "1", "no.such"], "broker 1 has no setting no.such"),
        (["set", "topic", "nowhere", "retention.ms=1"], "nowhere"),
        (
            ["set", "topic", "nowhere", "retention.ms"],
            "setting retention.ms is not valid: expected KEY=VALUE",
        ),
        (["set", "broker", "1", "log.dirs=/x", "--dry-run"], "log.dirs"),
        (["get", "broker", "1", "-b", "127.0.0.1:1", "--timeout", "1"], "127.0.0.1:1"),
    ],
)
def test_what_cannot_be_done_is_one_line(shell: Shell, words: list[str], complaint: str) -> None:
    assert complaint in shell.complaint("config", *words)
