from __future__ import annotations

from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from pyspark_klamm.spark_home import linked_home


def test_workers_import_the_installed_package(spark: SparkSession) -> None:
    def where(_: int) -> str:
        import pyspark

        return str(pyspark.__file__)

    assert spark.sparkContext.parallelize([1], 1).map(where).collect() == [pyspark.__file__]


def test_a_home_has_all_but_the_zip() -> None:
    package = Path(pyspark.__file__).parent
    home = linked_home(package)
    assert home is not None
    assert linked_home(package) == home
    assert (home / "bin/spark-submit").is_file()
    assert list((home / "jars").glob("spark-core_*.jar"))
    assert not (home / "python").exists()


def test_a_spark_of_another_making_is_left_alone(tmp_path: Path) -> None:
    assert linked_home(tmp_path) is None
