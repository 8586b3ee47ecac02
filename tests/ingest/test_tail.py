"""Following real files into a real topic."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

import klamm
from klamm.ingest import reading
from klamm.ingest.errors import IngestError
from klamm.ingest.lines import LineRules
from tests.ingest.topics import Tails, records
from tests.waiting import wait_until


def numbered(first: int, end: int) -> list[bytes]:
    return [b"line %d" % number for number in range(first, end)]


def append(path: Path, lines: list[bytes]) -> None:
    with path.open("ab") as file:
        file.write(b"".join(line + b"\n" for line in lines))


def test_lines_arrive_and_positions_are_kept(tails: Tails, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    append(log, numbered(0, 1000))
    assert tails.once().acknowledged == 1000
    append(log, numbered(1000, 1500))
    progress = tails.once()
    assert (progress.acknowledged, progress.resent_records) == (500, 0)
    assert tails.once().acknowledged == 0
    assert sorted(tails.values()) == sorted(numbered(0, 1500))


def test_bytes_are_left_alone(tails: Tails, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"\xff\xfe\x00bad\n\n  spaces  \r\nlast without newline")
    tails.once(keyed=True)
    assert tails.values() == [b"\xff\xfe\x00bad", b"", b"  spaces  ", b"last without newline"]


def test_a_partial_line_waits(tails: Tails, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"one\ntw")
    with tails.following(keyed=True):
        tails.wait_for(1)
        with log.open("ab") as file:
            file.write(b"o\nthree\n")
        tails.wait_for(3)
    assert tails.values() == [b"one", b"two", b"three"]


def test_a_partial_line_is_taken_after_a_while_if_asked_for(tails: Tails, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"one\ntw")
    with tails.following(keyed=True, flush_partial_after_s=0.05):
        tails.wait_for(2)
        with log.open("ab") as file:
            file.write(b"\nthree\n")
        tails.wait_for(3)
    assert tails.values() == [b"one", b"tw", b"three"]


def test_rotation_reads_the_old_file_to_its_end(tails: Tails, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    append(log, numbered(0, 10))
    with tails.following(release_after_s=0.2) as session:
        tails.wait_for(10)
        log.rename(tmp_path / "a.log.1")
        append(tmp_path / "a.log.1", numbered(10, 20))  # by a writer who has not noticed yet
        append(log, numbered(20, 30))
        tails.wait_for(30)
        wait_until(lambda: session.progress.files == 1, "the old file is let go")
    assert sorted(tails.values()) == sorted(numbered(0, 30))


def test_rotation_under_load(tails: Tails, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    total, each = 40, 2000

    def write() -> None:
        for number in range(total):
            append(log, numbered(number * each, (number + 1) * each))
            if number % 10 == 9:
                wait_until(lambda: session.progress.acknowledged > before, "some of it is read")
                shift(tmp_path)

    def shift(folder: Path) -> None:
        for generation in (3, 2, 1):
            older = folder / f"a.log.{generation}"
            if older.exists():
                older.rename(folder / f"a.log.{generation + 1}")
        log.rename(folder / "a.log.1")

    with tails.following("a.log*") as session:
        before = 0
        writer = threading.Thread(target=write)
        writer.start()
        writer.join()
        tails.wait_for(total * each)
    assert sorted(tails.values()) == sorted(numbered(0, total * each))


def test_rotation_while_nobody_looks(tails: Tails, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    append(log, numbered(0, 10))
    tails.once()
    append(log, numbered(10, 20))
    log.rename(tmp_path / "old-a.1")
    append(log, numbered(20, 30))
    tails.once()
    assert sorted(tails.values()) == sorted(numbered(0, 30))


def test_truncation_and_copytruncate(tails: Tails, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    append(log, numbered(0, 100))
    with tails.following() as session:
        tails.wait_for(100)
        shutil.copy(log, tmp_path / "a.log.1")
        os.truncate(log, 0)
        append(log, numbered(100, 300))  # longer than before at once
        tails.wait_for(300)
        log.write_bytes(b"")
        wait_until(lambda: session.progress.truncated_files == 2, "it is noticed")
        append(log, numbered(300, 310))
        tails.wait_for(310)
    assert sorted(tails.values()) == sorted(numbered(0, 310))
    assert any("truncated" in line for line in tails.said)
    assert tails.once().acknowledged == 0


def test_a_file_of_the_same_size_as_before_truncation(tails: Tails, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    append(log, [b"aaaa"])
    with tails.following():
        tails.wait_for(1)
        log.write_bytes(b"bbbb\n")
        tails.wait_for(2)
    assert sorted(tails.values()) == [b"aaaa", b"bbbb"]


def test_deletion_and_files_that_come_back(tails: Tails, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    append(log, numbered(0, 10))
    with tails.following(release_after_s=0.05) as session:
        tails.wait_for(10)
        with log.open("ab") as held:
            log.unlink()
            held.write(b"line 10\n")
        tails.wait_for(11)
        wait_until(lambda: session.progress.files == 0, "it is let go")
        append(log, numbered(11, 20))
        tails.wait_for(20)
        log.rename(tmp_path / "away")
        wait_until(lambda: session.progress.files == 0, "it is let go")
        (tmp_path / "away").rename(log)
        append(log, numbered(20, 25))
        tails.wait_for(25)
    assert sorted(tails.values()) == sorted(numbered(0, 25))


def test_new_files_and_several_patterns(tails: Tails, tmp_path: Path) -> None:
    (tmp_path / "deep/er").mkdir(parents=True)
    append(tmp_path / "one.log", numbered(0, 5))
    (tmp_path / "rotated.log.gz").write_bytes(b"packed\n")
    with tails.following("*.log*", "**/*.txt"):
        tails.wait_for(5)
        append(tmp_path / "deep/er/two.txt", numbered(5, 10))
        append(tmp_path / "three.log", numbered(10, 15))
        tails.wait_for(15)
    assert sorted(tails.values()) == sorted(numbered(0, 15))
    assert [line for line in tails.said if "compressed" in line] == [
        f"{tmp_path / 'rotated.log.gz'} is compressed and is not read"
    ]


def test_from_the_end(tails: Tails, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"old\nolder\nbegun")
    with tails.following(starts_at_end=True, keyed=True) as session:
        wait_until(lambda: session.progress.files == 1, "it is open")
        with log.open("ab") as file:
            file.write(b" and ended\n")
        append(tmp_path / "later.log", [b"whole"])
        tails.wait_for(2)
    append(log, [b"more"])
    tails.once(starts_at_end=True)
    assert sorted(tails.values()) == [b"begun and ended", b"more", b"whole"]


def test_groups_of_lines(tails: Tails, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"2026 start\n  at x\n  at y\n2026 single\n2026 open\n  at z\n")
    rules = LineRules(multiline_start="^2026")
    with tails.following(rules=rules, keyed=True, flush_after_s=0.1):
        tails.wait_for(3)
        append(log, [b"  late"])
        tails.wait_for(4)
    assert tails.values() == [b"2026 start\n  at x\n  at y", b"2026 single", b"2026 open\n  at z", b"  late"]


def test_lines_longer_than_a_chunk(tails: Tails, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CHUNK_BYTES", 1000)
    log = tmp_path / "a.log"
    log.write_bytes(b"short\n" + b"x" * 5000)
    rules = LineRules(max_bytes=100)
    with tails.following(rules=rules, keyed=True):
        tails.wait_for(1)
        with log.open("ab") as file:
            file.write(b"y" * 2500 + b"\nafter\n")
        tails.wait_for(3)
    assert tails.values() == [b"short", b"x" * 100, b"after"]
    (tmp_path / "b.log").write_bytes(b"2026 a\n" + b"z" * 3000 + b"\n2026 b\n")
    progress = tails.once("b.log", rules=LineRules(max_bytes=100, multiline_start="^2026"), keyed=True)
    assert progress.cut_lines == 1
    assert sorted(tails.values()) == sorted(
        [b"short", b"x" * 100, b"after", b"2026 a", b"z" * 100, b"2026 b"]
    )


def test_keys_keep_the_order_and_origins_are_told(tails: Tails, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    lines = [b"%06d" % number + b"." * 300 for number in range(5000)]  # several blocks
    append(log, lines)
    tails.once(keyed=True, with_origin=True)
    table = records(tails.bootstrap, tails.topic)
    assert len(set(table.column("partition").to_pylist())) == 1
    assert table.column("value").to_pylist() == lines
    assert set(table.column("key").to_pylist()) == {str(log).encode()}
    for number in (0, 1, 4999):
        headers = {one["key"]: one["value"] for one in table.column("headers")[number].as_py()}
        assert headers == {"klamm.file": str(log).encode(), "klamm.file.offset": b"%d" % (number * 307)}


def test_without_keys_all_partitions_get_some(tails: Tails, tmp_path: Path) -> None:
    append(tmp_path / "a.log", [b"x" * 500] * 10_000)
    tails.once()
    partitions = records(tails.bootstrap, tails.topic).column("partition").to_pylist()
    assert {partitions.count(number) > 0 for number in range(3)} == {True}


def test_many_small_files_go_together(tails: Tails, tmp_path: Path) -> None:
    for number in range(200):
        append(tmp_path / f"{number}.log", numbered(number * 5, number * 5 + 5))
    assert tails.once().acknowledged == 1000
    assert sorted(tails.values()) == sorted(numbered(0, 1000))


def test_a_topic_of_another_name_is_refused(tails: Tails, tmp_path: Path) -> None:
    append(tmp_path / "a.log", numbered(0, 5))
    tails.once()
    tails.topic = "another"
    with pytest.raises(IngestError, match="--state"):
        tails.once()


def test_records_that_the_topic_refuses_end_it_with_the_reason(tails: Tails, tmp_path: Path) -> None:
    with klamm.Admin(tails.bootstrap) as admin:
        admin.alter_config(klamm.ConfigResource.topic(tails.topic), set={"max.message.bytes": 1000})
    append(tmp_path / "a.log", [b"fits", b"x" * 5000])
    with pytest.raises(IngestError, match=r"sending to .* failed.*MESSAGE_TOO_LARGE"):
        tails.once()
    assert tails.once(rules=LineRules(max_bytes=500)).resent_records == 1
    assert sorted(tails.values()) == [b"fits", b"x" * 500]
