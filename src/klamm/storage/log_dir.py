"""One log directory of a broker: whose it is, and which logs are in it.

The directory is locked while a broker uses it, says whose it is (`meta.properties`), and holds the
checkpoints of its logs.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from klamm.model.ids import (
    NEVER_INTACT,
    IntactEpochs,
    TopicId,
    TopicPartition,
    new_topic_id,
    topic_id_text,
)
from klamm.storage.checkpoints import CLEAN_SHUTDOWN_FILE
from klamm.storage.directory_names import DELETE_SUFFIX, parse_directory_name, parse_future_name
from klamm.storage.files import read_small_file, sync_directory, write_atomically
from klamm.storage.log import Log

META_FILE = "meta.properties"
LOCK_FILE = ".lock"


class LogDirError(Exception):
    """A log directory that cannot be used at all; the sentence says why and what to do."""


class DamagedLog(NamedTuple):
    """A log that could not be opened, and what the checkpoints say of it, which must not be forgotten."""

    topic_id: TopicId | None
    reason: str
    recovery_point: int
    log_start_offset: int


class LogDir:
    """One directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_offline = False
        self.had_clean_shutdown = False
        self.intact_epochs = NEVER_INTACT
        """From the marker of a clean shutdown."""
        self.logs: dict[TopicPartition, Log] = {}
        self.futures: dict[TopicPartition, Log] = {}
        """Copies of logs that are being moved here from other directories."""
        self.damaged: dict[TopicPartition, DamagedLog] = {}
        """Logs that could not be opened. Their files stay as they are."""
        self.checkpointed: frozenset[TopicPartition] = frozenset()
        """Partitions that the checkpoint files may name, also those whose log is gone by now."""
        self._lock_fd = -1

    def file(self, name: str) -> str:
        return f"{self.path}/{name}"

    def lock(self) -> None:
        try:
            os.makedirs(self.path, exist_ok=True)
            fd = os.open(self.file(LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise LogDirError(f"cannot use the data directory {self.path}: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise LogDirError(
                f"the data directory {self.path} is in use by another broker; stop that one or choose another"
            ) from error
        self._lock_fd = fd

    def unlock(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def identify(self, node_id: int, cluster_id: str) -> None:
        """Check that the directory belongs to this broker; a new directory is given to it."""
        data = read_small_file(self.file(META_FILE))
        if data is None:
            text = (
                f"#\nversion=1\nnode.id={node_id}\ncluster.id={cluster_id}\n"
                f"directory.id={topic_id_text(new_topic_id())}\n"
            )
            write_atomically(self.file(META_FILE), text.encode())
            return
        found = dict(
            line.split("=", 1)
            for line in data.decode(errors="replace").splitlines()
            if "=" in line and not line.startswith("#")
        )
        for key, ours in (("cluster.id", cluster_id), ("node.id", str(node_id))):
            if found.get(key, ours) != ours:
                raise LogDirError(
                    f"{self.file(META_FILE)} says {key}={found[key]}, this broker has {ours}; "
                    "start it with its own data directory"
                )

    def disk_space(self) -> tuple[int, int]:
        """(all bytes, bytes that this process may still use) of the file system."""
        status = os.statvfs(self.path)
        return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize

    def take_clean_shutdown_marker(self) -> None:
        data = read_small_file(self.file(CLEAN_SHUTDOWN_FILE))
        self.had_clean_shutdown = data is not None
        if data is None:
            return
        try:
            marker = json.loads(data or b"{}")
            last = int(marker.get("brokerEpoch", NEVER_INTACT.last))
            self.intact_epochs = IntactEpochs(int(marker.get("intactSinceEpoch", last)), last)
        except (TypeError, ValueError, AttributeError):
            self.intact_epochs = NEVER_INTACT
        os.unlink(self.file(CLEAN_SHUTDOWN_FILE))
        sync_directory(str(self.path))  # else a power cut could bring it back

    def leave_clean_shutdown_marker(self, intact_epochs: IntactEpochs) -> None:
        first, last = intact_epochs
        text = json.dumps({"version": 0, "brokerEpoch": last, "intactSinceEpoch": first})
        write_atomically(self.file(CLEAN_SHUTDOWN_FILE), text.encode())

    def partition_directories(self) -> Iterator[TopicPartition]:
        """The partitions that have a directory here."""
        for name in sorted(self._directory_names()):
            topic_partition = parse_directory_name(name)
            if topic_partition is not None:
                yield topic_partition

    def future_directories(self) -> Iterator[tuple[TopicPartition, str]]:
        """The partitions that were being moved here, each with the path of its copy."""
        for name in sorted(self._directory_names()):
            topic_partition = parse_future_name(name)
            if topic_partition is not None:
                yield topic_partition, self.file(name)

    def deleted_directories(self) -> list[str]:
        """Directories of logs that were deleted and whose files are still there."""
        return [self.file(name) for name in self._directory_names() if name.endswith(DELETE_SUFFIX)]

    def _directory_names(self) -> list[str]:
        with os.scandir(self.path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
