"""A follower's log without its broker, for tests of losing power: it grows and is cut until killed.

`python follower_process.py DATA OPERATIONS SEED` writes each operation to the file OPERATIONS, a line of JSON
before it begins and one when it is done. What a batch holds follows from its epoch and its offset.
"""

from __future__ import annotations

import json
import os
import sys
import time
from random import Random

from klamm.model.ids import TopicPartition, new_topic_id
from klamm.records.batch import patch_offset_and_epoch
from klamm.records.builder import build_batch
from klamm.records.reader import StoredRecord
from klamm.storage.log import Log
from klamm.storage.log_config import LogConfig
from klamm.storage.log_dirs import LogDirs

PLACE = TopicPartition("replica", 0)
CONFIG = LogConfig(segment_bytes=3000, index_interval_bytes=300, retention_ms=-1)


def now_ms() -> int:
    return int(time.time() * 1000)


def open_dirs(data: str) -> LogDirs:
    dirs = LogDirs([data], now_ms=now_ms, report=lambda _: None)
    dirs.lock()
    dirs.identify(1, "cluster")
    dirs.load_logs(lambda topic: CONFIG)
    return dirs


def value_of(epoch: int, offset: int) -> bytes:
    return b"%d at %d " % (epoch, offset) * (1 + (epoch + offset) % 20)


def make_batch(epoch: int, offset: int) -> bytes:
    batch = build_batch([StoredRecord(0, 1_700_000_000_000, None, value_of(epoch, offset))])
    patch_offset_and_epoch(batch, offset, epoch)
    return bytes(batch)


class Follower:
    def __init__(self, data: str, operations: str, seed: int) -> None:
        self._dirs = open_dirs(data)
        self._log: Log = self._dirs.logs.get(PLACE) or self._dirs.create_log(PLACE, new_topic_id(), CONFIG)
        self._fd = os.open(operations, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._random = Random(seed)
        self._epoch = max(self._log.epochs.latest, 0) + 1

    def run(self) -> None:
        while True:
            kind = self._random.choices(["append", "flush", "checkpoint", "truncate"], [6, 3, 1, 2])[0]
            getattr(self, kind)()

    def note(self, kind: str, offset: int = 0, count: int = 0) -> None:
        operation = {"kind": kind, "epoch": self._epoch, "offset": offset, "count": count}
        os.write(self._fd, json.dumps(operation).encode() + b"\n")

    def append(self) -> None:
        offset, count = self._log.log_end_offset, self._random.randint(1, 30)
        self.note("append", offset, count)
        batches = [make_batch(self._epoch, offset + number) for number in range(count)]
        self._log.append_replicated(b"".join(batches), now_ms())

    def flush(self) -> None:
        end = self._log.log_end_offset
        self._log.flush()
        self.note("flushed", end)

    def checkpoint(self) -> None:
        self._dirs.write_checkpoints()

    def truncate(self) -> None:
        offset = max(0, self._log.log_end_offset - self._random.randint(0, 40))
        self.note("truncate", offset)
        self._dirs.truncate({PLACE: offset})
        self.note("truncated", offset)
        self._epoch += 1


if __name__ == "__main__":
    data, operations, seed = sys.argv[1:]
    Follower(data, operations, int(seed)).run()
