"""Log directories: whose they are, what is in them, and what happens when one fails."""

from __future__ import annotations

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.descriptors import open_below
from tests.faulty_disk import replace_below
from tests.storage.logs import NOW_MS, all_records, append

from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import IntactEpochs, TopicPartition, new_topic_id
from klamm.storage.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    read_offsets,
)
from klamm.storage.files import remove_tree
from klamm.storage.log import Log
from klamm.storage.log_config import LogConfig
from klamm.storage.log_dirs import LogDirError, LogDirs

CONFIG = LogConfig()


class Host:
    """A broker's storage, started and stopped."""

    def __init__(self, *paths: Path) -> None:
        self.paths = paths
        self.reports: list[str] = []
        self.dirs = self.start()

    def start(self) -> LogDirs:
        self.reports.clear()
        self.dirs = LogDirs(self.paths, now_ms=lambda: NOW_MS, report=self.reports.append)
        self.dirs.lock()
        self.dirs.identify(1, "cluster")
        self.dirs.load_logs(lambda topic: CONFIG)
        return self.dirs

    def crash(self) -> None:
        self.dirs.close(clean=False)


def test_a_new_log_goes_where_there_are_fewest(tmp_path: Path) -> None:
    host = Host(tmp_path / "a", tmp_path / "b")
    for number in range(6):
        host.dirs.create_log(TopicPartition("t", number), new_topic_id(), CONFIG)
    assert [len(directory.logs) for directory in host.dirs.directories] == [3, 3]
    host.dirs.put_away_for_deletion([TopicPartition("t", 0)])
    assert not (tmp_path / "a" / "t-0").exists()
    log = host.dirs.create_log(TopicPartition("u", 0), new_topic_id(), CONFIG)
    assert log.directory == tmp_path / "a" / "u-0"
    total, usable = host.dirs.directories[0].disk_space()
    assert 0 < usable <= total


def test_logs_come_back_after_a_clean_stop(tmp_path: Path) -> None:
    host = Host(tmp_path / "a", tmp_path / "b")
    ids = [new_topic_id() for _ in range(4)]
    for number, topic_id in enumerate(ids):
        log = host.dirs.create_log(TopicPartition("with-dash", number), topic_id, CONFIG)
        append(log, number + 1)
    host.dirs.logs[TopicPartition("with-dash", 3)].delete_records_before(2)
    host.dirs.write_high_watermarks({TopicPartition("with-dash", 1): 2})
    host.dirs.close(intact_epochs=IntactEpochs(15, 17))
    assert json.loads((tmp_path / "a" / ".kafka_cleanshutdown").read_text()) == {
        "version": 0,
        "brokerEpoch": 17,
        "intactSinceEpoch": 15,
    }
    logs = host.start().logs
    assert host.reports == []
    assert [log.log_end_offset for _, log in sorted(logs.items())] == [1, 2, 3, 4]
    assert [log.topic_id for _, log in sorted(logs.items())] == ids
    assert logs[TopicPartition("with-dash", 3)].log_start_offset == 2
    assert host.dirs.high_watermark_of(TopicPartition("with-dash", 1)) == 2
    assert host.dirs.directories[0].intact_epochs == IntactEpochs(15, 17)
    assert not (tmp_path / "a" / ".kafka_cleanshutdown").exists()


