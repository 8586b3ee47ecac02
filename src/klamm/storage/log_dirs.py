"""The log directories of a broker: which logs there are, where a new one goes, what is remembered.

A broker that stops in good order leaves `.kafka_cleanshutdown` in each directory; the next start takes it
away, and without it every log is recovered. A directory whose disk fails goes offline with its logs; the
others go on.

A log moves to another directory in three steps: `create_future` begins a copy there, `copy_some` fills the
copy while the log is read and written, and `replace_by_future` has the log go on in the copy's files. The old
directory gets its `-delete` name first; once that rename is on the disk, the copy loses its `-future` name.
So after a crash, a `-future` directory whose log still exists is an unfinished copy, and one whose log does
not exist has replaced it.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import NEVER_INTACT, IntactEpochs, TopicId, TopicPartition
from klamm.storage.checkpoints import (
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
    CorruptCheckpoint,
    drop_offsets,
    read_offsets,
    read_partition_metadata,
    write_offsets,
)
from klamm.storage.directory_names import DELETE_SUFFIX, STRAY_SUFFIX, future_name, put_away
from klamm.storage.files import remove_tree
from klamm.storage.log import Log
from klamm.storage.log_config import LogConfig
from klamm.storage.log_dir import DamagedLog, LogDir
from klamm.storage.log_dir import LogDirError as LogDirError
from klamm.storage.moving import align, copy_some
from klamm.storage.segments.open_files import OpenFiles

RECOVERY_THREADS = 4
"""Recovery reads and checksums outside the interpreter's lock; more threads only crowd the disk."""

RECOVERY_SHARE = 8
"""Logs that a thread recovers before it asks for more: asking takes longer than opening an empty log."""

_OF_THE_WHOLE_DISK = frozenset({errno.EIO, errno.EROFS})
"""Errors that take a log directory offline; others concern the one log that was opened."""

_EVER_MS = 2**63

Failures = dict[TopicPartition, OSError | KafkaError]
"""The logs that could not be cut. A LogDirFailure takes the whole log directory offline."""

MoveBack = Callable[[Log, int, int, Callable[[], None]], object]

SYNC_THREADS = 16
"""File systems join the fsyncs that wait at the same time into one."""


class PutAway(NamedTuple):
    """The new names of directories that were put away, and the logs whose directory could not be."""

    directories: list[str]
    failures: dict[TopicPartition, OSError]


