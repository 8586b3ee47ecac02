"""The names of partitions' directories: those of logs in use, and those of logs that were put away.

`<topic>-<partition>` is a log. `<topic>-<partition>.<unique>-delete` waits to be removed; `-stray` is kept
for a person to look at.
"""

from __future__ import annotations

import os
import uuid

from klamm.model.ids import TopicPartition

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
_NAME_LIMIT = 255
"""The longest file name that file systems allow, in bytes; every letter of a topic name takes one."""


def parse_directory_name(name: str) -> TopicPartition | None:
    """The partition that a directory of this name belongs to; None if no log in use has such a name."""
    topic, dash, partition = name.rpartition("-")
    return TopicPartition(topic, int(partition)) if dash and topic and partition.isdigit() else None


def put_away(path: str, suffix: str) -> str:
    """Rename a log's directory, so that its name is free; returns its new path."""
    unique_suffix = f".{uuid.uuid4().hex}{suffix}"
    parent, name = os.path.split(path)
    new_path = f"{parent}/{name[: _NAME_LIMIT - len(unique_suffix)]}{unique_suffix}"
    os.rename(path, new_path)
    return new_path