@pytest.fixture
def synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the test that are synced, in order."""
    paths: list[str] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    replace_below(tmp_path, monkeypatch, "fsync", note)
    return paths


def test_a_log_has_no_files_before_its_first_batch(tmp_path: Path, synced: list[str]) -> None:
    host = Host(tmp_path)
    topic_id = new_topic_id()
    places = [TopicPartition("t", number) for number in range(20)]
    host.dirs.create_logs(places, topic_id, CONFIG)
    for log in host.dirs.logs.values():
        log.begin_epoch(3)
    host.dirs.close()
    assert [os.listdir(tmp_path / str(place)) for place in places] == [[]] * 20
    assert not [path for path in synced if "/t-" in path], "what is empty need not be on the disk"
    host.start()
    host.crash()
    logs = host.start().logs
    assert {log.topic_id for log in logs.values()} == {None}
    logs[places[4]].assign_topic_id(topic_id)
    append(logs[places[4]], 3)
    assert sorted(os.listdir(tmp_path / "t-4")) == [f"{0:020d}.log", "partition.metadata"]
    host.crash()
    assert host.start().logs[places[4]].topic_id == topic_id
    assert len(all_records(host.dirs.logs[places[4]])) == 3


def test_the_first_flush_keeps_a_log_that_was_closed_empty(tmp_path: Path, synced: list[str]) -> None:
    host = Host(tmp_path)
    place = TopicPartition("t", 0)
    host.dirs.create_log(place, new_topic_id(), CONFIG)
    host.dirs.close()
    log = host.start().logs[place]
    log.assign_topic_id(new_topic_id())
    append(log, 1)
    host.crash()
    log = host.start().logs[place]
    synced.clear()
    log.flush()
    directory = tmp_path / "t-0"
    wanted = {tmp_path, directory, directory / "partition.metadata", directory / f"{0:020d}.log"}
    assert {str(path) for path in wanted} <= set(synced)


def test_a_log_that_begins_at_its_leaders_offset_knows_its_topic_after_a_crash(tmp_path: Path) -> None:
    host = Host(tmp_path)
    place, topic_id = TopicPartition("t", 0), new_topic_id()
    host.dirs.create_log(place, topic_id, CONFIG)
    host.dirs.start_at({place: 70})
    host.crash()
    log = host.start().logs[place]
    assert (log.topic_id, log.log_end_offset) == (topic_id, 70)


def test_a_log_that_cannot_be_made_does_not_keep_others_from_it(tmp_path: Path) -> None:
    host = Host(tmp_path)
    (tmp_path / "t-1").write_text("in the way")
    first, failed, last = host.dirs.create_logs(
        [TopicPartition("t", number) for number in range(3)], new_topic_id(), CONFIG
    )
    assert isinstance(first, Log) and isinstance(last, Log)
    assert isinstance(failed, KafkaError) and "cannot create t-1" in str(failed)
    assert set(host.dirs.logs) == {TopicPartition("t", 0), TopicPartition("t", 2)}


def test_a_directory_is_removed_with_all_in_it(tmp_path: Path) -> None:
    for name in ("with-files", "with-directories"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("text")
    (tmp_path / "with-directories" / "below").mkdir()
    (tmp_path / "with-directories" / "below" / "file").write_text("text")
    for name in ("with-files", "with-directories", "gone"):
        remove_tree(str(tmp_path / name))
    assert not list(tmp_path.iterdir())


def test_a_crash_means_recovery(tmp_path: Path) -> None:
    host = Host(tmp_path)
    log = host.dirs.create_log(TopicPartition("t", 0), new_topic_id(), CONFIG)
    append(log, 5)
    log.delete_records_before(3)
    host.dirs.write_log_start_checkpoints()
    host.crash()
    (log,) = host.start().logs.values()
    assert "not closed cleanly" in host.reports[0]
    assert (log.log_start_offset, log.log_end_offset) == (3, 5)
    assert [record.offset for record in all_records(log)] == [0, 1, 2, 3, 4]


def test_only_one_broker_at_a_time(tmp_path: Path) -> None:
    host = Host(tmp_path)
    other = LogDirs([tmp_path], now_ms=lambda: NOW_MS, report=print)
    with pytest.raises(LogDirError, match="in use by another broker"):
        other.lock()
    host.dirs.close()
    other.lock()
    other.unlock()


def test_a_directory_of_another_broker_is_refused(tmp_path: Path) -> None:
    Host(tmp_path).dirs.close()
    dirs = LogDirs([tmp_path], now_ms=lambda: NOW_MS, report=print)
    with pytest.raises(LogDirError, match=r"cluster\.id=cluster"):
        dirs.identify(1, "another")
    with pytest.raises(LogDirError, match=r"node\.id=1"):
        dirs.identify(2, "cluster")
    lines = (tmp_path / "meta.properties").read_text().splitlines()
    assert [line.split("=")[0] for line in lines[1:]] == ["version", "node.id", "cluster.id", "directory.id"]


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LogDirError, match="cannot use the data directory"):
        LogDirs([tmp_path / "file" / "x"], now_ms=lambda: NOW_MS, report=print).lock()


def test_a_failed_directory_goes_offline_alone(tmp_path: Path) -> None:
    host = Host(tmp_path / "a", tmp_path / "b")
    bad = host.dirs.create_log(TopicPartition("t", 0), new_topic_id(), CONFIG)
    good = host.dirs.create_log(TopicPartition("t", 1), new_topic_id(), CONFIG)
    assert host.dirs.take_offline(tmp_path / "a", OSError(5, "Input/output error")) == [bad]
    assert "offline" in host.reports[-1]
    with pytest.raises(KafkaError) as caught:
        append(bad)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    append(good)
    assert (
        host.dirs.create_log(TopicPartition("t", 2), new_topic_id(), CONFIG).directory.parent
        == tmp_path / "b"
    )
    assert list(host.dirs.logs) == [TopicPartition("t", 1), TopicPartition("t", 2)]
    host.dirs.close()
    assert not (tmp_path / "a" / ".kafka_cleanshutdown").exists()


def test_leftovers_of_deletions_and_strangers(tmp_path: Path) -> None:
    host = Host(tmp_path)
    log = host.dirs.create_log(TopicPartition("t", 0), new_topic_id(), CONFIG)
    log.rename_for_delete()
    host.crash()
    (tmp_path / "lost+found").mkdir()
    assert host.start().logs == {}
    assert host.dirs.put_away_before() == [str(log.directory)]


@pytest.mark.parametrize("crashes_between", [False, True], ids=["at once", "after a crash"])
def test_a_log_made_anew_inherits_no_checkpoint(tmp_path: Path, crashes_between: bool) -> None:
    host = Host(tmp_path)
    place = TopicPartition("t", 0)
    log = host.dirs.create_log(place, new_topic_id(), CONFIG)
    append(log, 100)
    log.flush()
    log.delete_records_before(50)
    host.dirs.write_checkpoints()
    host.dirs.put_away_for_deletion([log.topic_partition])
    if crashes_between:
        host.crash()
        host.start()
    append(host.dirs.create_log(place, new_topic_id(), CONFIG), 5)
    host.crash()
    log = host.start().logs[place]
    assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (0, 5, 0)
    assert len(all_records(log)) == 5


def test_a_log_made_anew_inherits_no_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory of the deleted topic could not be renamed; the disk was in trouble."""
    host = Host(tmp_path / "a", tmp_path / "b")
    place = TopicPartition("t", 0)
    old = host.dirs.create_log(place, new_topic_id(), CONFIG)
    append(old, 100)

    def broken(source: str, target: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as failing_disk:
        replace_below(tmp_path, failing_disk, "rename", broken)
        put_away = host.dirs.put_away_for_deletion([old.topic_partition])
        assert put_away.directories == [] and "Input/output" in str(put_away.failures[place])
        with pytest.raises(KafkaError) as caught:
            host.dirs.create_log(place, new_topic_id(), CONFIG)
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    host.dirs.create_log(TopicPartition("u", 0), new_topic_id(), CONFIG)  # so that b is next
    topic_id = new_topic_id()
    log = host.dirs.create_log(place, topic_id, CONFIG)
    assert log.log_end_offset == 0
    (stray,) = (tmp_path / "a").glob("t-0.*-stray")
    assert str(stray) in host.reports[-1]
    assert sum(path.stat().st_size for path in stray.glob("*.log")) > 0, "nobody asked to delete these"
    append(log, 5)
    host.crash()
    logs = host.start().logs
    assert (logs[place].topic_id, logs[place].log_end_offset) == (topic_id, 5)


def test_a_checkpoint_is_written_by_one_at_a_time(tmp_path: Path) -> None:
    host = Host(tmp_path)
    logs = [host.dirs.create_log(TopicPartition("t", number), new_topic_id(), CONFIG) for number in range(20)]
    for log in logs:
        append(log, 100)
    for round_ in range(1, 10):

        def delete_and_write(log: Log, before: int = round_) -> None:
            log.delete_records_before(before)
            host.dirs.write_log_start_checkpoints()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(delete_and_write, logs))
        written = read_offsets(str(tmp_path / LOG_START_FILE))
        assert written == {log.topic_partition: round_ for log in logs}


