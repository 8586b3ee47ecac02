"""A process in which Spark could not hand over a batch says so, and does not wait for one."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from klamm.pipelines.callbacks import MOST_DESCRIPTORS, ensure_callbacks
from klamm.pipelines.errors import PipelineError


@pytest.fixture
def many_files() -> Iterator[None]:
    """So many open files that the next one is beyond what `select` takes."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 4 * MOST_DESCRIPTORS), before[1]))
    opened = [os.open(os.devnull, os.O_RDONLY)]
    while opened[-1] <= MOST_DESCRIPTORS:
        opened.append(os.dup(opened[0]))
    yield
    for descriptor in opened:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_too_many_open_files_are_told(many_files: None) -> None:
    not_called_yet: Any = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace()))
    with pytest.raises(PipelineError, match=r"this process has 1,\d\d\d open files and sockets"):
        ensure_callbacks(not_called_yet)


def test_a_session_that_can_be_called_already_stays_so(
    spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    ensure_callbacks(spark)
    request.getfixturevalue("many_files")
    ensure_callbacks(spark)
