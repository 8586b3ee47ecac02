"""The data source of `pyspark_klamm` under the name "kafka", so that programs for Spark's own connector run.

A module of its own, because Spark registers one data source per module named `pyspark_*`. It takes effect
with the jar of `pyspark_klamm.kafka_format` on the class path; without it Spark keeps the name for itself.
"""

from __future__ import annotations

from pyspark_klamm import DefaultSource as KlammSource


class DefaultSource(KlammSource):
    """Topics, read and written as by `.format("klamm")`."""

    @classmethod
    def name(cls) -> str:
        return "kafka"