def test_damaged_checkpoints_do_not_stop_a_start(tmp_path: Path) -> None:
    host = Host(tmp_path)
    append(host.dirs.create_log(TopicPartition("t", 0), new_topic_id(), CONFIG), 3)
    host.dirs.close()
    (tmp_path / "recovery-point-offset-checkpoint").write_bytes(b"\x00" * 10)
    (log,) = host.start().logs.values()
    assert log.log_end_offset == 3
    assert any("recovery-point-offset-checkpoint" in report for report in host.reports)


def test_idle_logs_hold_no_files(tmp_path: Path) -> None:
    host = Host(tmp_path)
    for number in range(100):
        append(host.dirs.create_log(TopicPartition("t", number), new_topic_id(), CONFIG))
    host.dirs.close()
    dirs = host.start()
    assert len(dirs.logs) == 100 and len(dirs.open_files) == 0
    assert open_below(tmp_path) == 1, "only the lock"


def test_high_watermarks_come_back_within_the_log(tmp_path: Path) -> None:
    host = Host(tmp_path)
    places = [TopicPartition("t", number) for number in range(4)]
    for place in places:
        append(host.dirs.create_log(place, new_topic_id(), CONFIG), 10)
    assert [host.dirs.high_watermark_of(place) for place in places] == [0] * 4, "none is known"
    host.dirs.write_high_watermarks({places[0]: 4, places[1]: 99, places[2]: 3})
    for place in places[2:]:
        host.dirs.logs[place].delete_records_before(5)
    host.dirs.close()
    host.start()
    assert [host.dirs.high_watermark_of(place) for place in places] == [4, 10, 5, 5]
    with pytest.raises(KafkaError):
        host.dirs.high_watermark_of(TopicPartition("t", 9))
    topic_id = new_topic_id()
    host.dirs.put_away_for_deletion(places[:1])
    append(host.dirs.create_log(places[0], topic_id, CONFIG), 10)
    assert host.dirs.high_watermark_of(places[0]) == 0, "that was of another log"


