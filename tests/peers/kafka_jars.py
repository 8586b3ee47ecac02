"""Finds Apache Kafka's jars, and those of Spark's connector for it, and names the one line of set-up that is
missing when they are not there.

The set-up copies them into the cache folder of the clone; KAFKA_JARS and SPARK_KAFKA_JARS point elsewhere.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

KAFKA_VERSION = "4.3.0"
REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = REPOSITORY / ".cache"
DEFAULT_JARS = CACHE / f"kafka-{KAFKA_VERSION}"
CONNECTOR_VERSION = "4.2.0"
DEFAULT_CONNECTOR_JARS = CACHE / f"spark-kafka-{CONNECTOR_VERSION}"
CONNECTOR_JAR_COUNT = 4


class PeerMissing(RuntimeError):
    """A peer cannot be had on this machine; the message says which part is missing and how to get it."""


def find_java() -> str:
    java = shutil.which("java")
    if java is None:
        raise PeerMissing("Java is missing: install default-jre-headless (Debian) and run `make setup`")
    return java


def find_kafka_jars(jars_dir: Path | str | None = None) -> Path:
    """The folder with the jars: the argument, KAFKA_JARS, or the cache of the clone."""
    folder = Path(jars_dir or os.environ.get("KAFKA_JARS") or DEFAULT_JARS)
    if not any(folder.glob(f"kafka-clients-{KAFKA_VERSION}.jar")):
        raise PeerMissing(
            f"Apache Kafka {KAFKA_VERSION} is missing: no kafka-clients-{KAFKA_VERSION}.jar in {folder}; "
            "run `make setup` (it needs Maven) or set KAFKA_JARS"
        )
    return folder


def find_connector_jars() -> list[Path]:
    """The jars of Spark's own connector: from SPARK_KAFKA_JARS, or the cache of the clone."""
    folder = Path(os.environ.get("SPARK_KAFKA_JARS") or DEFAULT_CONNECTOR_JARS)
    jars = sorted(folder.glob("*.jar"))
    if len(jars) < CONNECTOR_JAR_COUNT:
        raise PeerMissing(
            f"Spark's Kafka connector {CONNECTOR_VERSION} is missing: {len(jars)} of its "
            f"{CONNECTOR_JAR_COUNT} jars are in {folder}; run `make setup` (it needs Maven) "
            "or set SPARK_KAFKA_JARS"
        )
    return jars
