"""The ranges of dependencies: each has a lower end, none is a single version, and our pins lie within. Only
constraints.txt pins."""

from __future__ import annotations

import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def versions(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    import versions

    yield versions
    for name in ("versions", "setup"):
        sys.modules.pop(name, None)


def everything_required() -> list[Requirement]:
    pyproject = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    project = pyproject["project"]
    lines = [
        *pyproject["build-system"]["requires"],
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    return [Requirement(line) for line in lines if not line.startswith("klamm")]


def pins() -> dict[str, str]:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


@pytest.mark.parametrize("required", everything_required(), ids=lambda each: each.name)
def test_a_dependency_is_a_range_that_holds_our_own_version(required):
    operators = {specifier.operator for specifier in required.specifier}
    assert ">=" in operators and not operators & {"==", "===", "~="}
    assert Version(pins()[required.name]) in required.specifier


def test_spark_gets_what_its_functions_ask_for():
    """PySpark's functions over Arrow refuse to be called without pandas, too."""
    asked = [Requirement(each) for each in metadata.requires("pyspark")]
    names = {each.name for each in asked if each.marker and each.marker.evaluate({"extra": "sql"})}
    assert names > {"pandas", "pyarrow"} and names <= {each.name for each in everything_required()}


def test_what_development_needs_is_named_without_versions_and_pinned():
    lines = (REPOSITORY / "requirements-dev.txt").read_text().splitlines()
    names = [line for line in lines if not line.startswith(("#", "-e "))]
    assert names and [name for name in names if name not in pins()] == []


def test_uvloop_is_left_out_where_there_is_none():
    (uvloop,) = (each for each in everything_required() if each.name == "uvloop")
    here = {"sys_platform": "linux", "platform_python_implementation": "CPython"}
    assert uvloop.marker.evaluate(here)
    assert not uvloop.marker.evaluate({**here, "sys_platform": "win32"})
    assert not uvloop.marker.evaluate({**here, "platform_python_implementation": "PyPy"})


def test_the_oldest_versions_are_the_lower_ends(versions):
    pins = versions.oldest_versions(["numpy>=1.26.0,<3", "uvloop>=0.21.0; sys_platform != 'win32'"])
    assert pins == ["numpy==1.26.0", "uvloop==0.21.0"]
    assert len(versions.oldest_versions(versions.dependencies())) == len(versions.dependencies())
    with pytest.raises(versions.SetupError, match="no lower bound"):
        versions.oldest_versions(["numpy<3"])


def test_every_tool_of_the_tests_is_pinned_and_every_test_is_there(versions):
    assert {tool.partition("==")[0] for tool in versions.test_tool_versions()} == set(versions.TEST_TOOLS)
    assert all((REPOSITORY / test).exists() for test in versions.TESTS)
