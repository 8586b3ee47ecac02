"""What commands and `klamm pipeline dev` send to each other, without either."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from rich.text import Text
from tests.pipelines.projects import make_project

from klamm.cli.output import Output
from klamm.cli.pipelines.dev import messages
from klamm.cli.pipelines.dev.messages import Inquiry, NotUnderstood, Screen, Unframing, fingerprint, framed
from klamm.cli.pipelines.dev.recording import TooLong, recorded, screen
from klamm.cli.pipelines.questions import (
    AnyQuestion,
    DiffQuestion,
    LintQuestion,
    PreviewQuestion,
    question_of,
    question_value,
)
from klamm.cli.showing import console, write_rows

INQUIRY = Inquiry(
    {"kind": "lint"},
    "/shop",
    "b:1",
    "local[*]",
    "abc",
    "/",
    {"A": "ü\udc80"},
    Screen(True, 80),
    Screen(False),
)


def test_messages_arrive_in_any_pieces() -> None:
    sent = [INQUIRY.to_json(), {}, {"out": "z" * 1000}, {"status": 0}]
    data = b"".join(framed(each) for each in sent)
    for size in (1, 3, 7, len(data)):
        unframing = Unframing()
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        assert [message for piece in pieces for message in unframing.take(piece)] == sent
    assert Inquiry.of(sent[0]) == INQUIRY


@pytest.mark.parametrize(
    "data",
    [
        (messages.MOST_BYTES + 1).to_bytes(4, "big"),
        (3).to_bytes(4, "big") + b"{]}",
        (2).to_bytes(4, "big") + b"[]",
        (1).to_bytes(4, "big") + b"\xff",
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(NotUnderstood):
        list(Unframing().take(data))


def test_incomplete_inquiries_are_refused() -> None:
    value = INQUIRY.to_json()
    for wrong in ({**value, "out": {"width": 3}}, {**value, "more": 1}, {"question": {}}):
        with pytest.raises(NotUnderstood):
            Inquiry.of(wrong)
    with pytest.raises(ValueError, match="a message has"):
        framed({"out": "x" * messages.MOST_BYTES})


@pytest.mark.parametrize(
    "question",
    [
        LintQuestion(Output.TABLE),
        PreviewQuestion("orders", 5, True, Output.JSON),
        DiffQuestion(("a", "b"), "HEAD~1", 10, 3, Output.JSONL),
    ],
    ids=lambda question: question.kind,
)
def test_questions_are_the_same_on_the_other_side(question: AnyQuestion) -> None:
    unframing = Unframing()
    (value,) = unframing.take(framed(question_value(question)))
    assert question_of(value) == question
    for wrong in ({**value, "kind": "run"}, {**value, "shell": "x"}, {**value, "output": "xml"}, {}):
        with pytest.raises(ValueError, match=r"question|Output"):
            question_of(wrong)


def test_projects_with_other_settings_have_other_fingerprints(tmp_path: Path) -> None:
    toml = '[project]\nname="shop"\n[storage]\nkey="${env:SECRET_OF_SHOP}"\n[kafka]\n"client.id"="a"\n'
    os.environ["SECRET_OF_SHOP"] = "s3cret"
    try:
        project = make_project(tmp_path, "", toml=toml)
    finally:
        del os.environ["SECRET_OF_SHOP"]
    known = fingerprint(project)
    assert fingerprint(replace(project)) == known
    assert "s3cret" not in known
    others = [
        replace(project, bootstrap="other:1"),
        replace(project, storage={"key": "other"}),
        replace(project, run=replace(project.run, retries=7)),
        replace(project, spark={"spark.driver.memory": "3g"}),
    ]
    assert known not in {fingerprint(each) for each in others}


def test_what_is_written_is_recorded_in_order() -> None:
    before = sys.stdout, sys.stderr
    with recorded(Screen(False), Screen(False)) as recording:
        print("a")
        typer.echo("b", err=True)
        typer.echo("c")
        sys.stdout.write("d")
        write_rows(["n"], [[1]], Output.JSONL)
    assert (sys.stdout, sys.stderr) == before
    assert list(recording.messages()) == [{"out": "a\n"}, {"err": "b\n"}, {"out": 'c\nd{"n": 1}\n'}]


def test_a_recording_looks_like_the_commands_terminal() -> None:
    with recorded(Screen(True, 40, "standard"), Screen(False)) as recording:
        assert sys.stdout.isatty() and not sys.stderr.isatty()
        console().print(Text("x" * 50, style="red"))
        console(stderr=True).print(Text("y" * 50, style="red"))
    out, err = recording.messages()
    assert out["out"] == f"\x1b[31m{'x' * 40}\x1b[0m\n\x1b[31m{'x' * 10}\x1b[0m\n"
    assert err["err"] == "y" * 50 + "\n"
    with recorded(Screen(True, 40, None, "ascii"), Screen(False)) as recording:
        write_rows(["n"], [["m"]], Output.TABLE)
    (out,) = recording.messages()
    assert out["out"].isascii()


def test_long_answers_come_in_parts_and_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.cli.pipelines.dev.recording.PART_CHARACTERS", 4)
    monkeypatch.setattr("klamm.cli.pipelines.dev.recording.MOST_CHARACTERS", 10)
    with recorded(Screen(False), Screen(False)) as recording:
        sys.stdout.write("0123456789")
        with pytest.raises(TooLong):
            sys.stderr.write("!")
    assert list(recording.messages()) == [{"out": "0123"}, {"out": "4567"}, {"out": "89"}]


def test_the_screen_of_a_command_that_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert screen() == Screen(False, None, None, sys.stdout.encoding)
