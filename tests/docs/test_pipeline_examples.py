"""Every example of the guide to pipelines is a project without mistakes, and its tests pass."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import klamm.testing
from klamm.cli.pipelines.scaffold import make_project
from klamm.pipelines.discovery import load_definitions
from klamm.pipelines.lint import check
from klamm.pipelines.project import Project
from klamm.testing.pipelines import PipelinesProject
from tests.docs.examples import Section, compiled, sections
from tests.pipelines.messages import ORDER_AVSC
from tests.pipelines.projects import make_project as make_test_project

GUIDE = "docs/PIPELINES.md"
PAGES = (GUIDE, "docs/TABLES.md", "docs/PIPELINE_OPERATIONS.md", "docs/PIPELINE_DEVELOPMENT.md")
SECTIONS = [section for page in PAGES for section in sections(page)]
(BEGINNING,) = [
    block.code
    for section in SECTIONS
    for block in section.blocks
    if block.code.startswith("from pyspark.sql")
]
DEFINING = [section for section in SECTIONS if any(block.manner == "run" for block in section.blocks)]
TESTING = [section for section in SECTIONS if any(block.manner == "test" for block in section.blocks)]


@pytest.mark.parametrize("section", DEFINING, ids=lambda section: section.name)
def test_what_is_defined_has_no_mistake(section: Section, tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas/payment.avsc").write_text(json.dumps(ORDER_AVSC))
    definitions = [
        block.code for block in section.blocks if block.manner == "run" and block.code != BEGINNING
    ]
    project = make_test_project(tmp_path, {"examples.py": "\n\n".join([BEGINNING, *definitions])})
    assert check(project, records=False) == []
    assert load_definitions(project).pipelines, "an example shows something that runs"


@pytest.mark.long
@pytest.mark.parametrize("section", TESTING, ids=lambda section: section.name)
def test_tests_pass(
    section: Section,
    klamm: klamm.testing.Broker,
    klamm_spark: SparkSession,
    klamm_pipelines: Callable[..., PipelinesProject],
    tmp_path: Path,
) -> None:
    make_project(tmp_path / "shop", name="shop", bootstrap=klamm.bootstrap, with_sample=False)
    names: dict[str, Any] = {"__name__": "example", "PROJECT": tmp_path / "shop"}
    given = {"klamm_spark": klamm_spark, "klamm_pipelines": klamm_pipelines}
    # So that the example finds the project's own modules.
    load_definitions(Project.load(tmp_path / "shop"))
    for block in section.blocks:
        exec(compiled(section, block, klamm.bootstrap), names)
    tests = {name: value for name, value in names.items() if name.startswith("test_")}
    assert len(tests) == len(section.blocks)
    for test in tests.values():
        test(**{name: given[name] for name in inspect.signature(test).parameters})
