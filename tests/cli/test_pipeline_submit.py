"""`klamm pipeline submit`, with a program in the place of spark-submit that tells how it was called."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.cli.commands import KLAMM, clean_environment
from tests.pipelines.projects import make_project
from typer.testing import CliRunner, Result

from klamm.cli.main import app
from klamm.pipelines.project import Project

TOML = """
    [project]
    name = "shop"
    tables = "hdfs://name/tables"
    checkpoints = "hdfs://name/checkpoints"
    [spark]
    master = "yarn"
    packages = "installed"
    [storage]
    secret = "${env:NOT_SET_HERE}"
"""
ORDERS = """
    @source(topic="orders", schema="n BIGINT")
    def orders(rows):
        return rows

    @pipeline(to=to_table("orders"))
    def orders_table(orders):
        return orders
"""
TELLING = """#!{python}
import json, os, sys
print(json.dumps({{"words": sys.argv[1:], "java": os.environ["JAVA_HOME"]}}))
sys.exit(7)
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_project(tmp_path / "shop", ORDERS, toml="[project]\nname='shop'")
    (tmp_path / "shop/klamm.toml").write_text(TOML)
    program = tmp_path / "spark/bin/spark-submit"
    program.parent.mkdir(parents=True)
    program.write_text(TELLING.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.chdir(tmp_path / "shop")
    monkeypatch.delenv("KLAMM_BOOTSTRAP", raising=False)
    return tmp_path / "shop"


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["pipeline", "submit", *words])


def test_it_becomes_spark_submit(shop: Path) -> None:
    done = subprocess.run(
        [KLAMM, "pipeline", "submit", "orders_table", "--once", "--conf", "spark.yarn.queue=night"],
        cwd=shop,
        env=clean_environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 7, done.stderr
    told = json.loads(done.stdout)
    folder = shop / ".klamm/submit"
    assert f"{folder}/project.zip#klamm-project" in told["words"]
    assert "spark.yarn.queue=night" in told["words"] and (Path(told["java"]) / "bin/java").exists()
    assert "klamm.toml looks up NOT_SET_HERE in the environment of the driver" in done.stderr
    assert str(folder / "klamm_main.py") in told["words"]
    with zipfile.ZipFile(folder / "project.zip") as archive:
        assert archive.namelist() == ["klamm.toml", "pipelines/orders.py"]
    # What runs there is this command.
    words = [sys.executable, str(folder / "klamm_main.py"), "pipeline", "run", "--help"]
    helped = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"COLUMNS": "100"})
    assert "Run pipelines in one Spark session" in helped.stdout, helped.stderr


def test_with_output_it_writes_a_script(shop: Path, tmp_path: Path) -> None:
    done = run("--output", str(tmp_path / "out"), "--bootstrap", "kafka:9092")
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == str(tmp_path / "out/submit.sh")
    moved = (tmp_path / "out").rename(tmp_path / "moved")
    assert {file.name for file in moved.iterdir()} == {
        *("submit.sh", "project.zip", "klamm_main.py", "klamm-spark.jar")
    }
    path = f"{tmp_path}/spark/bin:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "JAVA_HOME": "there"}
    told = subprocess.run(
        [moved / "submit.sh"], capture_output=True, text=True, env=environment, cwd="/", check=False
    )
    words = json.loads(told.stdout)["words"]
    assert words[-2:] == ["--bootstrap", "kafka:9092"] and "project.zip#klamm-project" in words


def test_a_manifest_is_printed(shop: Path) -> None:
    done = run("--manifest", "registry/shop:1", "--master", "local[*]")
    assert done.exit_code == 0, done.output
    assert "kind: Deployment" in done.stdout and 'image: "registry/shop:1"' in done.stdout
    assert "key: NOT_SET_HERE" in done.stdout


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--master", "spark://host:7077"], "a standalone cluster, which starts no drivers in Python"),
        (["--master", "k8s://https://host"], "Spark needs an image for its pods"),
        (["no_such"], "there is no pipeline called 'no_such'"),
        (["--conf", "queue=night"], "'queue=night' is not a setting of Spark: expected spark.…=…"),
    ],
)
def test_mistakes_are_told_before_anything_is_packed(shop: Path, words: list[str], complaint: str) -> None:
    done = run(*words)
    assert done.exit_code == 1 and complaint in done.stderr, done.output
    assert not (shop / ".klamm/submit").exists()


def test_what_the_driver_would_lose_is_refused(shop: Path) -> None:
    file = shop / "klamm.toml"
    file.write_text(TOML.replace("hdfs://name/checkpoints", "checkpoints"))
    assert "checkpoints is a folder of this machine, but yarn runs on others" in run().stderr
    file.write_text(TOML)
    code = (shop / "pipelines/orders.py").read_text()
    (shop / "pipelines/orders.py").write_text(code.replace('to_table("orders")', 'topic("large")'))
    done = run()
    assert done.exit_code == 1 and "is lost with the driver" in done.stderr
    file.write_text(TOML.replace("[spark]", 'state = "hdfs://name/state"\n    [spark]'))
    assert run("--output", str(shop / "out")).exit_code == 0
    assert Project.load(shop, without=("storage",)).shared_state == "hdfs://name/state"


def test_a_schema_that_is_not_inferred_yet_is_asked_for(shop: Path) -> None:
    """A driver would write its file into a folder that is lost, and the next one might infer another."""
    code = (shop / "pipelines/orders.py").read_text()
    (shop / "pipelines/orders.py").write_text(code.replace('"n BIGINT"', '"infer"'))
    done = run("--output", str(shop / "out"))
    assert done.exit_code == 1 and not (shop / "out").exists()
    assert "the schema of orders has not been inferred yet" in done.stderr
    (shop / "schemas").mkdir()
    (shop / "schemas/orders.json").write_text('{"type": "struct", "fields": []}')
    assert run("--output", str(shop / "out")).exit_code == 0
