"""Every example of the data source's guide does what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import klamm.testing
from tests.docs.examples import Section, run_section, sections

EXAMPLES = sections("docs/SPARK.md")


@pytest.mark.long
@pytest.mark.parametrize("section", EXAMPLES, ids=lambda section: section.name)
def test_section(
    section: Section,
    klamm: klamm.testing.Broker,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    # Spark resolves relative paths where its JVM was started, which a test cannot change.
    for block in section.blocks:
        for folder in ("tables/", "checkpoints/"):
            block.code = block.code.replace(f'"{folder}', f'"{tmp_path}/{folder}')
    brokers = {"kafka.bootstrap.servers": klamm.bootstrap}
    run_section(section, klamm.bootstrap, spark=spark, F=F, brokers=brokers)


def test_the_guide_has_examples() -> None:
    assert len(EXAMPLES) >= 5
