"""Runs a part of the tests with the oldest and with the newest versions that pyproject.toml allows.

    .venv/bin/python scripts/versions.py            both
    .venv/bin/python scripts/versions.py oldest     only the oldest versions
    .venv/bin/python scripts/versions.py newest     only the newest versions

The script creates one environment for the oldest versions and one for the newest, in .cache/versions. It
creates an environment again when pyproject.toml, constraints.txt or this script changes. Both environments
hold the same test tools, in the versions of constraints.txt.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from setup import CACHE, CONSTRAINTS, REPOSITORY, SetupError, Stamp, run, say

ENVIRONMENTS = CACHE / "versions"
ENDS = ("oldest", "newest")
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
    "tests/coordination/test_zookeeper_store.py",
    "tests/records",  # checksums, codecs and columns
    "tests/client/producer/test_columns.py",
    "tests/spark/test_source_batch.py",
    "tests/pipelines/decoding",
    "tests/pipelines/test_writing.py",
    "tests/pipelines/iceberg_tables",
)
"""A part of the tests in which every dependency is used."""

_LOWER_BOUND = re.compile(r"([A-Za-z0-9_.-]+)>=([^,;\s]+)")


def dependencies(pyproject: Path = REPOSITORY / "pyproject.toml") -> list[str]:
    """The requirements of Klamm and of all its extras, without those that name Klamm itself."""
    project = tomllib.loads(pyproject.read_text())["project"]
    required = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        required += extra
    return [each for each in required if not each.startswith("klamm")]


def oldest_versions(required: list[str]) -> list[str]:
    """Each requirement with its lower bound as the exact version."""
    pins = []
    for each in required:
        bound = _LOWER_BOUND.match(each)
        if bound is None:
            raise SetupError(f"{each!r} in pyproject.toml has no lower bound: write name>=version")
        pins.append(f"{bound[1]}=={bound[2]}")
    return pins


def test_tool_versions() -> list[str]:
    """The lines of constraints.txt for the packages in `TEST_TOOLS`."""
    return [line for line in CONSTRAINTS.read_text().splitlines() if line.partition("==")[0] in TEST_TOOLS]


def make_environment(end: str) -> Path:
    """Create the environment with the `oldest` or `newest` versions, and return the path of its Python."""
    folder = ENVIRONMENTS / end
    python = folder / "bin/python"
    stamp = Stamp(folder / "klamm.stamp", REPOSITORY / "pyproject.toml", CONSTRAINTS, Path(__file__))
    if stamp.stands():
        return python
    say(f"installing the {end} versions into {folder.relative_to(REPOSITORY)} (Spark among them: 430 MB)")
    run([sys.executable, "-m", "venv", "--clear", folder])
    required = dependencies()
    versions = oldest_versions(required) if end == "oldest" else ["--upgrade", *required]
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # The tests of Spark's results need pandas. No version is named: pip picks one that fits numpy's version.
    run([*install, *versions, "pandas", *test_tool_versions()])
    run([*install, "--no-deps", "-e", REPOSITORY])
    stamp.set()
    return python


def main() -> int:
    parser = argparse.ArgumentParser(description="Test Klamm with the oldest and the newest dependencies.")
    parser.add_argument("ends", nargs="*", metavar="END", help="oldest or newest; both if left out")
    ends = parser.parse_args().ends or list(ENDS)
    for end in ends:
        if end not in ENDS:
            parser.error(f"{end!r} is not known: expected oldest or newest")
    failed = []
    for end in ends:
        try:
            python = make_environment(end)
        except SetupError as error:
            say(str(error))
            return 1
        say(f"testing with the {end} versions")
        tests = subprocess.run([python, "-m", "pytest", "-q", *TESTS], cwd=REPOSITORY, check=False)
        if tests.returncode != 0:
            failed.append(end)
    for end in failed:
        say(f"the tests failed with the {end} versions that pyproject.toml allows")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
