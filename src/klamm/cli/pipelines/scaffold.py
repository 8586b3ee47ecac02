"""Creates a new project that works at once, for `klamm pipeline init`.

Existing files are never overwritten: if the folder has a file of the same name, nothing is created.
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
"""A thousand orders over the last half hour, enough to fill windows of minutes."""

PROJECT_TOML = """\
[project]
name = "{name}"
bootstrap = "{bootstrap}"
# tables = "tables"               # a folder, or a URI: s3://…, gs://…, az://…, hdfs://…
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
"""Orders from a topic: cleaned and written to a table, and summed up per minute into another topic.

These are PySpark functions with decorators. A parameter gets what the function of its name returns: the
parameter `orders` gets the DataFrame of the function `orders`.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from klamm.pipelines import expect, pipeline, source, table, topic, transform


# A source reads a topic and decodes its values. Records that cannot be decoded go to {name}.dead-letters.
@source(
    topic="orders",
    format="json",
    schema="order_id STRING, customer STRING, item STRING, quantity INT, amount DOUBLE, ordered_at TIMESTAMP",
)
# Expectations for every row. A row that breaks one is counted (warn), dropped (drop), sent to the dead-letter
# topic (dead_letter), or stops the pipeline (fail).
@expect("amount is positive", "amount > 0", otherwise="dead_letter")
@expect("customer is known", "customer IS NOT NULL", otherwise="warn")
def orders(rows: DataFrame) -> DataFrame:
    # Windows wait ten minutes for late orders.
    return rows.withWatermark("ordered_at", "10 minutes")


# A transform makes a DataFrame from others.
@transform
def clean_orders(orders: DataFrame) -> DataFrame:
    return orders.withColumn("item", F.lower("item")).withColumn("day", F.to_date("ordered_at"))


# A pipeline writes the DataFrame that it returns: here to the Delta table tables/orders, each row once.
@pipeline(to=table("orders", partition_by=["day"]), trigger="2 seconds")
def orders_table(clean_orders: DataFrame) -> DataFrame:
    return clean_orders


# And here the sums of each minute to the topic revenue. "update" writes a minute again when it changes.
@pipeline(to=topic("revenue", key="item"), mode="update", trigger="2 seconds")
def revenue(clean_orders: DataFrame) -> DataFrame:
    by_minute = clean_orders.groupBy(F.window("ordered_at", "1 minute"), "item")
    return by_minute.agg(F.count("*").alias("orders"), F.round(F.sum("amount"), 2).alias("amount")).select(
        F.col("window.start").alias("minute"), "item", "orders", "amount"
    )
'''

README = """\
# {name}

Pipelines on Spark, run with `klamm pipeline run` in this folder (`--once` stops when all records are read).
The code is in `pipelines/`, the settings in `klamm.toml`, the tables in `tables/`.
`klamm pipeline lint` finds mistakes, `preview NODE` shows rows, `status` shows the state of each pipeline.
"""

GITIGNORE = """\
.klamm/
tables/
__pycache__/
"""


def make_project(folder: Path, *, name: str, bootstrap: str, with_sample: bool) -> list[str]:
    """Create the files of a project; return their paths in its folder. Raises ProjectError."""
    if not is_project_name(name):
        raise ProjectError(
            f"{name!r} is not a valid project name", advice="Use letters, digits, '.', '_' and '-'"
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
            f"{folder} already has {', '.join(taken)}", advice="Use another name, or another folder"
        )
    try:
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ProjectError(f"{error.filename} cannot be written: {error.strerror}") from None
    return list(texts)
