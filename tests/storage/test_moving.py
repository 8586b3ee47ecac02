"""A log is moved to another log directory while it is written to, cut and deleted, and through crashes."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.storage.logs import NOW_MS, all_batches, append
from tests.storage.test_truncation_crashes import crash_in
from tests.waiting import wait_until

from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition, new_topic_id
from klamm.storage import log as log_module
from klamm.storage import moving
from klamm.storage.log import Log
from klamm.storage.log_config import LogConfig
from klamm.storage.log_dirs import LogDirs
from klamm.storage.verify import verify_log_directory

PLACE = TopicPartition("events", 0)
CONFIG = LogConfig(segment_bytes=2_000, index_interval_bytes=150, retention_ms=-1, file_delete_delay_ms=0)


class Disks:
    """Two log directories, with a log in the first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.dirs = self._start()

    def _start(self) -> LogDirs:
        dirs = LogDirs([self.path / "a", self.path / "b"], now_ms=lambda: NOW_MS, report=lambda line: None)
        dirs.lock()
        dirs.identify(1, "cluster")
        dirs.load_logs(lambda topic: CONFIG)
        return dirs

    def restart(self, *, clean: bool = False) -> None:
        self.dirs.close(clean=clean)
        self.dirs = self._start()

    def create(self) -> Log:
        return self.dirs.create_log(PLACE, new_topic_id(), CONFIG)

    @property
    def log(self) -> Log:
        return self.dirs.logs[PLACE]

    @property
    def copy(self) -> Log:
        return self.dirs.futures[PLACE][1]

    def begin(self, to: str = "b") -> None:
        self.dirs.create_future(PLACE, self.dirs.directory_at(str(self.path / to)))

    def copy_all(self) -> None:
        while self.dirs.copy_some(PLACE):
            pass

    def names(self, name: str) -> list[str]:
        return sorted(each for each in os.listdir(self.path / name) if each.startswith("events"))


@pytest.fixture
def disks(tmp_path: Path) -> Disks:
    disks = Disks(tmp_path)
    disks.create()
    return disks


