from __future__ import annotations

import shlex
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from klamm.pipelines.deploying.sending import PYTHON
from klamm.pipelines.deploying.spark_submit import (
    Submission,
    check_master,
    command,
    missing_variables,
    script,
    settings_of,
)
from klamm.pipelines.errors import ProjectError
from klamm.pipelines.project import Project
from tests.pipelines.projects import make_project

TOML = """
    [project]
    name = "shop"
    [spark]
    master = "yarn"
    spark.executor.memory = "2g"
    spark.jars = "/jars/postgres.jar"
    spark.archives = "model.zip#model"
    spark.executorEnv.PYTHONPATH = "model"
    spark.driver.extraJavaOptions = "-Dx=1"
"""
ON_KUBERNETES = {
    "spark.kubernetes.container.image": "spark:1",
    "spark.kubernetes.file.upload.path": "s3a://bucket/uploads",
}
SUBMISSION = Submission(
    project=Path("project.zip"),
    packages=Path("packages.tar.gz"),
    main=Path("main.py"),
    jar=Path("ours.jar"),
    names=("large",),
    once=True,
    bootstrap="kafka:9092",
)


@pytest.fixture
def shop(tmp_path: Path) -> Project:
    return make_project(tmp_path, "", toml=TOML)


def arguments(words: list[str], option: str) -> list[str]:
    return [value for word, value in pairwise(words) if word == option]


def test_the_command_sends_packages_project_and_settings(shop: Project) -> None:
    settings = settings_of(
        shop, SUBMISSION.packages, {"spark.executor.memory": "4g", "spark.yarn.queue": "q"}
    )
    words = command(shop, SUBMISSION, settings)
    assert words[:7] == ["spark-submit", "--master", "yarn", "--deploy-mode", "cluster", "--name", "shop"]
    assert arguments(words, "--archives") == [
        "model.zip#model,packages.tar.gz#klamm-packages,project.zip#klamm-project"
    ]
    assert arguments(words, "--jars") == ["/jars/postgres.jar,ours.jar"]
    assert set(arguments(words, "--conf")) == {
        "spark.executor.memory=4g",
        "spark.yarn.queue=q",
        f"spark.pyspark.python={PYTHON}",
        "spark.driver.extraJavaOptions=-Xss32m -Dx=1",
        "spark.executorEnv.PYTHONPATH=klamm-packages:model",
        "spark.yarn.appMasterEnv.PYTHONPATH=klamm-packages",
    }
    run = "pipeline run large --project klamm-project --master yarn --bootstrap kafka:9092 --once"
    assert words[words.index("main.py") + 1 :] == run.split()


def test_installed_packages_are_not_sent(shop: Project) -> None:
    words = command(shop, replace(SUBMISSION, packages=None), settings_of(shop, None, {}))
    assert arguments(words, "--archives") == ["model.zip#model,project.zip#klamm-project"]
    assert not [each for each in arguments(words, "--conf") if "klamm-packages" in each]


def test_pods_get_variables_from_a_secret_unless_they_are_given(shop: Project) -> None:
    with (shop.root / "klamm.toml").open("a") as file:
        file.write('[storage]\nkey = "${env:AWS_KEY}"\nsecret = "${env:AWS_SECRET}"\n')
    pods = replace(shop, master="k8s://https://host:6443")
    settings = settings_of(
        pods, SUBMISSION.packages, {**ON_KUBERNETES, "spark.kubernetes.driverEnv.AWS_KEY": "k"}
    )
    assert settings["spark.kubernetes.driver.secretKeyRef.AWS_SECRET"] == "shop:AWS_SECRET"
    assert "spark.kubernetes.driver.secretKeyRef.AWS_KEY" not in settings
    assert settings["spark.kubernetes.driverEnv.PYTHONPATH"] == "klamm-packages"
    assert missing_variables(pods, settings) == []
    given = {"spark.yarn.appMasterEnv.AWS_KEY": "k"}
    assert missing_variables(shop, settings_of(shop, None, given)) == ["AWS_SECRET"]


@pytest.mark.parametrize("missing", ON_KUBERNETES)
def test_what_pods_need_is_asked_for(shop: Project, missing: str) -> None:
    given = {name: value for name, value in ON_KUBERNETES.items() if name != missing}
    with pytest.raises(ProjectError, match=f"Set {missing} under \\[spark\\], or give --conf {missing}"):
        settings_of(replace(shop, master="k8s://https://host:6443"), None, given)


@pytest.mark.parametrize(
    ("master", "complaint"),
    [
        ("local[*]", "submit starts a driver on a cluster, but the master is local"),
        ("spark://host:7077", "spark://host:7077 is a standalone cluster, which starts no drivers in Python"),
        ("mesos://host", "the master mesos://host is not known"),
    ],
)
def test_other_masters_are_refused(shop: Project, master: str, complaint: str) -> None:
    with pytest.raises(ProjectError, match=complaint.replace("[", r"\[")):
        check_master(replace(shop, master=master))
    check_master(shop)
    check_master(replace(shop, master="k8s://https://host:6443"))


def test_the_script_runs_the_same_words(tmp_path: Path) -> None:
    words = ["printf", "%s\n", "--conf", "a=b c", "--conf", "x='$y'", "--", "-z", "--last"]
    file = tmp_path / "submit.sh"
    file.write_text(script(words))
    done = subprocess.run(["sh", str(file)], cwd="/", capture_output=True, text=True)
    assert done.stdout.splitlines() == words[2:], (done.stderr, shlex.join(words))
