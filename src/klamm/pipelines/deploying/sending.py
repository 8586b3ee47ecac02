"""Sends the packages of this environment to the executors of a cluster, by `spark.archives`.

Spark unpacks the archive into the working folder of every executor, where PYTHONPATH names it. So the
machines of the cluster need Spark and a Python of the same version as here, and no package.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from klamm.pipelines.deploying.packages import archive_for
from klamm.pipelines.project import Project
from klamm.pipelines.state import State
from pyspark_klamm.session import is_submitted

FOLDER = "klamm-packages"
"""The folder in an executor's working folder that has the packages."""

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
"""The Python of the executors: packages with native code fit one version."""


def package_settings(archive: Path, spark: Mapping[str, str]) -> dict[str, str]:
    """The settings that bring the archive to the executors, beside the user's own."""
    return {
        "spark.archives": _joined(",", spark.get("spark.archives"), f"{archive}#{FOLDER}"),
        "spark.executorEnv.PYTHONPATH": _joined(":", FOLDER, spark.get("spark.executorEnv.PYTHONPATH")),
        "spark.pyspark.python": spark.get("spark.pyspark.python", PYTHON),
    }


def session_settings(project: Project) -> dict[str, str]:
    """The settings of a session whose driver is this process: those of klamm.toml, and what sends the
    packages if it says so."""
    settings = dict(project.spark)
    if is_submitted():
        settings.pop("spark.jars", None)  # spark-submit was given them; here they may have other paths
    elif project.packages == "send" and not project.master.startswith("local"):
        settings |= _sent_from_here(project)
    return settings


def _sent_from_here(project: Project) -> dict[str, str]:
    """The settings that send the packages; makes the archive if needed.

    The driver starts Python processes of its own by the executors' command, so they are shown this Python and
    its packages: PATH and PYTHONPATH are set for the JVM that is started next.
    """
    archive, _ = archive_for(project, project.state / "packages", keep_others=State(project).in_use())
    settings = package_settings(archive, project.spark)
    os.environ.setdefault("PYSPARK_PYTHON", settings["spark.pyspark.python"])
    os.environ["PATH"] = _joined(os.pathsep, str(Path(sys.executable).parent), os.environ.get("PATH"))
    here = [entry for entry in sys.path if entry and Path(entry).is_dir() and entry not in _standard_places()]
    os.environ["PYTHONPATH"] = os.pathsep.join(here)
    return settings


def _standard_places() -> set[str]:
    """Where the standard library is: another Python of the same version has its own."""
    paths = sysconfig.get_paths()
    stdlib = {paths["stdlib"], paths["platstdlib"]}
    return stdlib | {os.path.join(each, "lib-dynload") for each in stdlib}


def _joined(separator: str, *parts: str | None) -> str:
    return separator.join(part for part in parts if part)
