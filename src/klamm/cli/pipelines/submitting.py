"""`klamm pipeline submit`: packs a project for a cluster and calls spark-submit, or prints a manifest."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from klamm.cli.pipelines import submitted
from klamm.pipelines.definitions import INFER
from klamm.pipelines.deploying.kubernetes import manifest
from klamm.pipelines.deploying.packages import archive_for
from klamm.pipelines.deploying.project_files import check_state, project_files, write_project
from klamm.pipelines.deploying.spark_submit import (
    Submission,
    check_master,
    command,
    missing_variables,
    script,
    settings_of,
    spark_home,
)
from klamm.pipelines.deploying.yaml import documents
from klamm.pipelines.discovery import load_definitions
from klamm.pipelines.errors import ProjectError
from klamm.pipelines.project import Project
from klamm.pipelines.schemas.resolving import schema_of

SECRETS = ("kafka", "storage")
"""The sections with secrets, which only the driver needs."""

PROJECT_ARCHIVE, MAIN_FILE, JAR, SCRIPT = "project.zip", "klamm_main.py", "klamm-spark.jar", "submit.sh"


def print_manifest(project: Project, image: str, names: Sequence[str], *, once: bool) -> None:
    _check(project, names)
    made = manifest(project, image, Path(submitted.__file__), names, once=once)
    sys.stdout.write(documents(made))


def submit(
    project: Project,
    names: Sequence[str],
    *,
    once: bool,
    bootstrap: str | None,
    settings: Mapping[str, str],
    output: Path | None,
) -> None:
    """Write what spark-submit needs, and become spark-submit; with `output` write it there, and end."""
    from klamm.pipelines.runner import check_places

    check_master(project)
    check_places(project)
    _check(project, names)
    folder = output or project.state / "submit"
    sends = project.packages != "installed"
    # Checked before half a minute of packing, with the name of an archive that is not there yet.
    archive = folder / "packages.tar.gz" if sends else None
    missing = missing_variables(project, settings_of(project, archive, settings))
    if missing:
        typer.echo(
            f"klamm: klamm.toml looks up {', '.join(missing)} in the environment of the driver: give --conf "
            f"spark.yarn.appMasterEnv.{missing[0]}=…, or use ${{file:PATH}}",
            err=True,
        )
    write_project(project_files(project), folder / PROJECT_ARCHIVE)
    shutil.copyfile(submitted.__file__, folder / MAIN_FILE)
    _copy_jar(folder / JAR)
    if sends:
        archive, packages = archive_for(project, folder, keep_others=False)
        for name, importer in sorted(packages.unknown.items()):
            typer.echo(
                f"klamm: {importer} imports {name}, which is not installed here and is not sent", err=True
            )
    place = Path() if output is not None else folder
    submission = Submission(
        project=place / PROJECT_ARCHIVE,
        packages=place / archive.name if archive is not None else None,
        main=place / MAIN_FILE,
        jar=place / JAR,
        names=tuple(names),
        once=once,
        bootstrap=bootstrap,
    )
    words = command(project, submission, settings_of(project, submission.packages, settings))
    if output is not None:
        file = folder / SCRIPT
        file.write_text(script(words))
        file.chmod(0o755)
        typer.echo(file)
        return
    _become(words)


def _check(project: Project, names: Sequence[str]) -> None:
    """Import the project: its mistakes are found here, and not by a driver elsewhere."""
    definitions = load_definitions(project)
    pipelines = definitions.pipelines
    for name in names:
        if name not in pipelines:
            raise ProjectError(
                f"there is no pipeline called {name!r}", advice=f"There are {', '.join(pipelines)}"
            )
    for source in definitions.sources.values():
        if source.schema == INFER:
            schema_of(project, source)  # raises if it has not been inferred yet
    check_state(project, names)


def _copy_jar(file: Path) -> None:
    from pyspark_klamm.jar import jar_path

    shutil.copyfile(jar_path(), file)


def _become(words: Sequence[str]) -> None:
    """Replace this process: signals and the exit status are spark-submit's own."""
    from pyspark_klamm.java import find_java

    environment = os.environ | {"JAVA_HOME": str(find_java().home), "SPARK_HOME": str(spark_home())}
    program = spark_home() / "bin" / words[0]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(program, [str(program), *words[1:]], environment)
