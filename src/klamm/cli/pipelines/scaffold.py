"""A new project: a folder that works at once, made by `klamm pipeline init`.

Nothing that is there is written over: a folder that has a file of the same name is refused before the first
file is made.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from klamm.cli.pipelines.events import order_lines
from klamm.pipelines.errors import ProjectError
from klamm.pipelines.project import PROJECT_FILE, is_project_name

SAMPLE_FILE = "events/orders.jsonl"
SAMPLE_ORDERS = 1000
SAMPLE_SPACING = timedelta(seconds=2)
"""A thousand orders over half an hour: windows of minutes fill, and all come before now."""

PROJECT_TOML = """\
[project]
name = "{name}"
bootstrap = "{bootstrap}"
# tables = "tables"               # a folder, or a URI that Spark writes: hdfs://…, s3a://…
# dead_letters = "{name}.dead-letters"

[spark]
master = "local[*]"               # or spark://host:7077, yarn, k8s://…
# Any spark.* key, for example:
# spark.driver.memory = "2g"

# [kafka]
# Any client key in Kafka's names, for example:
# security.protocol = "SSL"
"""

PIPELINES = '''\
"""Orders from a topic: cleaned into a table, and added up by minute into another topic.

Plain PySpark functions under decorators. Names are what ties them together: the parameter `orders` gets what
the function `orders` returns.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from klamm.pipelines import expect, parquet, pipeline, source, topic, transform


# A source reads a topic and decodes its values. What cannot be decoded goes to the topic {name}.dead-letters.
@source(
    topic="orders",
    format="json",
    schema="order_id STRING, customer STRING, item STRING, quantity INT, amount DOUBLE, at TIMESTAMP",
)
# Rules for every row. One that breaks a rule is counted (warn), left out (drop), sent to the dead letters
# (dead_letter), or stops the pipeline (fail).
@expect("amount is positive", "amount > 0", otherwise="dead_letter")
@expect("customer is known", "customer IS NOT NULL", otherwise="warn")
def orders(rows: DataFrame) -> DataFrame:
    # Windows wait ten minutes for orders that come late.
    return rows.withWatermark("at", "10 minutes")


# A transform makes one DataFrame of others.
@transform
def clean_orders(orders: DataFrame) -> DataFrame:
    return orders.withColumn("item", F.lower("item")).withColumn("day", F.to_date("at"))


# A pipeline writes what it returns. Here: Parquet in tables/orders, one folder a day, each row exactly once.
@pipeline(to=parquet("orders", partition_by=["day"]), trigger="2 seconds")
def orders_table(clean_orders: DataFrame) -> DataFrame:
    return clean_orders


# And here: what each minute brought, to the topic revenue. "update" writes a minute again when it changes.
@pipeline(to=topic("revenue", key="item"), mode="update", trigger="2 seconds")
def revenue(clean_orders: DataFrame) -> DataFrame:
    by_minute = clean_orders.groupBy(F.window("at", "1 minute"), "item")
    return by_minute.agg(F.count("*").alias("orders"), F.round(F.sum("amount"), 2).alias("amount")).select(
        F.col("window.start").alias("minute"), "item", "orders", "amount"
    )
'''

README = """\
# {name}

Pipelines on Spark, run by Klamm: `klamm pipeline run` in this folder (`--once`: until all is read).
What they are is in `pipelines/`, where they run in `klamm.toml`, what they make in `tables/`.
`klamm pipeline lint` finds mistakes, `preview NODE` shows rows, `status` shows how it goes.
"""

GITIGNORE = """\
.klamm/
tables/
__pycache__/
"""


def make_project(folder: Path, *, name: str, bootstrap: str, with_sample: bool) -> list[str]:
    """Make the files of a project; return their paths below its folder. Raises ProjectError."""
    if not is_project_name(name):
        raise ProjectError(
            f"{name!r} is no name of a project", advice="Take letters, digits, '.', '_' and '-'"
        )
    texts = {
        PROJECT_FILE: PROJECT_TOML.format(name=name, bootstrap=bootstrap),
        "pipelines/orders.py": PIPELINES.replace("{name}", name),
        "README.md": README.format(name=name),
        ".gitignore": GITIGNORE,
    }
    if with_sample:
        now = datetime.now(UTC)
        texts[SAMPLE_FILE] = "\n".join(order_lines(SAMPLE_ORDERS, now, SAMPLE_SPACING)) + "\n"
    taken = [path for path in texts if (folder / path).exists()]
    if taken:
        raise ProjectError(
            f"{folder} has {', '.join(taken)} already", advice="Take another name, or another folder"
        )
    try:
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ProjectError(f"{error.filename} cannot be written: {error.strerror}") from None
    return list(texts)
