"""The names of partitions' directories: those of logs in use, and those of logs that were put away.

`<topic>-<partition>` is a log. `<topic>-<partition>.<unique>-delete` waits to be removed; `-stray` is kept
for a person to look at; `-future` is the copy of a log that is being moved here from another log directory.
"""

from __future__ import annotations

import os
import uuid

from klamm.model.ids import TopicPartition

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
FUTURE_SUFFIX = "-future"
_NAME_LIMIT = 255
"""The longest file name that file systems allow, in bytes; every letter of a topic name takes one."""


def parse_directory_name(name: str) -> TopicPartition | None:
    """The partition that a directory of this name belongs to; None if no log in use has such a name."""
    topic, dash, partition = name.rpartition("-")
    return TopicPartition(topic, int(partition)) if dash and topic and partition.isdigit() else None


def future_name(topic_partition: TopicPartition) -> str:
    """A new name for the copy of a log. Raises ValueError if it would be too long for a file system."""
    name = f"{topic_partition}.{uuid.uuid4().hex}{FUTURE_SUFFIX}"
    if len(name) > _NAME_LIMIT:
        raise ValueError(f"the name of topic {topic_partition.topic} is too long to move its logs")
    return name


def parse_future_name(name: str) -> TopicPartition | None:
    """The partition whose copy a directory of this name holds; None if it holds none."""
    if not name.endswith(FUTURE_SUFFIX):
        return None
    return parse_directory_name(name.removesuffix(FUTURE_SUFFIX).rpartition(".")[0])


def put_away(path: str, suffix: str) -> str:
    """Rename a log's directory, so that its name is free; returns its new path."""
    unique_suffix = f".{uuid.uuid4().hex}{suffix}"
    parent, name = os.path.split(path)
    new_path = f"{parent}/{name[: _NAME_LIMIT - len(unique_suffix)]}{unique_suffix}"
    os.rename(path, new_path)
    return new_path
