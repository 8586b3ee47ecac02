"""A project as a git revision has it, taken out into a temporary folder.

`git archive` reads the repository only: neither the user's files nor the index change. The project taken out
has the pipelines, schemas and all other committed files of that revision. Brokers, tables, state and Spark's
settings are the present ones, since two versions of the code are compared, not two places.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from klamm.config.files import read_config_file
from klamm.config.rows import ConfigError
from klamm.pipelines.errors import PipelineError
from klamm.pipelines.project import PROJECT_FILE, Project


class RevisionError(PipelineError):
    """A revision of the project cannot be had from git."""


@contextmanager
def taken_out(project: Project, revision: str) -> Iterator[Project]:
    """The project at a revision, until the end of the context. Raises RevisionError."""
    top = Path(_git(project.root, "rev-parse", "--show-toplevel"))
    commit = _commit(project, revision)
    with tempfile.TemporaryDirectory(prefix="klamm-diff-") as name:
        folder = Path(name).resolve()
        root = folder / project.root.relative_to(top.resolve())
        _extract(top, commit, root.relative_to(folder), folder)
        if not (root / PROJECT_FILE).is_file():
            raise RevisionError(
                f"{revision} has no {PROJECT_FILE} in {project.root}",
                advice="Name a revision with --base that has the project",
            )
        base = version_at(project, root)
        for other in (base.pipelines, base.schemas):
            if not other.is_relative_to(root) and other.is_relative_to(folder):
                _extract(top, commit, other.relative_to(folder), folder)
        _take_over_inferred_schemas(project, base)
        yield base


def version_at(project: Project, root: Path) -> Project:
    """The project with the files of another version of it, which lies at `root`."""
    folders = {"pipelines": "pipelines", "schemas": "schemas"}
    try:
        for setting in read_config_file(root / PROJECT_FILE):
            section, _, key = setting.name.partition(".")
            if section == "project" and key in folders:
                folders[key] = setting.text
    except ConfigError as error:
        raise RevisionError(f"the older {PROJECT_FILE} cannot be read: {error}") from None
    return replace(
        project,
        root=root,
        pipelines=(root / folders["pipelines"]).resolve(),
        schemas=(root / folders["schemas"]).resolve(),
    )


def _take_over_inferred_schemas(project: Project, base: Project) -> None:
    """Schema files that the revision does not have are the present ones: they may have been inferred and not
    committed, and inferring them from other records would make a difference that is not in the code."""
    if project.schemas.is_dir():
        base.schemas.mkdir(parents=True, exist_ok=True)
        for file in project.schemas.iterdir():
            if file.is_file() and not (base.schemas / file.name).exists():
                shutil.copy(file, base.schemas / file.name)


def _commit(project: Project, revision: str) -> str:
    try:
        return _git(
            project.root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"
        )
    except RevisionError:
        raise RevisionError(
            f"{revision!r} is not a revision of the repository of {project.root}",
            advice="Give --base a commit, a branch or a tag; without any commit there is nothing to compare",
        ) from None


def _extract(top: Path, commit: str, path: Path, folder: Path) -> None:
    with tempfile.TemporaryFile() as archive:
        words = ["git", "archive", "--format=tar", commit, "--", path.as_posix()]
        done = subprocess.run(words, cwd=top, stdout=archive, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise RevisionError(
                f"git has no {path.as_posix()} at {commit[:10]}: {done.stderr.strip()}",
                advice="Commit the project first, or name another revision with --base",
            )
        archive.seek(0)
        with tarfile.open(fileobj=archive) as files:
            files.extractall(folder, filter=_inside)


def _inside(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """Leave out links that lead out of the folder."""
    try:
        return tarfile.data_filter(member, folder)
    except tarfile.FilterError:
        return None


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise RevisionError("git is not installed", advice="Install git") from None
    if done.returncode:
        reason = done.stderr.strip().removeprefix("fatal: ") or "git has no such revision"
        raise RevisionError(
            f"git cannot read the repository of {folder}: {reason}",
            advice="Keep the project in a git repository, and commit it",
        )
    return done.stdout.strip()
