"""Pipelines: PySpark functions with decorators, from topics to tables and back.

    from klamm.pipelines import expect, pipeline, source, table, topic, transform

Importing this does not import pyspark, so that a project can be loaded quickly and without a JVM.
"""

from __future__ import annotations

from klamm.pipelines.decorators import (
    delta,
    expect,
    iceberg,
    jdbc,
    parquet,
    pipeline,
    source,
    table,
    topic,
    transform,
)

__all__ = [
    "delta",
    "expect",
    "iceberg",
    "jdbc",
    "parquet",
    "pipeline",
    "source",
    "table",
    "topic",
    "transform",
]
