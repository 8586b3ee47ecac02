"""Every example of the client's documents does what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import klamm.testing
from tests.docs.examples import REPOSITORY, Block, Section, run_section, sections

PAGES = ("docs/CLIENT.md", "docs/COLUMNS.md", "docs/INGEST.md", "docs/MIGRATION.md", "README.md")
EXAMPLES = [section for page in PAGES for section in sections(page)]

TALKATIVE = "import duckdb"
"""DuckDB's bindings say at the end of a process what is left of them, whoever keeps it: here, a process that
many other tests have used. Examples with it get a process of their own."""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("section", EXAMPLES, ids=lambda section: section.name)
def test_section(
    section: Section, klamm: klamm.testing.Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if any(TALKATIVE in block.code for block in section.blocks):
        run_in_child(section, klamm.bootstrap)
    else:
        run_section(section, klamm.bootstrap)
    for block in section.blocks:
        if block.manner == "test":
            run_as_test(block, tmp_path)


def run_in_child(section: Section, bootstrap: str) -> None:
    """Run a section as its reader would, in a program of its own. It must have nothing to complain of."""
    command = [sys.executable, "-m", "tests.docs.examples", section.page, section.heading, bootstrap]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


def run_as_test(block: Block, directory: Path) -> None:
    (directory / "test_example.py").write_text(block.code)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "code", ["assert 1 == 2", "nothing_of_that_name", "await asyncio.sleep(0)\nassert 1 == 2"]
)
def test_a_wrong_example_fails(klamm: klamm.testing.Broker, code: str) -> None:
    section = Section("README.md", "wrong", [Block("run", code + "\n", 1)])
    with pytest.raises((AssertionError, NameError, ExceptionGroup)):
        run_section(section, klamm.bootstrap)


def test_a_section_that_is_not_there_fails_in_a_child(klamm: klamm.testing.Broker) -> None:
    with pytest.raises(AssertionError, match="not enough values"):
        run_in_child(Section("docs/COLUMNS.md", "no such heading"), klamm.bootstrap)


def test_all_pages_have_examples() -> None:
    assert {section.page for section in EXAMPLES} == set(PAGES)