class LogDirs:
    def __init__(
        self,
        paths: Iterable[Path | str],
        *,
        now_ms: Callable[[], int],
        report: Callable[[str], None],
        open_files: OpenFiles | None = None,
    ) -> None:
        self.directories = [LogDir(Path(path).absolute()) for path in paths]
        self.open_files = OpenFiles() if open_files is None else open_files  # an empty one counts, too
        self._high_watermarks: dict[TopicPartition, int] = {}
        """As they were checkpointed when the logs were loaded."""
        self._preferred: dict[TopicPartition, LogDir] = {}
        """Where logs are wanted that are not there yet."""
        self._now_ms = now_ms
        self._report = report
        self._moving_lock = threading.Lock()
        """Held while logs are cut, put away, or change their directory."""
        self._lock = threading.Lock()
        self._checkpoint_lock = threading.Lock()
        """Held from reading offsets until they are written: else older ones could replace newer ones."""

    def lock(self) -> None:
        """Lock all directories for this process; raises LogDirError if one is in use or not usable."""
        try:
            for directory in self.directories:
                directory.lock()
        except BaseException:
            self.unlock()
            raise

    def identify(self, node_id: int, cluster_id: str) -> None:
        """Check that the directories belong to this broker; raises LogDirError."""
        for directory in self.directories:
            directory.identify(node_id, cluster_id)

    def unlock(self) -> None:
        for directory in self.directories:
            directory.unlock()

    @property
    def online(self) -> Sequence[LogDir]:
        return [directory for directory in self.directories if not directory.is_offline]

    @property
    def logs(self) -> dict[TopicPartition, Log]:
        return {tp: log for directory in self.online for tp, log in directory.logs.items()}

    @property
    def futures(self) -> dict[TopicPartition, tuple[LogDir, Log]]:
        """The copies of logs that are being moved, and where they are moved to."""
        return {tp: (directory, copy) for directory in self.online for tp, copy in directory.futures.items()}

    @property
    def damaged(self) -> dict[TopicPartition, DamagedLog]:
        """Logs that could not be opened."""
        return {tp: log for directory in self.online for tp, log in directory.damaged.items()}

    # Starting and stopping.

    def load_logs(self, config_of: Callable[[str], LogConfig]) -> dict[TopicPartition, Log]:
        """Open every log, with the settings that `config_of` gives for the name of its topic.

        Logs are recovered unless the last stop was clean. One that cannot be opened goes to `damaged`.
        """
        self._complete_moves()
        for directory in self.directories:
            try:
                self._load_directory(directory, config_of)
            except OSError as error:
                self.take_offline(directory.path, error)
        if not self.online:
            raise LogDirError(
                "no data directory can be used: the log above says why for each; repair one, or set log.dirs"
            )
        logs = self.logs
        for directory in self.online:  # a copy whose log is damaged is left for a person to look at
            directory.futures = {tp: copy for tp, copy in directory.futures.items() if tp in logs}
        return logs

    def _complete_moves(self) -> None:
        """A copy without a log has become the log, and a crash came before its directory was renamed. What is
        in a directory that cannot be read is not known: then all stay as they are."""
        try:
            present = {tp for directory in self.directories for tp in directory.partition_directories()}
            for directory in self.directories:
                for topic_partition, path in directory.future_directories():
                    if topic_partition not in present:
                        present.add(topic_partition)
                        os.rename(path, directory.file(str(topic_partition)))
                        self._report(
                            f"{topic_partition} was being moved to {directory.path}: it is there now"
                        )
        except OSError as error:
            self._report(f"moves of logs that were interrupted are not completed: {error}")

    def _load_directory(self, directory: LogDir, config_of: Callable[[str], LogConfig]) -> None:
        directory.take_clean_shutdown_marker()
        recovery_points = self._read_checkpoint(directory, RECOVERY_POINT_FILE)
        log_starts = self._read_checkpoint(directory, LOG_START_FILE)
        self._high_watermarks |= self._read_checkpoint(directory, HIGH_WATERMARK_FILE)
        directory.checkpointed = frozenset(recovery_points.keys() | log_starts.keys())
        clean = directory.had_clean_shutdown

        def load(topic_partition: TopicPartition, path: str) -> Log | DamagedLog:
            recovery_point = recovery_points.get(topic_partition, 0)
            log_start_offset = log_starts.get(topic_partition, 0)
            try:
                return Log.open(
                    path,
                    topic_partition,
                    config_of(topic_partition.topic),
                    open_files=self.open_files,
                    recovery_point=recovery_point,
                    log_start_offset=log_start_offset,
                    clean=clean,
                    now_ms=self._now_ms(),
                    report=self._report,
                )
            except Exception as error:
                if isinstance(error, OSError) and error.errno in _OF_THE_WHOLE_DISK:
                    raise
                reason = f"its log in {path} cannot be opened: {error}"
                topic_id = read_partition_metadata(f"{path}/{PARTITION_METADATA_FILE}")
                return DamagedLog(topic_id, reason, recovery_point, log_start_offset)

        found = list(directory.partition_directories())
        if not clean and found:
            self._report(f"{directory.path} was not closed cleanly: recovering {len(found)} logs")
        taken = self.logs.keys() & set(found)
        if taken:
            raise LogDirError(f"{min(taken)} is in two data directories; remove the copy that is older")
        paths = [directory.file(str(topic_partition)) for topic_partition in found]
        if clean:
            logs = list(map(load, found, paths))
        else:
            with ThreadPoolExecutor(RECOVERY_THREADS, thread_name_prefix="klamm-recovery") as pool:
                placed = list(zip(found, paths, strict=True))
                shares = [placed[at : at + RECOVERY_SHARE] for at in range(0, len(found), RECOVERY_SHARE)]
                loaded = pool.map(lambda share: [load(*each) for each in share], shares)
                logs = [log for share in loaded for log in share]
        for topic_partition, log in zip(found, logs, strict=True):
            if isinstance(log, Log):
                directory.logs[topic_partition] = log
            else:
                directory.damaged[topic_partition] = log
        for topic_partition, path in directory.future_directories():
            copy = load(topic_partition, path)
            if isinstance(copy, Log) and topic_partition not in self.futures.keys() | directory.logs.keys():
                directory.futures[topic_partition] = copy
            else:
                put_away(path, DELETE_SUFFIX)

    def _read_checkpoint(self, directory: LogDir, name: str) -> dict[TopicPartition, int]:
        try:
            return read_offsets(directory.file(name))
        except CorruptCheckpoint as error:
            self._report(f"{error}; going on without it")
            return {}

    def close(self, *, clean: bool = True, intact_epochs: IntactEpochs = NEVER_INTACT) -> None:
        """Flush and close every log; if all went well, the next start needs no recovery."""
        for directory in self.online:
            try:
                with ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="klamm-closing") as pool:
                    waiting = [
                        pool.submit(log.close, clean=clean)
                        for log in (*directory.logs.values(), *directory.futures.values())
                        if not self._close_at_once(log, clean)
                    ]
                for closing in waiting:
                    closing.result()
                if clean:
                    self._write_checkpoints(directory)
                    if not directory.damaged:  # one was not recovered: the next start must try
                        directory.leave_clean_shutdown_marker(intact_epochs)
            except (OSError, KafkaError) as error:
                self._report(f"{directory.path} could not be closed cleanly: {error}")
        self.unlock()

    def _close_at_once(self, log: Log, clean: bool) -> bool:
        """Close a log that takes no time to close; among thousands of partitions most are idle."""
        is_quick = not clean or log.is_on_disk
        if is_quick:
            log.close(clean=clean)
        return is_quick

    # Logs that come and go.

    def create_log(self, topic_partition: TopicPartition, topic_id: TopicId, config: LogConfig) -> Log:
        """A new log, in the directory that was asked for (`prefer`), or in the one that has the fewest."""
        (made,) = self.create_logs([topic_partition], topic_id, config)
        if isinstance(made, KafkaError):
            raise made
        return made

    def create_logs(
        self, topic_partitions: Iterable[TopicPartition], topic_id: TopicId, config: LogConfig
    ) -> list[Log | KafkaError]:
        """A new log or an error for each; where it lies is chosen as for `create_log`."""
        made: list[Log | KafkaError] = []
        with self._lock:
            added: dict[LogDir, dict[TopicPartition, Log]] = {directory: {} for directory in self.online}
            for topic_partition in topic_partitions:
                try:
                    directory = min(added, key=lambda each: len(each.logs) + len(added[each]), default=None)
                    if directory is None:
                        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "every data directory is offline")
                    preferred = self._preferred.pop(topic_partition, directory)
                    directory = directory if preferred.is_offline else preferred
                    log = self._create_log(directory, topic_partition, topic_id, config)
                    added[directory][topic_partition] = log
                    made.append(log)
                except KafkaError as error:
                    made.append(error)
            for directory, logs in added.items():  # replaced, not changed: other threads go through it
                directory.logs = {**directory.logs, **logs}
        return made

    def _create_log(
        self, directory: LogDir, topic_partition: TopicPartition, topic_id: TopicId, config: LogConfig
    ) -> Log:
        path = directory.file(str(topic_partition))
        is_new = False
        try:
            self._clear_name(topic_partition, topic_id)
            is_new = not os.path.exists(path)
            if topic_partition in directory.checkpointed and topic_partition not in directory.logs:
                # The checkpoints have offsets of an earlier log of this name, which do not fit.
                self._write_checkpoints(directory)
            log = Log.open(
                path,
                topic_partition,
                config,
                open_files=self.open_files,
                clean=False,
                now_ms=self._now_ms(),
                report=self._report,
            )
            log.assign_topic_id(topic_id)
            return log
        except Exception as error:  # a directory that was there may hold anything
            if is_new:
                remove_tree(path)
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"cannot create {topic_partition}: {error}"
            ) from error

    def _clear_name(self, topic_partition: TopicPartition, topic_id: TopicId) -> None:
        """Put away a directory of this name whose records must not become part of the new log: another topic
        has left it, because it could not be renamed when that topic was deleted, or its log is damaged and
        does not say of which topic it is. A person decides about it."""
        for directory in self.online:
            path = directory.file(str(topic_partition))
            found = read_partition_metadata(f"{path}/{PARTITION_METADATA_FILE}")
            if found == topic_id or (found is None and topic_partition not in directory.damaged):
                continue
            stale = directory.logs.get(topic_partition)
            if stale is not None:
                self._forget(stale)
            directory.damaged.pop(topic_partition, None)
            kept_as = put_away(path, STRAY_SUFFIX)
            problem = "is of another topic" if found is not None else "is damaged, and its name is used anew"
            self._report(f"{path} {problem}: kept as {kept_as}; remove it if it is not needed")

    def put_away_for_deletion(self, topic_partitions: Iterable[TopicPartition]) -> PutAway:
        """Forget logs, damaged ones too, and rename their directories, so that the names are free at once.
        The caller removes the directories. Those that a crash leaves are listed by `put_away_before`."""
        wanted = set(topic_partitions)
        result = PutAway([], {})
        with self._moving_lock, self._lock:
            copies = self._take_out_futures(wanted)
            for directory in self.directories:
                logs = [log for tp, log in directory.logs.items() if tp in wanted]
                if logs:
                    with self._checkpoint_lock:
                        drop_offsets(directory.file(HIGH_WATERMARK_FILE), wanted)
                for topic_partition in wanted:
                    self._high_watermarks.pop(topic_partition, None)
                    self._preferred.pop(topic_partition, None)
                directory.logs = {tp: log for tp, log in directory.logs.items() if tp not in wanted}
                for log in [*copies, *logs]:  # copies first: one without its log would be taken for the log
                    try:
                        log.rename_for_delete()
                        result.directories.append(str(log.directory))
                    except OSError as error:
                        result.failures[log.topic_partition] = error
                    log.close(clean=False)
                copies = []
                for topic_partition in directory.damaged.keys() & wanted:
                    try:
                        path = directory.file(str(topic_partition))
                        result.directories.append(put_away(path, DELETE_SUFFIX))
                        del directory.damaged[topic_partition]
                    except OSError as error:
                        result.failures[topic_partition] = error
        return result

    def put_away_before(self) -> list[str]:
        """Directories that were put away for deletion before this start and are still there."""
        return [path for directory in self.online for path in directory.deleted_directories()]

    def set_aside(self, log: Log) -> Path:
        """Forget a log that nobody asked to delete; its directory is kept under another name."""
        with self._lock:
            self._forget(log)
            log.close(clean=False)
            log.rename_as_stray()
        return log.directory

    def _forget(self, log: Log) -> None:
        for directory in self.directories:
            if directory.logs.get(log.topic_partition) is log:
                kept = dict(directory.logs)
                del kept[log.topic_partition]
                directory.logs = kept

    def take_offline(self, path: Path, error: Exception) -> list[Log]:
        """The disk of `path` failed: its logs take no more writes. Returns these logs."""
        affected: list[Log] = []
        for directory in self.directories:
            if directory.path == path and not directory.is_offline:
                directory.is_offline = True
                self._report(f"{path} is offline until the next start: {error}")
                for log in [*directory.logs.values(), *directory.futures.values()]:
                    log.failure = log.failure or f"{path} is offline"
                affected += directory.logs.values()
        return affected

    # Moving logs from one directory to another; these block.

    def directory_at(self, path: str) -> LogDir:
        """A log directory by its path; raises LOG_DIR_NOT_FOUND, and KAFKA_STORAGE_ERROR if it is offline."""
        for directory in self.directories:
            if directory.path == Path(path):
                if directory.is_offline:
                    raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"log directory {path} is offline")
                return directory
        raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not one of the directories in log.dirs")

    def prefer(self, topic_partition: TopicPartition, target: LogDir) -> None:
        """If a log of this partition is made later, make it in `target`."""
        self._preferred[topic_partition] = target

    def create_future(self, topic_partition: TopicPartition, target: LogDir) -> None:
        """Begin a copy of a log in `target`, in place of one that is elsewhere. If the log is there already,
        there is nothing to copy. Raises REPLICA_NOT_AVAILABLE if there is no log."""
        with self._moving_lock, self._lock:
            log = self.logs.get(topic_partition)
            if log is None:
                raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, f"{topic_partition} has no log here")
            if topic_partition in target.logs:
                return
            try:
                path = target.file(future_name(topic_partition))
                if topic_partition in target.checkpointed:
                    self._write_checkpoints(target)  # which have offsets of an earlier log of this name
                copy = Log.open(
                    path,
                    topic_partition,
                    log.config,
                    open_files=self.open_files,
                    log_start_offset=log.log_start_offset,
                    clean=False,
                    now_ms=self._now_ms(),
                    report=self._report,
                )
                if log.topic_id is not None:
                    copy.assign_topic_id(log.topic_id)
            except ValueError as error:
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, str(error)) from error
            except OSError as error:
                remove_tree(path)
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"cannot copy {topic_partition} to {target.path}: {error}"
                ) from error
            target.futures = {**target.futures, topic_partition: copy}

    def drop_future(self, topic_partition: TopicPartition) -> list[str]:
        """Call a move off. Returns the directory of the copy, put away for deletion, if there was one."""
        with self._moving_lock, self._lock:
            put_away_as = []
            for copy in self._take_out_futures({topic_partition}):
                copy.rename_for_delete()
                put_away_as.append(str(copy.directory))
                copy.close(clean=False)
            return put_away_as

    def _take_out_futures(self, topic_partitions: set[TopicPartition]) -> list[Log]:
        copies = []
        for directory in self.directories:
            copies += [copy for tp, copy in directory.futures.items() if tp in topic_partitions]
            kept = {tp: copy for tp, copy in directory.futures.items() if tp not in topic_partitions}
            directory.futures = kept
        return copies

    def copy_some(self, topic_partition: TopicPartition) -> int | None:
        """Copy the next batches; returns how many bytes, 0 if there are none. None if the move is off."""
        with self._moving_lock:
            target, copy = self.futures.get(topic_partition, (None, None))
            if target is None or copy is None:
                return None
            log = self._log_to_move(topic_partition)
            if align(log, copy, self._now_ms()):
                self._write_checkpoints(target)
            # With the lock: if the log were cut now, and grew again, the copy would not notice.
            return copy_some(log, copy, self._now_ms())

    def _log_to_move(self, topic_partition: TopicPartition) -> Log:
        log = self.logs.get(topic_partition)
        if log is None:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"the log directory of {topic_partition} has failed"
            )
        return log

    def replace_by_future(self, topic_partition: TopicPartition) -> str | None:
        """Have a log go on in its copy's files; returns where its old directory is put away for deletion.
        None if the copy lacks too much, or the move is off."""
        with self._moving_lock:
            target, copy = self.futures.get(topic_partition, (None, None))
            if target is None or copy is None:
                return None
            log = self._log_to_move(topic_partition)
            is_aligned = not align(log, copy, self._now_ms())
            copy.flush()
            copy.remove_deleted_files(_EVER_MS)
            self._write_checkpoints(target)

            def note_new_place() -> None:
                self._take_out_futures({topic_partition})
                self._forget(log)
                target.logs = {**target.logs, topic_partition: log}

            put_away_as = None
            try:
                if is_aligned:
                    # With the lock of checkpoints, else the log start could be written where the log was.
                    # The other one comes first, as everywhere.
                    with self._lock, self._checkpoint_lock:
                        put_away_as = log.go_on_in(copy, self._now_ms(), note_new_place)
            finally:  # also if the old directory has failed
                if topic_partition in target.logs:
                    log.rename(target.file(str(topic_partition)))
                    self._write_checkpoints(target)
            return put_away_as

    # A follower's logs, whose end moves back; these block.

    def truncate(self, offsets: Mapping[TopicPartition, int]) -> Failures:
        """Cut each log at its offset, and bring that to the disk with the recovery points: with higher ones,
        recovery would trust what is appended from now on."""
        return self._move_back(offsets, Log.truncate_to)

    def start_at(self, offsets: Mapping[TopicPartition, int]) -> Failures:
        return self._move_back(offsets, Log.start_at)

    def _move_back(self, offsets: Mapping[TopicPartition, int], move: MoveBack) -> Failures:
        failures: Failures = {}
        with (
            self._moving_lock
        ):  # keeps others out that take the locks of checkpoints and log in another order
            for directory in self.online:
                on_cut = partial(self._write_checkpoints, directory)
                for tp in offsets.keys() & directory.logs.keys():
                    try:
                        move(directory.logs[tp], offsets[tp], self._now_ms(), on_cut)
                    except (OSError, KafkaError) as error:
                        failures[tp] = error
        return failures

    def finish_moving_back(self, log: Log) -> None:
        """Do what a full disk has kept `truncate` or `start_at` from doing."""
        with self._moving_lock:
            log.finish_moving_back()

    # Checkpoints; these block.

    def high_watermark_of(self, topic_partition: TopicPartition) -> int:
        """Where the high watermark was when it was last checkpointed before this start, within the log as it
        is now. Without a checkpoint it is the log start: all that is known to be committed."""
        for directory in self.online:
            log = directory.logs.get(topic_partition)
            if log is not None:
                checkpointed = self._high_watermarks.get(topic_partition, 0)
                return min(max(checkpointed, log.log_start_offset), log.log_end_offset)
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{topic_partition} has no log here")

    def write_checkpoints(self) -> None:
        """Recovery points and log start offsets of all logs."""
        for directory in self.online:
            self._write_checkpoints(directory)

    def _write_checkpoints(self, directory: LogDir) -> None:
        with self._checkpoint_lock:
            recovery_points = {tp: log.recovery_point for tp, log in directory.futures.items()}
            recovery_points |= {tp: log.recovery_point for tp, log in directory.logs.items()}
            recovery_points |= {tp: log.recovery_point for tp, log in directory.damaged.items()}
            directory.checkpointed |= recovery_points.keys()
            write_offsets(directory.file(RECOVERY_POINT_FILE), recovery_points)
            self._write_log_starts(directory)
            directory.checkpointed = frozenset(recovery_points)

    def write_log_start_checkpoints(self) -> None:
        with self._checkpoint_lock:
            for directory in self.online:
                self._write_log_starts(directory)

    def _write_log_starts(self, directory: LogDir) -> None:
        """Write the start offsets that lie inside a segment; the others are those of the first segments."""
        starts = {
            tp: log.log_start_offset
            for tp, log in (directory.futures | directory.logs).items()
            if log.log_start_offset > log.segments[0].base_offset
        }
        starts |= {tp: log.log_start_offset for tp, log in directory.damaged.items() if log.log_start_offset}
        directory.checkpointed |= starts.keys()
        write_offsets(directory.file(LOG_START_FILE), starts)

    def write_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Written without an fsync, which would hold up appends: a crash leaves older ones at worst."""
        with self._checkpoint_lock:
            for directory in self.online:
                known = {tp: high_watermarks[tp] for tp in directory.logs if tp in high_watermarks}
                write_offsets(directory.file(HIGH_WATERMARK_FILE), known, sync=False)
