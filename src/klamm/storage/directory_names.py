"""The names of partitions' directories: those in use, and those of logs that were put away.

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
"""Of file systems, in bytes; topic names have only letters that take one."""


def parse_directory_name(name: str) -> TopicPartition | None:
    """None if it is not that of a log in use."""
    topic, dash, partition = name.rpartition("-")
    return TopicPartition(topic, int(partition)) if dash and topic and partition.isdigit() else None


def put_away(path: str, suffix: str) -> str:
    """Rename a log's directory, so that its name is free; returns its new path."""
    unique_suffix = f".{uuid.uuid4().hex}{suffix}"
    parent, name = os.path.split(path)
    new_path = f"{parent}/{name[: _NAME_LIMIT - len(unique_suffix)]}{unique_suffix}"
    os.rename(path, new_path)
    return new_path
