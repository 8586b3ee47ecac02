"""`klamm ingest` as a user types it: data on stdout, the rest on stderr, and an exit status that is true."""

from __future__ import annotations

import gzip
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
from typer.testing import CliRunner, Result

import klamm.testing
from klamm.cli.main import app
from tests.cli.commands import KLAMM, Command
from tests.ingest.topics import records, values, wait_for_more
from tests.records.test_arrow_extra import WITHOUT


@pytest.fixture
def ingest(
    klamm_session: klamm.testing.Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    """Runs a command in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    environment = {"KLAMM_BOOTSTRAP": klamm_session.bootstrap, "XDG_STATE_HOME": str(tmp_path)}
    return lambda *words: CliRunner().invoke(app, ["ingest", *words], env=environment)


def complaint(result: Result) -> str:
    """The line that it fails with."""
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    return result.stderr.splitlines()[-1]


def test_tail_once_and_its_summary(
    ingest: Callable[..., Result], klamm_session: klamm.testing.Broker, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "a.log").write_bytes(b"one\ntwo\n")
    words = ("tail", "*.log", "--topic", topic, "--once", "-o", "json", "--compression", "zstd")
    done = ingest(*words)
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert (summary["acknowledged"], summary["bytes"]) == (2, 8)
    assert done.stderr.splitlines()[-1].startswith("klamm: 2 lines (8 B)")
    assert sorted(values(klamm_session.bootstrap, topic)) == [b"one", b"two"]
    (state,) = (tmp_path / "klamm/ingest").iterdir()
    assert state.name.startswith(topic)


def test_in_a_project_its_brokers_are_used(
    klamm_session: klamm.testing.Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f'[project]\nname = "shop"\nbootstrap = "{klamm_session.bootstrap}"\n[kafka]\nlinger.ms = 1\n'
    (tmp_path / "klamm.toml").write_text(text)
    (tmp_path / "events").mkdir()
    (tmp_path / "events/a.jsonl").write_text('{"n": 1}\n')
    monkeypatch.chdir(tmp_path / "events")
    monkeypatch.delenv("KLAMM_BOOTSTRAP", raising=False)
    done = CliRunner().invoke(app, ["ingest", "replay", "a.jsonl", "--topic", topic])
    assert done.exit_code == 0, done.output
    assert values(klamm_session.bootstrap, topic) == [b'{"n": 1}']
    (tmp_path / "klamm.toml").write_text("[project]\n")
    done = CliRunner().invoke(app, ["ingest", "replay", "a.jsonl", "--topic", topic])
    assert "the project has no name" in complaint(done) and "--bootstrap" in complaint(done)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_ends_it_with_everything_sent(
    klamm_session: klamm.testing.Broker, topic: str, tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "a.log").write_bytes(b"one\ntwo\n")
    words = ("tail", "a.log", "--topic", topic, "--bootstrap", klamm_session.bootstrap, "--state", "state")
    with Command([KLAMM, "ingest", *words], tmp_path) as command:
        wait_for_more(klamm_session.bootstrap, topic, 1)
        assert command.stop(number) == 0, command
        assert "2 lines" in command.complained[-1]
        assert "\x1b" not in "".join(command.complained), "no live line off a terminal"


def test_tail_says_what_is_wrong(
    ingest: Callable[..., Result],
    klamm_session: klamm.testing.Broker,
    topic: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "a.log").write_bytes(b"one\n")
    common = ("tail", "a.log", "--topic", topic, "--once")
    assert "RE2" in complaint(ingest(*common, "--multiline-start", "("))
    assert ingest("tail", "b/*.log", "--topic", topic, "--once").exit_code == 0
    assert "no file matches b/*.log" in caplog.text
    (tmp_path / "state").mkdir()
    (tmp_path / "state/positions.sqlite").write_bytes(b"not a database, but long enough" * 100)
    said = complaint(ingest(*common, "--state", "state"))
    assert "positions.sqlite" in said and "move the folder away" in said
    assert values(klamm_session.bootstrap, topic) == []


def test_replay(
    ingest: Callable[..., Result],
    caplog: pytest.LogCaptureFixture,
    klamm_session: klamm.testing.Broker,
    topic: str,
    tmp_path: Path,
) -> None:
    rows = [b'{"id": "a", "at": 1700000000}', b"oops", b'{"id": "b", "at": 1700000000.05}']
    with gzip.open(tmp_path / "rows.jsonl.gz", "wb") as file:
        file.write(b"\n".join(rows))
    words = ("replay", "rows.jsonl.gz", "--topic", topic)
    said = complaint(ingest(*words))
    assert "rows.jsonl.gz, line 2: it is not JSON" in said and "--on-error skip" in said
    assert values(klamm_session.bootstrap, topic) == [rows[0]], "what was before it is sent"

    options = ("--on-error", "skip", "--key", "id", "--time", "at", "--speed", "2x")
    done = ingest(*words, *options)
    assert done.exit_code == 0, done.output
    assert "rows.jsonl.gz, line 2" in caplog.text
    assert "1 bad lines skipped" in done.stderr
    table = records(klamm_session.bootstrap, topic)
    found = {row["key"]: (row["value"], row["timestamp"].timestamp()) for row in table.to_pylist()}
    assert found[b"a"] == (rows[0], 1_700_000_000) and found[b"b"] == (rows[2], 1_700_000_000.05)


def test_replay_of_csv(
    ingest: Callable[..., Result], klamm_session: klamm.testing.Broker, topic: str, tmp_path: Path
) -> None:
    text = "\ufeffid,amount\n" + "".join(f"{number},{number}.5\n" for number in range(10_000))
    with pyarrow.CompressedOutputStream(str(tmp_path / "rows.csv.zst"), "zstd") as file:
        file.write(text.encode())
    words = ("replay", "rows.csv.zst", "--topic", topic, "--types", "infer", "--limit", "9000")
    done = ingest(*words)
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("klamm: 9,000 lines")
    found = sorted(json.loads(value)["id"] for value in values(klamm_session.bootstrap, topic))
    assert found == list(range(9000))


def test_replay_at_a_rate(ingest: Callable[..., Result], topic: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b"{}\n" * 11)
    words = ("replay", "rows.jsonl", "--topic", topic, "--rate", "20/s", "-o", "json")
    summary = json.loads(ingest(*words).stdout)
    assert summary["acknowledged"] == 11 and summary["seconds"] >= 0.5


def test_replay_says_what_is_wrong(ingest: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(b"{}")
    common = ("replay", "rows", "--topic", "t")
    assert "--format" in complaint(ingest(*common))
    assert "--time" in complaint(ingest(*common, "--speed", "2x"))
    assert "1000/s" in complaint(ingest(*common, "--rate", "-1"))
    assert "KEY=VALUE" in complaint(ingest(*common, "--format", "jsonl", "--set", "linger.ms"))
    assert "no such file" in complaint(ingest("replay", "gone.csv", "--topic", "t"))
    assert ingest("replay", "rows").exit_code == 2, "an option is missing"


def test_without_the_extra_a_sentence_says_what_to_install(tmp_path: Path) -> None:
    code = WITHOUT.format(missing="pyarrow") + (
        "sys.argv[1:] = ['ingest', 'tail', 'a.log', '--topic', 't']\n"
        "from klamm.cli.main import main\nmain()\n"
    )
    with Command([sys.executable, "-c", code], tmp_path) as command:
        assert command.wait() == 1
        assert command.complained == [
            "klamm: Arrow columns need a package that is missing (pyarrow): pip install 'klamm[arrow]'"
        ]
