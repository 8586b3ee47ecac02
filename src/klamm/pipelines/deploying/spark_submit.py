"""The command of spark-submit that runs a project on a cluster, with the driver on the cluster too.

YARN and Kubernetes start such drivers. A standalone cluster does not, for Python: there the driver is the
process of `klamm pipeline run`.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from klamm.pipelines.deploying.kubernetes import dns_name
from klamm.pipelines.deploying.project_files import looked_up
from klamm.pipelines.deploying.sending import FOLDER, PYTHON, package_settings
from klamm.pipelines.errors import ProjectError
from klamm.pipelines.project import Project

PROJECT_FOLDER = "klamm-project"
"""The folder in the driver's working folder that has the project."""

_IMAGE = "spark.kubernetes.container.image"
_UPLOADS = "spark.kubernetes.file.upload.path"
_DRIVER_JAVA = "spark.driver.extraJavaOptions"


@dataclass(frozen=True)
class Submission:
    """What is submitted. `packages` is None if the cluster has them."""

    project: Path
    packages: Path | None
    main: Path
    jar: Path
    names: tuple[str, ...] = ()
    once: bool = False
    bootstrap: str | None = None


def check_master(project: Project) -> None:
    """Raise if Spark cannot start a driver there, before anything is made."""
    master = project.master
    if master.startswith("local"):
        raise ProjectError(
            f"submit starts a driver on a cluster, but the master is {master}",
            advice="Use `klamm pipeline run`, or give --master yarn or --master k8s://…",
        )
    if master.startswith("spark://"):
        raise ProjectError(
            f"{master} is a standalone cluster, which starts no drivers in Python",
            advice='Use `klamm pipeline run`: the driver runs here, and with packages = "send" under [spark] '
            "the workers need only Spark and Python",
        )
    if master != "yarn" and not master.startswith("k8s://"):
        raise ProjectError(
            f"the master {master} is not known", advice="Give --master yarn or --master k8s://HOST:PORT"
        )


def settings_of(project: Project, packages: Path | None, more: Mapping[str, str]) -> dict[str, str]:
    """The settings of the driver: those of klamm.toml, overridden by `more`, and ours. Raises ProjectError if
    one is missing."""
    from pyspark_klamm.session import DEEP_STACKS

    settings = {**project.spark, **more}
    settings.pop("spark.jars", None)
    settings[_DRIVER_JAVA] = " ".join(filter(None, [DEEP_STACKS, settings.get(_DRIVER_JAVA)]))
    settings.setdefault("spark.pyspark.python", PYTHON)
    on_yarn = project.master == "yarn"
    if packages is not None:
        settings |= package_settings(packages, settings)
        path = "spark.yarn.appMasterEnv.PYTHONPATH" if on_yarn else "spark.kubernetes.driverEnv.PYTHONPATH"
        settings[path] = ":".join(filter(None, [FOLDER, settings.get(path)]))
    if on_yarn:
        return settings
    if _IMAGE not in settings:
        raise ProjectError(
            "Spark needs an image for its pods",
            advice=f"Set {_IMAGE} under [spark], or give --conf {_IMAGE}=…: an image of Spark with {PYTHON}",
        )
    if _UPLOADS not in settings:
        raise ProjectError(
            "Spark has to put the project where its pods can read it",
            advice=f"Set {_UPLOADS} under [spark], or give --conf {_UPLOADS}=…: a folder on S3 or HDFS",
        )
    for name in looked_up(project, "env"):
        if f"spark.kubernetes.driverEnv.{name}" not in settings:
            settings.setdefault(
                f"spark.kubernetes.driver.secretKeyRef.{name}", f"{dns_name(project.name)}:{name}"
            )
    return settings


def missing_variables(project: Project, settings: Mapping[str, str]) -> list[str]:
    """The environment variables of klamm.toml that a driver on YARN is not given."""
    if project.master != "yarn":
        return []
    names = looked_up(project, "env")
    return [name for name in names if f"spark.yarn.appMasterEnv.{name}" not in settings]


def command(project: Project, submission: Submission, settings: Mapping[str, str]) -> list[str]:
    """The words of the command, beginning with spark-submit."""
    settings = dict(settings)
    archives = [settings.pop("spark.archives", ""), f"{submission.project}#{PROJECT_FOLDER}"]
    jars = [project.spark.get("spark.jars", ""), str(submission.jar)]
    words = ["spark-submit", "--master", project.master, "--deploy-mode", "cluster", "--name", project.name]
    words += ["--archives", ",".join(filter(None, archives)), "--jars", ",".join(filter(None, jars))]
    for name, value in sorted(settings.items()):
        words += ["--conf", f"{name}={value}"]
    words += [str(submission.main), "pipeline", "run", *submission.names]
    words += ["--project", PROJECT_FOLDER, "--master", project.master]
    if submission.bootstrap is not None:
        words += ["--bootstrap", submission.bootstrap]
    return [*words, "--once"] if submission.once else words


def script(words: Sequence[str]) -> str:
    """The command as a shell script, with one argument a line."""
    lines: list[str] = []
    for word in words:
        if word.startswith("--") or not lines or not lines[-1].startswith("--") or " " in lines[-1]:
            lines.append(shlex.quote(word))
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return '#!/bin/sh\ncd "$(dirname "$0")" || exit\nexec ' + " \\\n  ".join(lines) + "\n"


def spark_home() -> Path:
    """The Spark whose spark-submit is used: SPARK_HOME, or the one of PySpark."""
    import pyspark

    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
