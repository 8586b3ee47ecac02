"""Spark as tests of pipelines want it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession


@pytest.fixture
def one_partition(spark: SparkSession) -> Iterator[None]:
    """State in one partition: each more would be up to four stores more in each query."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", before)
