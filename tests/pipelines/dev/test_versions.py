from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
from pyspark import SparkContext

from klamm.pipelines.dev.versions import OtherModules, Version, pipelines_using
from klamm.pipelines.discovery import discover, isolated, modules_of, without_session
from klamm.pipelines.project import Project
from tests.pipelines.projects import make_project

ORDERS = """
from lib.rates import RATE
from pipelines._helpers import double

@source(topic="orders", schema="orders.json")
def orders(rows):
    return rows

@transform
def priced(orders):
    from pipelines._late import LATE
    return double(RATE), LATE

@pipeline(to=to_table("priced"))
def priced_table(priced):
    return priced

@pipeline(to=to_table("orders"))
def orders_table(orders):
    return orders
"""


def write(root: Path, rate: int = 1, factor: int = 2, orders: str = ORDERS) -> Project:
    (root / "lib").mkdir(exist_ok=True)
    (root / "lib/rates.py").write_text(f"RATE = {rate}\n")
    helper = f"def double(number):\n    return {factor} * number\n"
    return make_project(root, {"orders.py": orders, "_helpers.py": helper, "_late.py": f"LATE = {rate}\n"})


def priced(version: Version) -> object:
    with version.in_use() as definitions:
        return definitions.nodes["priced"].function(None)


def test_two_versions_run_in_turn(tmp_path: Path) -> None:
    """Also with a module that a function imports when it is called, and with files of the same size that are
    saved within a second."""
    before = set(sys.modules)
    first = Version(write(tmp_path, rate=1, factor=2))
    assert priced(first) == (2, 1)
    second = Version(write(tmp_path, rate=2, factor=4))
    assert [priced(each) for each in (first, second, first)] == [(2, 1), (8, 2), (2, 1)]
    kept = set(sys.modules) - before
    assert not [name for name in kept if name.partition(".")[0] in ("pipelines", "lib")]
    assert {path.relative_to(tmp_path).as_posix() for path in second.files} == {
        "lib/rates.py",
        "pipelines/orders.py",
        "pipelines/_helpers.py",
        "pipelines/_late.py",
    }


def test_what_changed_and_which_pipelines_use_it(tmp_path: Path) -> None:
    first = Version(write(tmp_path))
    again = Version(write(tmp_path))
    saved = tmp_path / "pipelines/orders.py"
    everything = {"orders", "priced", "priced_table", "orders_table"}
    assert again.changed_since(first, frozenset([saved])) == everything, "whoever saves wants to see"
    assert again.changed_since(first, frozenset()) == set()
    rated = Version(write(tmp_path, rate=7))
    assert rated.changed_since(first, frozenset([tmp_path / "lib/rates.py"])) == {"priced"}
    late = tmp_path / "pipelines/_late.py"
    late.write_text("LATE = 8\n")
    assert Version(rated.project).changed_since(rated, frozenset([late])) == {"priced"}, (
        "imported by nobody yet"
    )
    assert pipelines_using({"priced"}, rated.definitions) == ["priced_table"]
    assert pipelines_using({"orders"}, rated.definitions) == ["priced_table", "orders_table"]
    schema = frozenset([tmp_path / "schemas/orders.json"])
    assert Version(write(tmp_path, rate=7)).changed_since(rated, schema) == {"orders"}


def test_a_broken_version_harms_no_other(tmp_path: Path) -> None:
    first = Version(write(tmp_path))
    broken = Version(write(tmp_path, orders=ORDERS + "\n1 / 0\n"))
    assert "ZeroDivisionError" in str(broken.found.problems[0])
    assert priced(first) == (2, 1)


def test_files_are_imported_without_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a run does: what is written for a session alone must not seem to work."""
    monkeypatch.setattr(SparkContext, "_active_spark_context", object())
    text = "from pyspark import SparkContext\nassert SparkContext._active_spark_context is None\n"
    project = make_project(tmp_path, text)
    assert Version(project).found.problems == ()
    with isolated(tmp_path):
        assert discover(project).problems, "only where it is asked for"
    with isolated(tmp_path), without_session():
        assert not discover(project).problems
    assert SparkContext._active_spark_context is not None


def test_an_environment_inside_the_project_stays_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    installed = types.ModuleType("installed_package")
    installed.__path__ = [str(tmp_path / ".venv/lib/installed_package")]
    installed.__file__ = str(tmp_path / ".venv/lib/installed_package/__init__.py")
    monkeypatch.setitem(sys.modules, "installed_package", installed)
    own = types.ModuleType("own_package")
    own.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "own_package", own)
    assert list(modules_of(tmp_path)) == ["own_package"]
    with isolated(tmp_path):
        assert sys.modules["installed_package"] is installed
        assert "own_package" not in sys.modules


def test_changed_modules_of_others_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = write(tmp_path / "shop") if (tmp_path / "shop").mkdir() is None else None
    assert project is not None
    library = tmp_path / "company_library.py"
    library.write_text("X = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    others = OtherModules(project)
    import company_library  # type: ignore[import-not-found]

    assert company_library.X == 1
    assert others.outdated() == []
    import os

    os.utime(library, (1, 1))
    assert others.outdated() == ["company_library"]
    monkeypatch.delitem(sys.modules, "company_library")
