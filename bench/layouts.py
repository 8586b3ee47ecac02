"""The layouts of tables: one for brokers, one each for clusters, clients and pipelines."""

from __future__ import annotations

from typing import NamedTuple

from bench import client_memory, client_round_trip, python_clients
from bench.aims import BROKER_AIMS, CLIENT_AIMS, CLUSTER_AIMS, PIPELINE_AIMS, Aim
from bench.cluster import section as cluster
from bench.peers import KAFKA, KLAMM, MACHINE
from bench.python_clients import AIO, AIOKAFKA, COLUMNS, CONFLUENT, PLAIN
from bench.raw_produce import CORES_USED
from bench.spark import section as spark
from bench.spark import tables

ONLY_IN_JSON = {CORES_USED}
CLIENT_SECTIONS = frozenset({python_clients.SECTION, client_round_trip.SECTION, client_memory.SECTION})


class Ratio(NamedTuple):
    heading: str
    ours: str
    reference: str


class Layout(NamedTuple):
    """One kind of table: the contestants of its columns, and the ratios between them."""

    name: str
    aims_title: str
    contestants: tuple[str, ...]
    ratios: tuple[Ratio, ...]
    aims: tuple[Aim, ...]


BROKERS = Layout(
    "brokers",
    "Aims, one broker on one core",
    (MACHINE, KAFKA, KLAMM),
    (Ratio(f"{KLAMM} / Kafka", KLAMM, KAFKA), Ratio(f"{KLAMM} / machine", KLAMM, MACHINE)),
    BROKER_AIMS,
)
CLUSTERS = BROKERS._replace(
    name="clusters", aims_title="Aims, three brokers on one machine", aims=CLUSTER_AIMS
)
CLIENTS = Layout(
    "clients",
    "Aims of the client",
    python_clients.CLIENTS,
    (
        Ratio(f"{AIO} / {AIOKAFKA}", AIO, AIOKAFKA),
        Ratio(f"{PLAIN} / {CONFLUENT}", PLAIN, CONFLUENT),
        Ratio(f"{COLUMNS} / {CONFLUENT}", COLUMNS, CONFLUENT),
    ),
    CLIENT_AIMS,
)
PIPELINES = Layout(
    "pipelines",
    "Aims of the pipelines",
    spark.CONTESTANTS,
    (
        Ratio(f"{KLAMM} / official", KLAMM, spark.OFFICIAL),
        Ratio(f"{KLAMM} / confluent-kafka", KLAMM, spark.CONFLUENT_ARROW),
        Ratio(f"{KLAMM} / ceiling", KLAMM, spark.CEILING),
    ),
    PIPELINE_AIMS,
)
LAYOUTS = (BROKERS, CLUSTERS, CLIENTS, PIPELINES)


def layout_of(section: str) -> Layout:
    if section in (spark.SECTION, tables.SECTION):
        return PIPELINES
    if section == cluster.SECTION:
        return CLUSTERS
    return CLIENTS if section in CLIENT_SECTIONS else BROKERS
