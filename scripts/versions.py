"""Tests Klamm with the oldest and with the newest version of each dependency that pyproject.toml allows.

    .venv/bin/python scripts/versions.py            both
    .venv/bin/python scripts/versions.py oldest     one of them

Each end of the ranges gets an environment of its own in .cache/versions, which is made anew when
pyproject.toml changes. The tools of the tests are the same in both, as requirements-dev.txt pins them.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from setup import CACHE, REPOSITORY, SetupError, Stamp, run, say

ENVIRONMENTS = CACHE / "versions"
EXTRAS = ("arrow", "spark")
"""The extras that code uses. Nothing imports what the others bring."""

TEST_TOOLS = (
    "aiokafka",
    "confluent-kafka",
    "hypothesis",
    "kafka-python",
    "kio",
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "pytest-xdist",
)

TESTS = (
    "tests/testing",  # a broker, both clients, the fixtures, and all of it without uvloop
    "tests/cli/test_up.py",
    "tests/records",  # checksums, codecs and columns
    "tests/client/producer/test_columns.py",
    "tests/spark/test_source_batch.py",
    "tests/pipelines/decoding",
    "tests/pipelines/test_writing.py",
)
"""A part of the tests that touches every dependency."""

_LOWER_BOUND = re.compile(r"([A-Za-z0-9_.-]+)>=([^,;\s]+)")


def dependencies(pyproject: Path = REPOSITORY / "pyproject.toml") -> list[str]:
    """What Klamm and the extras of `EXTRAS` require, without Klamm itself."""
    project = tomllib.loads(pyproject.read_text())["project"]
    required = [*project["dependencies"]]
    for extra in EXTRAS:
        required += project["optional-dependencies"][extra]
    return [each for each in required if not each.startswith("klamm")]


def oldest_versions(required: list[str]) -> list[str]:
    """The lower bound of each requirement as an exact version."""
    pins = []
    for each in required:
        bound = _LOWER_BOUND.match(each)
        if bound is None:
            raise SetupError(f"{each!r} in pyproject.toml has no lower bound: write name>=version")
        pins.append(f"{bound[1]}=={bound[2]}")
    return pins


def tools_of_the_tests() -> list[str]:
    """The lines of requirements-dev.txt that `TEST_TOOLS` names."""
    lines = (REPOSITORY / "requirements-dev.txt").read_text().splitlines()
    return [line for line in lines if line.partition("==")[0] in TEST_TOOLS]


def make_environment(end: str) -> Path:
    """An environment with the `oldest` or the `newest` versions; returns its Python."""
    folder = ENVIRONMENTS / end
    python = folder / "bin/python"
    stamp = Stamp(folder / "klamm.stamp", REPOSITORY / "pyproject.toml", Path(__file__))
    if stamp.stands():
        return python
    say(f"installing the {end} versions into {folder.relative_to(REPOSITORY)} (Spark among them: 430 MB)")
    run([sys.executable, "-m", "venv", "--clear", folder])
    required = dependencies()
    versions = oldest_versions(required) if end == "oldest" else ["--upgrade", *required]
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # Spark hands out pandas; which one suits is a question of numpy's version.
    run([*install, *versions, "pandas", *tools_of_the_tests()])
    run([*install, "--no-deps", "-e", REPOSITORY])
    stamp.set()
    return python


def main() -> int:
    parser = argparse.ArgumentParser(description="Test Klamm with both ends of its dependencies' ranges.")
    parser.add_argument("ends", nargs="*", metavar="END", help="oldest, newest, or both when left out")
    ends = parser.parse_args().ends or ["oldest", "newest"]
    failed = []
    for end in ends:
        try:
            python = make_environment(end)
        except SetupError as error:
            say(str(error))
            return 1
        say(f"testing with the {end} versions")
        if (
            subprocess.run([python, "-m", "pytest", "-q", *TESTS], cwd=REPOSITORY, check=False).returncode
            != 0
        ):
            failed.append(end)
    for end in failed:
        say(f"the tests failed with the {end} versions that pyproject.toml allows")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
