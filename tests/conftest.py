"""What all tests share: which broker they talk to, and what happens when a tool is not there."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from hypothesis import HealthCheck, settings

from tests.peers.apache_kafka import ApacheKafka
from tests.peers.kafka_jars import PeerMissing
from tests.sharing_out import SharingOut, turn, turn_in_one_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    # A query that does not end fails its test, instead of having everything wait.
    "spark.sql.streaming.stopTimeout": "60s",
}

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For every JVM that Spark starts, also in the processes of tests: tests are over before the better compiler
and the collector of garbage in threads of its own have earned what they cost."""

LONG_TIMEOUT_S = 600
"""Of a test marked `long` that has no time limit of its own. Some take a minute on an idle machine, and more
than the usual 180 s beside other loads."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--peer",
        choices=["klamm", "kafka"],
        default="klamm",
        help="the broker under the client suites: Klamm, or Apache Kafka to check the suites themselves",
    )


def pytest_configure(config: pytest.Config) -> None:
    # What is imported when it is first used, all before there are threads: pytest parses our modules itself,
    # and Python 3.11 cannot parse in two threads at once ("AST constructor recursion depth mismatch").
    for name in ("admin", "consumer", "producer"):
        import_module(f"klamm.client.plain.{name}")
    os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_START)
    # How long an example takes says more about what else the machine does than about the code.
    unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    # `make test` passes today if it passed yesterday. `make test-long` looks for what nobody has thought of.
    settings.register_profile("the same examples", unhurried, derandomize=True, max_examples=30)
    settings.register_profile("new examples", unhurried)
    settings.load_profile("the same examples" if "not long" in config.option.markexpr else "new examples")
    # A shell has what it runs in the background ignore Ctrl-C, and so would all that the tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    is_shared_out = hasattr(config, "workerinput")
    items.sort(key=lambda item: (turn if is_shared_out else turn_in_one_process)(item.nodeid))
    for item in items:
        if item.get_closest_marker("long") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SharingOut:
    return SharingOut(config, log)


def pytest_report_header(config: pytest.Config) -> str:
    return f"client suites run against: {_broker_name(config)}"


def _broker_name(config: pytest.Config) -> str:
    return os.environ.get("TEST_BOOTSTRAP") or str(config.getoption("--peer"))


def cannot_run(problem: PeerMissing) -> NoReturn:
    """Skip a test whose tool is missing, by name. In CI everything must be there, so it fails instead."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{problem} (with CI=true nothing is skipped)", pytrace=False)
    pytest.skip(str(problem))


@pytest.fixture(scope="session")
def is_klamm(request: pytest.FixtureRequest) -> bool:
    """Whether the broker under the client suites is Klamm; some tests look at its files."""
    return _broker_name(request.config) == "klamm"


@pytest.fixture(scope="session")
def apache_kafka() -> Iterator[str]:
    """The address of an Apache Kafka: one for the whole session, started when it is first asked for."""
    try:
        kafka = ApacheKafka()
    except PeerMissing as problem:
        cannot_run(problem)
    with kafka:
        yield kafka.bootstrap


@pytest.fixture(scope="session")
def klamm_bootstrap() -> Iterator[str]:
    """The address of a Klamm broker: one for the whole session, for tests with topics of their own."""
    from klamm.testing import Broker

    with Broker() as broker:
        yield broker.bootstrap


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The address of the broker that the client suites talk to: one for the whole session."""
    if address := os.environ.get("TEST_BOOTSTRAP"):
        return address
    peer = "apache_kafka" if request.config.getoption("--peer") == "kafka" else "klamm_bootstrap"
    return str(request.getfixturevalue(peer))


NOT_THE_TESTS = frozenset({"PYTEST_CURRENT_TEST", "MYPY_CONFIG_FILE_DIR", "_RJEM_MALLOC_CONF"})
"""Variables of the environment that no test sets: pytest writes there which test runs, mypy where its
configuration is, and polars, when it is imported, how it wants memory."""


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail the test that leaves the process changed: the tests after it would fail, and in another order
    they would pass.

    Variables of the environment, the working folder, entries of sys.path, and whether Spark runs.
    """
    variables, folder, path, context = dict(os.environ), os.getcwd(), list(sys.path), _spark_context()
    yield
    left: list[str] = []
    names = {name for name, value in {*variables.items()} ^ {*os.environ.items()}} - NOT_THE_TESTS
    if names:
        left.append(f"changed the environment: {', '.join(sorted(names))}")
        for name in names:
            os.environ.pop(name, None)
            if name in variables:
                os.environ[name] = variables[name]
    if os.getcwd() != folder:
        left.append(f"changed the working folder to {os.getcwd()}")
        os.chdir(folder)
    if added := [entry for entry in sys.path if entry not in path]:
        left.append(f"left on sys.path: {', '.join(added)}")
        sys.path[:] = path
    if context is not None and _spark_context() is not context:
        left.append("stopped the Spark session that other tests use")
    assert not left, f"the test {'; '.join(left)}"


def _spark_context() -> object:
    pyspark = sys.modules.get("pyspark")
    return None if pyspark is None else pyspark.SparkContext._active_spark_context


@pytest.fixture(scope="module", autouse=True)
def no_kept_clients() -> Iterator[None]:
    """Close the clients that the Spark source keeps in this process, before their broker is gone for good.

    They would look for the broker for as long as the tests run, and say so.
    """
    yield
    for module, close in (
        ("pyspark_klamm.connections", "close_connections"),
        ("pyspark_klamm.sink", "close_producers"),
    ):
        if module in sys.modules:
            getattr(sys.modules[module], close)()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one Spark session of this process: a start takes seconds, so all tests share it."""
    import pyspark_klamm

    folder = tmp_path_factory.mktemp("spark")
    places = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        # Where Derby, the database in Spark's jars, writes what it else leaves in the working folder.
        "spark.driver.extraJavaOptions": f"-Dderby.stream.error.file={folder / 'derby.log'}",
    }
    session = pyspark_klamm.session("tests", "local[2]", SPARK_SETTINGS | places)
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def klamm_spark(spark: SparkSession) -> SparkSession:
    """The plugin's fixtures use our session, too."""
    return spark
