"""How the test files are shared out among the processes of `make test`.

Each file is run by one process. All files that need a Spark session are run by the same process, because a
start of Spark takes as long as hundreds of other tests; and first, because together they take longest. The
files that need an Apache Kafka and can share it are run by the same process, too; so are those that need a
cluster of three.

The process with Spark gets no tests of our client: those look for sockets and threads that a client has left
behind, and py4j, through which Python talks to Spark, opens and closes its own in the background.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

WITH_SPARK = (
    "tests/pipelines/",
    "tests/spark/",
    "tests/docs/test_pipeline_examples.py",
    "tests/docs/test_spark_examples.py",
)
WITH_KAFKA = (
    "tests/client/admin/",
    "tests/client/behaviour/",
    "tests/client/consumer/test_transactions.py",
    "tests/client/groups/",
    "tests/peers/test_refused_batches.py",
    "tests/spark/test_source_transactions.py",
)
WITH_KAFKA_CLUSTER = ("tests/client/cluster/",)
LOOKING_FOR_LEAKS = ("tests/client/",)

SPARK = "spark"
KAFKA_CLUSTER = "tests/client/ with three brokers of Apache Kafka"
KAFKA = "tests/client/ with Apache Kafka"
"""The names of the shares that are more than a file."""


def turn(nodeid: str) -> int:
    """The order of tests in several processes: with Spark, with Apache Kafka, of our client, all others."""
    if nodeid.startswith((*WITH_KAFKA, *WITH_KAFKA_CLUSTER)):
        return 1
    if nodeid.startswith(WITH_SPARK):
        return 0
    return 2 if nodeid.startswith(LOOKING_FOR_LEAKS) else 3


def turn_in_one_process(nodeid: str) -> int:
    """The order of tests in one process: with Spark last."""
    return int(nodeid.startswith(WITH_SPARK))


class SharingOut(LoadScopeScheduling):
    """Hands out shares of tests: a process gets the next one when it is nearly done with what it has."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(WITH_KAFKA):
            return KAFKA
        if nodeid.startswith(WITH_KAFKA_CLUSTER):
            return KAFKA_CLUSTER
        return SPARK if nodeid.startswith(WITH_SPARK) else nodeid.partition("::")[0]

    def _assign_work_unit(self, node: WorkerController) -> None:
        if SPARK in self.assigned_work.get(node, {}):
            allowed = [share for share in self.workqueue if not share.startswith(LOOKING_FOR_LEAKS)]
            if not allowed:
                node.shutdown()
                return
            self.workqueue.move_to_end(allowed[0], last=False)
        super()._assign_work_unit(node)
