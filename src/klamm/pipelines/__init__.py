"""Pipelines: plain PySpark functions under decorators, from topics to tables and back.

    from klamm.pipelines import expect, parquet, pipeline, source, topic, transform

Importing this does not import pyspark: looking at a project must be quick, and must not start a JVM.
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
    topic,
    transform,
)

__all__ = ["delta", "expect", "iceberg", "jdbc", "parquet", "pipeline", "source", "topic", "transform"]