def fill(log: Log, batches: int = 30, *, first: int = 0, epoch: int = 0) -> None:
    for number in range(first, first + batches):
        producer = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 2 * number}
        append(log, 2, value=b"v" * 40, epoch=epoch + number // 10, **producer)


def test_a_log_goes_on_in_its_copy(disks: Disks) -> None:
    log = disks.log
    fill(log)
    log.delete_records_before(5)
    disks.begin()
    disks.copy_all()
    fill(log, 3, first=30)
    log.begin_epoch(9)
    before, epochs = all_batches(log), log.epochs.entries
    put_away = disks.dirs.replace_by_future(PLACE)
    assert put_away is not None and disks.names("a") == [os.path.basename(put_away)]
    assert disks.names("b") == ["events-0"]
    assert disks.log is log and log.directory == disks.path / "b" / "events-0"
    assert all_batches(log) == before
    assert (log.log_start_offset, log.epochs.entries) == (5, epochs)
    assert append(log, 2, producer_id=1, producer_epoch=0, base_sequence=64, epoch=9).is_duplicate
    fill(log, 40, first=33, epoch=9)
    after = all_batches(log)
    for clean in (False, True):
        disks.restart(clean=clean)
        assert all_batches(disks.log) == after
        assert disks.log.log_start_offset == 5
        assert append(disks.log, 2, producer_id=1, producer_epoch=0, base_sequence=144, epoch=9).is_duplicate
    assert disks.names("b") == ["events-0"]
    disks.dirs.close()
    assert verify_log_directory(disks.path / "b" / "events-0") == []


def test_the_newest_bytes_are_copied_while_appends_wait(
    disks: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(disks.log)
    disks.begin()
    disks.copy_all()
    fill(disks.log, 1, first=30)
    monkeypatch.setattr(log_module, "TAIL_BYTES", 100)
    assert disks.dirs.replace_by_future(PLACE) is None, "more than that is missing"
    assert disks.log.directory.parent.name == "a"
    monkeypatch.undo()
    assert disks.dirs.replace_by_future(PLACE) is not None
    assert disks.log.log_end_offset == 62


def test_readers_and_writers_are_not_disturbed(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    log = disks.log
    fill(log, 40)
    expected = all_batches(log)
    is_over = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            while not is_over.is_set():
                for segment in log.segments:
                    log.open_files.forget(segment)  # so that files and indexes are opened again
                assert all_batches(log)[: len(expected)] == expected
                assert log.offset_for_timestamp(NOW_MS + 1) is not None
        except BaseException as error:
            failures.append(error)

    def write() -> None:
        try:
            for number in range(40, 140):
                fill(log, 1, first=number)
                log.flush()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for work in (read, write)]
    for thread in threads:
        thread.start()
    for target in "bab":
        disks.begin(target)
        while disks.dirs.futures:
            disks.copy_all()
            if (put_away := disks.dirs.replace_by_future(PLACE)) is not None:
                shutil.rmtree(put_away)
    is_over.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert all_batches(log)[: len(expected)] == expected


def test_a_read_that_misses_a_file_because_of_a_rename_looks_again(
    disks: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = disks.log
    fill(log)
    find_slice, misses = log_module.find_slice, [1]

    def miss_once(*arguments: Any) -> Any:
        if misses:
            misses.clear()
            log.rename(str(disks.path / "a" / "events-0.renamed"))
            raise FileNotFoundError
        return find_slice(*arguments)

    monkeypatch.setattr(log_module, "find_slice", miss_once)
    assert len(all_batches(log)) == 30 and not misses


@pytest.mark.parametrize("new_epoch", [7, 1])
def test_a_log_is_cut_while_it_is_copied(disks: Disks, new_epoch: int) -> None:
    fill(disks.log, 30)
    disks.begin()
    disks.copy_all()
    assert disks.copy.log_end_offset == 60
    disks.dirs.truncate({PLACE: 24})
    fill(disks.log, 10, first=12, epoch=new_epoch - 1)
    assert disks.dirs.replace_by_future(PLACE) is None, "the copy has records that the log has not"
    disks.copy_all()
    expected = all_batches(disks.log)
    assert disks.dirs.replace_by_future(PLACE) is not None
    assert all_batches(disks.log) == expected and disks.log.log_end_offset == 44


def test_a_cut_without_new_records_is_followed(disks: Disks) -> None:
    fill(disks.log, 30)
    disks.begin()
    disks.copy_all()
    disks.dirs.truncate({PLACE: 4})
    disks.copy_all()
    assert disks.copy.log_end_offset == 4
    assert disks.dirs.replace_by_future(PLACE) is not None
    assert disks.log.log_end_offset == 4 and len(all_batches(disks.log)) == 2


def test_the_start_of_the_log_is_followed(disks: Disks) -> None:
    fill(disks.log, 30)
    disks.begin()
    disks.dirs.copy_some(PLACE)
    disks.log.delete_records_before(33)
    disks.log.delete_expired(NOW_MS)
    disks.copy_all()
    assert disks.copy.log_start_offset == 33
    disks.dirs.start_at({PLACE: 1_000})
    disks.copy_all()
    assert (disks.copy.log_start_offset, disks.copy.log_end_offset) == (1_000, 1_000)
    fill(disks.log, 2, epoch=5)
    assert disks.dirs.replace_by_future(PLACE) is not None
    assert disks.log.log_end_offset == 1_004
    disks.restart()
    assert (disks.log.log_start_offset, disks.log.log_end_offset) == (1_000, 1_004)


@pytest.mark.parametrize("clean", [False, True])
def test_a_restart_goes_on_with_the_copy(disks: Disks, clean: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "STEP_BYTES", 500)
    fill(disks.log, 30)
    disks.log.delete_records_before(3)
    disks.begin()
    for _ in range(5):
        disks.dirs.copy_some(PLACE)
    copied = disks.copy.log_end_offset
    assert 10 < copied < 60
    disks.restart(clean=clean)
    assert disks.copy.log_end_offset == copied and disks.copy.topic_id == disks.log.topic_id
    fill(disks.log, 5, first=30)
    expected = all_batches(disks.log)
    disks.copy_all()
    assert disks.dirs.replace_by_future(PLACE) is not None
    assert all_batches(disks.log) == expected
    assert disks.log.log_start_offset == (3 if clean else 0), "it was not checkpointed before the crash"


def test_a_crash_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # a kill loses nothing that the kernel has
    begun = Disks(tmp_path / "begun")
    fill(begun.create(), 12)
    begun.log.delete_records_before(5)
    begun.begin()
    begun.copy_all()
    fill(begun.log, 1, first=12)
    expected = all_batches(begun.log)
    begun.dirs.write_checkpoints()
    begun.dirs.close(clean=False)
    operations, places = 0, set()
    is_crashed = True
    while is_crashed:
        shutil.copytree(begun.path, tmp_path / "now")
        disks = Disks(tmp_path / "now")

        def move(disks: Disks = disks) -> None:
            disks.dirs.replace_by_future(PLACE)

        is_crashed = crash_in(tmp_path, move, operations, monkeypatch)
        disks.restart()
        assert all_batches(disks.log) == expected
        assert disks.log.log_start_offset == 5
        assert append(disks.log, 2, producer_id=1, producer_epoch=0, base_sequence=24, epoch=1).is_duplicate
        places.add((disks.log.directory.parent.name, PLACE in disks.dirs.futures))
        fill(disks.log, 1, first=13)
        disks.dirs.close()
        assert verify_log_directory(disks.log.directory) == []
        shutil.rmtree(disks.path)
        operations += 1
    assert places == {("a", True), ("b", False)}
    assert operations > 20


def test_the_old_name_is_gone_from_the_disk_before_the_new_one_is_given(
    disks: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a loss of power could leave two logs of one partition."""
    fill(disks.log)
    disks.begin()
    disks.copy_all()
    seen: list[tuple[str, ...]] = []
    rename, fsync = os.rename, os.fsync

    def note_rename(source: str, target: str) -> None:
        if os.path.basename(source).startswith("events-0"):
            seen.append(("rename", os.path.basename(os.path.dirname(source))))
        rename(source, target)

    def note_fsync(fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if path in (str(disks.path / "a"), str(disks.path / "b")):
            seen.append(("sync", os.path.basename(path)))
        fsync(fd)

    monkeypatch.setattr(os, "rename", note_rename)
    monkeypatch.setattr(os, "fsync", note_fsync)
    disks.dirs.replace_by_future(PLACE)
    start = seen.index(("rename", "a"))
    assert seen[start : start + 4] == [("rename", "a"), ("sync", "a"), ("rename", "b"), ("sync", "b")]
    assert ("sync", "b") in seen[:start], "the copy was there before"


def test_what_was_flushed_stays_flushed(disks: Disks) -> None:
    fill(disks.log)
    disks.log.flush()
    disks.begin()
    disks.copy_all()
    fill(disks.log, 1, first=30)
    disks.log.flush()
    assert disks.dirs.replace_by_future(PLACE) is not None
    assert disks.log.recovery_point == 62


def test_a_move_is_called_off(disks: Disks) -> None:
    fill(disks.log)
    disks.begin()
    disks.dirs.copy_some(PLACE)
    (put_away,) = disks.dirs.drop_future(PLACE)
    assert put_away.endswith("-delete") and disks.names("b") == [os.path.basename(put_away)]
    assert disks.dirs.copy_some(PLACE) is None and disks.dirs.replace_by_future(PLACE) is None
    assert disks.dirs.drop_future(PLACE) == []
    disks.begin("a")
    assert not disks.dirs.futures, "it is there already"
    assert disks.log.log_end_offset == 60


def test_a_log_is_deleted_while_it_is_copied(disks: Disks) -> None:
    fill(disks.log)
    disks.begin()
    disks.dirs.copy_some(PLACE)
    copy = disks.copy
    put_away = disks.dirs.put_away_for_deletion([PLACE])
    assert not put_away.failures and len(put_away.directories) == 2
    assert disks.dirs.copy_some(PLACE) is None
    with pytest.raises(KafkaError):
        append(copy, 1)
    with pytest.raises(KafkaError, match="no log here"):
        disks.begin()
    disks.restart()
    assert not disks.dirs.logs and not disks.dirs.futures
    log = disks.create()
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)


def test_a_new_copy_does_not_take_over_offsets_of_an_earlier_log(disks: Disks) -> None:
    fill(disks.log)
    disks.log.delete_records_before(41)
    for target in "ba":
        disks.begin(target)
        disks.copy_all()
        assert disks.dirs.replace_by_future(PLACE) is not None
    disks.dirs.start_at({PLACE: 0})
    fill(disks.log, 2, epoch=9)
    disks.begin("b")
    disks.copy_all()
    disks.restart()
    assert disks.copy.log_start_offset == 0 and disks.copy.log_end_offset == 4


def test_a_directory_that_is_not_there_or_offline(disks: Disks) -> None:
    def refusal(path: Path | str) -> Any:
        with pytest.raises(KafkaError) as refused:
            disks.dirs.directory_at(str(path))
        return refused.value.code

    assert refusal(disks.path / "c") == ErrorCode.LOG_DIR_NOT_FOUND
    assert refusal("b") == ErrorCode.LOG_DIR_NOT_FOUND
    disks.begin()
    disks.dirs.take_offline(disks.path / "b", OSError("gone"))
    assert refusal(disks.path / "b") == ErrorCode.KAFKA_STORAGE_ERROR
    assert disks.dirs.copy_some(PLACE) is None, "the copy is lost with it"
    assert not disks.log.failure


def test_a_log_that_comes_later_is_made_where_it_was_wanted(disks: Disks) -> None:
    later = TopicPartition("events", 1)
    disks.dirs.prefer(later, disks.dirs.directory_at(str(disks.path / "a")))
    log = disks.dirs.create_log(later, new_topic_id(), CONFIG)
    assert log.directory.parent == disks.path / "a", "although b has fewer"


def test_an_incomplete_copy_does_not_replace_a_log_in_a_directory_that_cannot_be_read(disks: Disks) -> None:
    fill(disks.log)
    disks.begin()
    disks.dirs.close(clean=False)
    os.rename(disks.path / "a", disks.path / "away")
    (disks.path / "a").write_text("not a directory")
    dirs = LogDirs([disks.path / "b", disks.path / "a"], now_ms=lambda: NOW_MS, report=lambda line: None)
    dirs.load_logs(lambda topic: CONFIG)
    assert not dirs.logs and not dirs.futures
    assert len(disks.names("b")) == 1 and disks.names("b")[0].endswith("-future")


@pytest.mark.parametrize("clean", [True, False])
def test_an_empty_log_that_begins_above_0_is_there_after_its_move(disks: Disks, clean: bool) -> None:
    fill(disks.log)
    topic_id = disks.log.topic_id
    disks.log.delete_records_before(60)
    disks.dirs.start_at({PLACE: 60})
    disks.begin()
    disks.copy_all()
    assert disks.dirs.replace_by_future(PLACE) is not None
    disks.restart(clean=clean)
    assert (disks.log.log_start_offset, disks.log.log_end_offset) == (60, 60)
    assert disks.log.topic_id == topic_id and disks.names("b") == [str(PLACE)]


def test_a_log_is_made_anew_while_another_goes_on_in_its_copy(
    disks: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both need the checkpoints, and the table of logs."""
    other = TopicPartition("other", 0)
    disks.dirs.create_log(other, new_topic_id(), CONFIG)
    disks.restart(clean=True)
    disks.dirs.put_away_for_deletion([other])
    fill(disks.log)
    disks.begin()
    disks.copy_all()
    go_on_in = Log.go_on_in
    makers: list[threading.Thread] = []

    def make_another_meanwhile(log: Log, *arguments: Any) -> str | None:
        maker = threading.Thread(
            target=disks.dirs.create_log, args=(other, new_topic_id(), CONFIG), daemon=True
        )
        maker.start()
        makers.append(maker)
        wait_until(lambda: disks.dirs._lock.locked(), "the other log is being made")
        return go_on_in(log, *arguments)

    monkeypatch.setattr(Log, "go_on_in", make_another_meanwhile)
    mover = threading.Thread(target=disks.dirs.replace_by_future, args=(PLACE,), daemon=True)
    mover.start()
    mover.join(20)
    makers[0].join(20)
    assert not mover.is_alive() and not makers[0].is_alive(), "neither waits for the other"
    assert {PLACE, other} <= disks.dirs.logs.keys()


def test_a_move_ends_when_the_directory_of_the_log_fails(disks: Disks) -> None:
    fill(disks.log)
    disks.begin()
    disks.dirs.copy_some(PLACE)
    disks.dirs.take_offline(disks.path / "a", OSError("gone"))
    for step in (disks.dirs.copy_some, disks.dirs.replace_by_future):
        with pytest.raises(KafkaError) as raised:
            step(PLACE)
        assert raised.value.code == ErrorCode.KAFKA_STORAGE_ERROR