def test_truncation_lowers_the_recovery_points_on_the_disk(tmp_path: Path) -> None:
    """What is appended afterwards is checked by recovery."""
    host = Host(tmp_path)
    places = [TopicPartition("t", number) for number in range(3)]
    for place in places:
        log = host.dirs.create_log(place, new_topic_id(), CONFIG)
        for _ in range(10):
            append(log)
        log.flush()
    host.dirs.write_checkpoints()
    assert host.dirs.truncate({places[0]: 4, places[1]: 20, TopicPartition("t", 9): 3}) == {}
    assert host.dirs.start_at({places[2]: 70}) == {}
    assert read_offsets(str(tmp_path / RECOVERY_POINT_FILE)) == {places[0]: 4, places[1]: 10, places[2]: 70}
    log = host.dirs.logs[places[0]]
    append(log, value=b"good", epoch=1)
    append(log, value=b"bad", epoch=1)
    segment = log.segments[-1]
    with open(segment.path(".log"), "r+b") as file:
        file.seek(segment.size - 5)
        file.write(b"?")
    host.crash()
    host.start()
    assert [record.value for record in all_records(host.dirs.logs[places[0]])] == [b"value"] * 4 + [b"good"]
    assert host.dirs.logs[places[2]].log_start_offset == 70


def test_one_log_that_cannot_be_cut_keeps_none_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(tmp_path)
    places = [TopicPartition("t", number) for number in range(2)]
    for place in places:
        log = host.dirs.create_log(place, new_topic_id(), CONFIG)
        append(log)
        append(log)
    (tmp_path / "t-0" / "00000000000000000000.log").unlink()
    host.dirs.logs[places[0]].segments[0].release()
    assert list(host.dirs.truncate({place: 1 for place in places})) == [places[0]]
    assert host.dirs.logs[places[1]].log_end_offset == 1


