"""Every example of the client's documents does what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import klamm.testing
from tests.docs.examples import Block, Section, run_section, sections

PAGES = ("docs/CLIENT.md", "docs/COLUMNS.md", "docs/MIGRATION.md", "README.md")
EXAMPLES = [section for page in PAGES for section in sections(page)]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("section", EXAMPLES, ids=lambda section: section.name)
def test_section(
    section: Section, klamm: klamm.testing.Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_section(section, klamm)
    for block in section.blocks:
        if block.manner == "test":
            run_as_test(block, tmp_path)


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
        run_section(section, klamm)


def test_all_pages_have_examples() -> None:
    assert {section.page for section in EXAMPLES} == set(PAGES)
