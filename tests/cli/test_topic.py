"""`klamm topic …` as a user types it: every verb, in words and in JSON, and what it says when it cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.commands import KLAMM, Shell, clean_environment
from tests.waiting import wait_until

import klamm
from klamm.cli.main import NOUNS


def test_topics_are_created_shown_changed_and_deleted(shell: Shell) -> None:
    create = ("topic", "create", "typed-1", "typed-2", "-p", "3", "-c", "retention.ms=1000")
    assert shell.out(*create, "--dry-run").startswith("would create typed-1")
    assert "no topic matches 'typed-*'" in shell.complaint("topic", "list", "typed-*")
    made = shell.out(*create)
    assert made == "created typed-1: 3 partitions × 1 replica\ncreated typed-2: 3 partitions × 1 replica\n"
    again = shell("topic", "create", "typed-1", "--if-not-exists")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "typed-1 exists already\n")
    assert "typed-1" in shell.complaint("topic", "create", "typed-1")

    table = shell.out("topic", "list", "typed-*").splitlines()
    assert table[0].split() == ["topic", "partitions", "replicas", "size"]
    assert [line.split()[:3] for line in table[2:4]] == [["typed-1", "3", "1"], ["typed-2", "3", "1"]]
    listed = {each["topic"]: each for each in shell.json("topic", "list", "typed-*")}
    assert listed["typed-1"]["partitions"] == 3 and listed["typed-1"]["under_replicated"] == []

    shell.out("topic", "produce", "typed-1", "-p", "1", stdin="a\nb\n")
    text = shell.out("topic", "describe", "typed-1")
    assert text.startswith("typed-1: 3 partitions, 1 replica, ") and "  retention.ms = 1000" in text
    (described,) = shell.json("topic", "describe", "typed-1")
    assert described["config"] == {"retention.ms": "1000"}
    assert [each["end_offset"] for each in described["partitions"]] == [0, 2, 0]
    assert described["size_bytes"] > 0 and described["partitions"][1]["leader"] == 1

    alter = ("topic", "alter", "typed-1", "-p", "5", "-c", "retention.ms=2000", "--unset", "segment.ms")
    assert "nothing was done" in shell.complaint(*alter)
    assert shell.out(*alter, "--dry-run") == "would change typed-1\n"
    assert shell.out(*alter, "--yes") == "changed typed-1\n"
    (described,) = shell.json("topic", "describe", "typed-1")
    assert len(described["partitions"]) == 5 and described["config"] == {"retention.ms": "2000"}
    assert "a topic can only get more" in shell.complaint("topic", "alter", "typed-1", "-p", "2", "--yes")
    assert "nothing is to be changed" in shell.complaint("topic", "alter", "typed-1")

    assert "nothing was done" in shell.complaint("topic", "delete", "typed-*")
    kept = shell.out("topic", "delete", "typed-*", "--dry-run")
    assert kept == "would delete typed-1\nwould delete typed-2\n"
    gone = shell.json("topic", "delete", "typed-*", "--yes")
    assert gone == [{"topic": "typed-1", "deleted": True}, {"topic": "typed-2", "deleted": True}]
    assert "typed-1" in shell.complaint("topic", "delete", "typed-1", "--yes")


def test_records_go_in_and_come_out(shell: Shell) -> None:
    shell.out("topic", "create", "piped", "-p", "1")
    sent = shell("topic", "produce", "piped", "-K", ":", "-H", "from=test", stdin="a:1\nb:2\nc:3\n")
    assert (sent.returncode, sent.stderr) == (0, "klamm: 3 records to piped, 6 B\n")
    consume = ("topic", "consume", "piped")
    assert shell.out(*consume, "-e") == "1\n2\n3\n"
    assert shell.out(*consume, "-n", "2") == "1\n2\n"
    assert shell.out(*consume, "--from", "-1", "-e", "-f", "%t %p %o %k %v %h") == "piped 0 2 c 3 from=test\n"
    assert shell.out(*consume, "--from", "1:2") == "2\n"
    assert shell.out(*consume, "-e", "--filter", "key = c or value = 1") == "1\n3\n"
    assert shell.out(*consume, "--from", "end", "-e") == ""
    assert shell.out(*consume, "--from", "@-1h", "-e") == "1\n2\n3\n"
    assert shell.out(*consume, "--from", "@-2h:@-1h") == ""
    records = json.loads(shell.out(*consume, "-e", "-o", "json"))
    assert [(each["key"], each["value"], each["offset"]) for each in records] == [
        ("a", "1", 0),
        ("b", "2", 1),
        ("c", "3", 2),
    ]
    copied = shell.out(*consume, "-e", "-o", "jsonl")
    shell.out("topic", "create", "copied", "-p", "1")
    shell.out("topic", "produce", "copied", "--jsonl", stdin=copied)
    assert [json.loads(line)["headers"] for line in copied.splitlines()] == [
        [{"name": "from", "value": "test"}]
    ] * 3
    lines = shell.out("topic", "consume", "copied", "-e", "-o", "jsonl").splitlines()
    again = [json.loads(line) for line in lines]
    assert [each | {"topic": "piped"} for each in again] == records
    value = json.loads(shell.out("topic", "produce", "piped", "-k", "d", "--value", "4", "-o", "jsonl"))
    assert value == {"topic": "piped", "records": 1, "bytes": 2, "last_offsets": {"0": 3}}
    nothing = shell.out("topic", "produce", "piped", "-k", "e", "-Z", "-D", "\\0", stdin=b"\0two\nlines\0")
    assert nothing == ""
    tail = shell.out(*consume, "--from", "4", "-e", "-f", "%k %V %v|\\n")
    assert tail == "e -1 |\ne 9 two\nlines|\n"


def test_a_group_reads_on_where_it_was(shell: Shell) -> None:
    shell.out("topic", "create", "shared", "-p", "2")
    shell.out("topic", "produce", "shared", stdin="".join(f"{n}\n" for n in range(10)))
    first = shell.out("topic", "consume", "shared", "-g", "readers", "-n", "10")
    assert sorted(first.split(), key=int) == [str(n) for n in range(10)]
    shell.out("topic", "produce", "shared", "--value", "new")
    assert shell.out("topic", "consume", "shared", "-g", "readers", "-n", "1") == "new\n"


def test_new_records_are_followed_until_the_reader_has_enough(shell: Shell) -> None:
    """As `klamm topic consume orders | head -2` does."""
    shell.out("topic", "create", "followed", "-p", "1")
    process = subprocess.Popen(
        [KLAMM, "topic", "consume", "followed", "--from", "end"],
        env=clean_environment(KLAMM_BOOTSTRAP=shell.bootstrap),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        with klamm.Producer(shell.bootstrap) as producer:

            def first_line() -> bytes:
                producer.send("followed", b"tick").result()
                import select

                assert process.stdout is not None
                return process.stdout.readline() if select.select([process.stdout], [], [], 0.2)[0] else b""

            assert wait_until(first_line, "a record comes out") == b"tick\n"
            process.stdout.close()
            wait_until(
                lambda: (producer.send("followed", b"more").result(), process.poll())[1] is not None,
                "the command ends when nobody reads on",
            )
        assert (process.returncode, process.stderr.read()) == (0, b"")
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["consume", "nowhere", "-e"], "nowhere"),
        (["consume", "refusing", "--from", "first"], "first names no records: expected start, end, 5, -10"),
        (["consume", "refusing", "-f", "%q"], "%q in the format is not known"),
        (["consume", "refusing", "-f", "%v", "-o", "json"], "--format and --output cannot be combined"),
        (["consume", "refusing", "--filter", "city ="], "the filter is not complete"),
        (["consume", "refusing", "-p", "7"], "refusing has no partition 7: it has 0 to 0"),
        (["consume", "refusing", "-g", "g", "--from", "5"], "a group begins at start, end or a time"),
        (["consume", "refusing", "-g", "g", "-e"], "a group shares out partitions by itself"),
        (["describe", "nowhere"], "nowhere"),
        (["create", "a/b"], "a/b"),
        (["create", "x", "-c", "retention.ms"], "--config retention.ms is not valid: expected KEY=VALUE"),
        (["alter", "refusing", "-c", "retention.ms=soon"], "retention.ms"),
        (["list", "-X", "no.such.key=1"], "no.such.key"),
        (["list", "--profile", "nobody"], "there is no profile nobody: there are none"),
    ],
)
def test_what_cannot_be_done_is_one_line(shell: Shell, words: list[str], complaint: str) -> None:
    shell.out("topic", "create", "refusing", "-p", "1", "--if-not-exists")
    assert complaint in shell.complaint("topic", *words)


def test_nobody_answers(tmp_path: Path) -> None:
    shell = Shell(tmp_path, "127.0.0.1:1")
    assert "127.0.0.1:1" in shell.complaint("topic", "list", "--timeout", "1")


def test_help_is_quick_and_names_the_nouns(tmp_path: Path) -> None:
    """The nouns' own modules are not imported for it, nor is asyncio."""
    code = """
import sys
from klamm.cli.main import app
app(["--help"], standalone_mode=False)
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for noun in NOUNS:
        assert f" {noun} " in done.stdout
    loaded = set(done.stdout.splitlines()[-1].split())
    assert not {"asyncio", "klamm.cli.topic", "klamm.cli.pipeline", "klamm.client"} & loaded