@pytest.mark.parametrize("moves", ["truncate", "start_at"])
def test_nothing_is_written_before_the_recovery_points_are_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: str
) -> None:
    """Else recovery would trust what is appended below the recovery point of the time before."""
    host, place = Host(tmp_path), TopicPartition("t", 0)
    log = host.dirs.create_log(place, new_topic_id(), CONFIG)
    append(log, 10)
    append(log, 10, epoch=1)
    log.flush()
    host.dirs.write_checkpoints()

    def full(file: object, *arguments: object, **more: object) -> int:
        if str(os.readlink(f"/proc/self/fd/{file}")).endswith(f"{RECOVERY_POINT_FILE}.tmp"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, *arguments, **more)  # type: ignore[arg-type]

    write = os.write
    told: list[TopicPartition] = []
    log.on_failed_write = lambda each, error: told.append(each)
    replace_below(tmp_path, monkeypatch, "write", full)
    (failure,) = getattr(host.dirs, moves)({place: 10}).values()
    monkeypatch.undo()
    assert isinstance(failure, KafkaError) and failure.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.log_end_offset, told, log.is_moved_back_in_part) == (10, [place], True)
    with pytest.raises(KafkaError, match="the disk was full when the log was truncated"):
        append(log)
    assert read_offsets(str(tmp_path / RECOVERY_POINT_FILE)) == {place: 20}
    host.dirs.finish_moving_back(log)
    assert read_offsets(str(tmp_path / RECOVERY_POINT_FILE)) == {place: 10}
    append(log)


def test_a_stop_is_not_clean_while_a_truncation_is_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, place = Host(tmp_path), TopicPartition("t", 0)
    log = host.dirs.create_log(place, new_topic_id(), CONFIG)
    append(log, 5)
    append(log, 5, epoch=1)

    def full(*arguments: object, **more: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    replace_below(tmp_path / "t-0", monkeypatch, "write", full)
    assert list(host.dirs.truncate({place: 5})) == [place]
    monkeypatch.undo()
    host.dirs.close()
    assert any("could not be closed cleanly" in report for report in host.reports)
    assert not (tmp_path / CLEAN_SHUTDOWN_FILE).exists()
    host.start()
    assert host.dirs.logs[place].log_end_offset in (5, 10), "cut as wanted, or not at all"


def test_a_log_made_anew_inherits_no_high_watermark(tmp_path: Path) -> None:
    place, other, host = TopicPartition("t", 0), TopicPartition("other", 0), Host(tmp_path / "a")
    for each in (place, other):
        append(host.dirs.create_log(each, new_topic_id(), CONFIG), 3)
    host.dirs.write_high_watermarks({place: 3, other: 3})
    host.dirs.put_away_for_deletion([place])
    append(host.dirs.create_log(place, new_topic_id(), CONFIG), 3)
    host.crash()
    started = host.start()
    assert (started.high_watermark_of(place), started.high_watermark_of(other)) == (0, 3)
