from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from klamm.pipelines.deploying.imports import imported_names
from klamm.pipelines.deploying.project_files import check_state, looked_up, project_files, write_project
from klamm.pipelines.errors import ProjectError
from klamm.pipelines.project import Project
from tests.pipelines.projects import make_project

TOML = """
    [project]
    name = "shop"
    tables = "pipelines/tables"
    [storage]
    # aws_session_token = "${env:OLD}"
    aws_access_key_id = "${env:AWS_KEY}"
    aws_secret_access_key = "${file:schemas/aws}"
"""
ORDERS = """
    import prices
    from pipelines._rates import RATE

    @source(topic="orders", schema="n BIGINT")
    def orders(rows):
        from lookups.items import ITEMS
        return rows

    @pipeline(to=topic("large"))
    def large(orders):
        return orders
"""


@pytest.fixture
def shop(tmp_path: Path) -> Project:
    others = {
        "schemas/orders.json": "{}",
        "schemas/aws": "a secret",
        "pipelines/_rates.py": "RATE = 1\n",
        "pipelines/rates.csv": "1,2\n",
        "pipelines/__pycache__/orders.pyc": "",
        "pipelines/.orders.py.swp": "",
        "pipelines/tables/orders/_delta_log/0.json": "",
        ".klamm/generations/orders.json": "{}",
        ".env": "AWS_KEY=secret",
        "tests/test_orders.py": "import unused\n",
        "unused.py": "",
        "prices.py": "import currencies\n",
        "currencies.py": "import prices\n",
        "lookups/__init__.py": "",
        "lookups/items.py": "ITEMS = 1\n",
        "lookups/items.json": "[]",
    }
    for name, text in others.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    make_project(tmp_path, ORDERS, toml=TOML.partition("    [storage]")[0])
    (tmp_path / "klamm.toml").write_text(TOML)
    return Project.load(tmp_path, without=("storage",))


def test_what_runs_is_sent_and_secrets_are_not(shop: Project) -> None:
    assert list(project_files(shop)) == [
        "currencies.py",
        "klamm.toml",
        "lookups/__init__.py",
        "lookups/items.json",
        "lookups/items.py",
        "pipelines/_rates.py",
        "pipelines/orders.py",
        "pipelines/rates.csv",
        "prices.py",
        "schemas/orders.json",
    ]
    assert looked_up(shop, "env") == ["AWS_KEY"]
    assert looked_up(shop, "file") == ["schemas/aws"]


def test_a_folder_elsewhere_cannot_be_sent(shop: Project, tmp_path: Path) -> None:
    elsewhere = replace(shop, schemas=tmp_path.parent / "schemas")
    with pytest.raises(ProjectError, match=r"schemas = .* lies outside of the project's folder"):
        project_files(elsewhere)


def test_the_same_files_make_the_same_zip(shop: Project, tmp_path: Path) -> None:
    one, other = tmp_path / "one.zip", tmp_path / "new/other.zip"
    write_project(project_files(shop), one)
    (shop.root / "prices.py").touch()
    write_project(project_files(shop), other)
    assert one.read_bytes() == other.read_bytes()
    with zipfile.ZipFile(other) as archive:
        assert archive.read("pipelines/rates.csv") == b"1,2\n"
    assert [each.name for each in other.parent.iterdir()] == ["other.zip"]


def test_imports_are_found_wherever_they_are() -> None:
    source = """
import os.path, numpy as np
from pandas.io import json
from . import sibling
from ..other import thing
def f():
    import lazy.inner
"""
    assert imported_names(source) == {"os", "numpy", "pandas", "lazy"}
    assert imported_names("def broken(:") == set()


def test_a_topic_needs_a_state_that_outlives_the_driver(shop: Project) -> None:
    for names in ((), ("large",)):
        with pytest.raises(
            ProjectError, match=r"large writes to topic large, and .* is lost with the driver"
        ):
            check_state(shop, names)
    check_state(replace(shop, shared_state="s3://bucket/state"), ())
    make_project(shop.root, ORDERS.replace('topic("large")', 'to_table("large")'), toml=TOML.split("[st")[0])
    check_state(shop, ())
