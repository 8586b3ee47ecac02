"""What is kept on disk: all of it comes back, and what cannot be used is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from klamm.ingest.errors import IngestError
from klamm.ingest.files import Fingerprint, TailedFile
from klamm.ingest.positions import DATABASE_FILE, Positions, Target
from klamm.ingest.recovery import Block
from klamm.ingest.state_folder import default_folder

FILE = TailedFile(4, "logs/ä.log", 2**64 - 1, 2**63 + 5, Fingerprint.of(b"head"), 2**40)
BLOCKS = [
    Block(number, 4, "logs/ä.log", 10 * number, 10 * number + 10, 3, 1000, 2, 7) for number in (1, 2, 3)
]
TARGET = Target("logs", "topic-id", "cluster-id")


def test_everything_comes_back(tmp_path: Path) -> None:
    positions = Positions(tmp_path / "new/folder")
    assert (positions.target(), positions.files(), positions.blocks()) == (None, [], [])
    positions.note([FILE], blocks=BLOCKS, target=TARGET)
    positions.note(done=[2])
    positions.close()

    positions = Positions(tmp_path / "new/folder")
    assert positions.target() == TARGET
    assert positions.blocks() == [BLOCKS[0], BLOCKS[2]]
    (file,) = positions.files()
    assert [
        getattr(file, name) for name in ("file_id", "path", "device", "inode", "fingerprint", "position")
    ] == [getattr(FILE, name) for name in ("file_id", "path", "device", "inode", "fingerprint", "position")]
    positions.note(gone=[4])
    assert positions.files() == []
    positions.close()


def test_a_note_is_all_or_nothing(tmp_path: Path) -> None:
    positions = Positions(tmp_path)
    positions.note([FILE], blocks=BLOCKS[:1])
    moved = TailedFile(4, "logs/ä.log", 1, 1, FILE.fingerprint, 99)
    with pytest.raises(IngestError):
        positions.note([moved], blocks=BLOCKS[:1])  # is there already
    assert positions.files()[0].position == FILE.position
    positions.note([moved], done=[1])
    assert positions.files()[0].position == 99
    positions.close()


def test_one_tail_at_a_time(tmp_path: Path) -> None:
    first = Positions(tmp_path)
    with pytest.raises(IngestError, match=r"in use.*--state"):
        Positions(tmp_path)
    first.close()
    Positions(tmp_path).close()


@pytest.mark.parametrize("damage", ["all", "middle"])
def test_damage_is_told_with_what_to_do(tmp_path: Path, damage: str) -> None:
    positions = Positions(tmp_path)
    for number in range(100):
        positions.note(blocks=[BLOCKS[0]._replace(block_id=number, path="x" * 500)])
    positions.close()
    path = tmp_path / DATABASE_FILE
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(b"\x55" * len(content) if damage == "all" else content[:middle] + b"\x55" * middle)
    with pytest.raises(IngestError, match=r"positions\.sqlite cannot be used.*move the folder away"):
        Positions(tmp_path)
    assert path.exists(), "nothing is thrown away"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(IngestError, match="--state"):
        Positions(tmp_path / "file/folder")


def test_a_later_form_is_refused(tmp_path: Path) -> None:
    import sqlite3

    Positions(tmp_path).close()
    with sqlite3.connect(tmp_path / DATABASE_FILE) as database:
        database.execute("PRAGMA user_version = 9")
    database.close()
    with pytest.raises(IngestError, match="a newer version"):
        Positions(tmp_path)


def test_the_default_folder_goes_by_topic_and_patterns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    one = default_folder("logs", ["a/*.log", "b.log"], environment)
    assert one.parent == tmp_path / "klamm/ingest"
    assert one == default_folder("logs", ["b.log", str(tmp_path / "a/*.log")], environment)
    assert one != default_folder("logs", ["a/*.log"], environment)
    assert one != default_folder("other", ["a/*.log", "b.log"], environment)
    assert default_folder("logs", ["a"], {}).is_relative_to(Path.home() / ".local/state")
