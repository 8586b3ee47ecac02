from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from klamm.pipelines import discovery
from klamm.pipelines.discovery import discover, importable, isolated, load_definitions
from klamm.pipelines.errors import DefinitionError, UserCodeError
from tests.pipelines.projects import make_project

ORDERS = """
@source(topic="orders", schema="id STRING")
@expect("has an id", "id IS NOT NULL", otherwise="drop")
def orders(rows):
    return rows

@transform
def clean(orders):
    return orders

@pipeline(to=to_table("clean"))
def table(clean):
    return clean
"""


def test_definitions_are_found_in_order(tmp_path: Path) -> None:
    more = """
    from pipelines.orders import clean      # counted once, where it is written

    @transform
    def more(clean):
        return clean
    """
    project = make_project(tmp_path, {"orders.py": ORDERS, "sub/more.py": more, "_helper.py": "1 / 0"})
    definitions = load_definitions(project)
    assert list(definitions.nodes) == ["orders", "clean", "table", "more"]
    assert list(definitions.sources) == ["orders"]
    assert list(definitions.transforms) == ["clean", "more"]
    assert list(definitions.pipelines) == ["table"]
    assert definitions.nodes["orders"].expectations[0].name == "has an id"
    assert definitions.nodes["orders"].place == (tmp_path / "pipelines/orders.py", 3)


def test_helpers_are_imported_and_named(tmp_path: Path) -> None:
    files = {
        "_helpers.py": "TOPIC = 'orders'\n",
        "a.py": """
        from pipelines._helpers import TOPIC

        @source(topic=TOPIC, format="text")
        def orders(rows):
            return rows
        """,
    }
    definitions = load_definitions(make_project(tmp_path, files))
    assert definitions.sources["orders"].topics == ("orders",)
    assert {module.__name__ for module in definitions.modules} == {"pipelines.a", "pipelines._helpers"}


def test_a_changed_file_counts(tmp_path: Path) -> None:
    project = make_project(tmp_path, ORDERS)
    assert "clean" in load_definitions(project).nodes
    make_project(tmp_path, ORDERS.replace("clean(", "clear(").replace("table(clean)", "table(clear)"))
    assert list(load_definitions(project).nodes) == ["orders", "clear", "table"]
    assert not list(tmp_path.rglob("*.pyc"))


def test_projects_do_not_see_each_other(tmp_path: Path) -> None:
    one = make_project(tmp_path / "one", ORDERS)
    two = make_project(tmp_path / "two", {"b.py": "import pipelines.orders\n"})
    assert load_definitions(one).nodes
    with pytest.raises(UserCodeError, match=r"No module named 'pipelines\.orders'"):
        load_definitions(two)
    assert load_definitions(one).nodes


def test_what_is_put_back_after_another_version_is_not_seen_by_the_next_project(tmp_path: Path) -> None:
    one = make_project(tmp_path / "one", ORDERS)
    other = make_project(tmp_path / "other", {"a.py": "X = 1\n"})
    two = make_project(tmp_path / "two", {"b.py": "import pipelines.orders\n"})
    assert load_definitions(one).nodes
    with isolated(other.root, other.pipelines):
        discover(other)
    with pytest.raises(UserCodeError, match=r"No module named 'pipelines\.orders'"):
        load_definitions(two)


def test_a_projects_folder_is_on_the_path_only_while_its_code_runs(tmp_path: Path) -> None:
    project = make_project(tmp_path / "one", ORDERS)
    path = list(sys.path)
    load_definitions(project)
    assert sys.path == path
    with importable(project):
        assert sys.path == [str(project.root), *path]
    assert sys.path == path


def test_all_problems_are_told_with_the_users_lines(tmp_path: Path) -> None:
    files = {
        "a.py": "\n\nimport no_such_module\n",
        "b.py": "\ndef broken(:\n",
        "c.py": "\nfrom pipelines._deep import fall\n\nfall()\n",
        "_deep.py": "\n\ndef fall():\n    import json\n    json.loads('{')\n",
        "d.py": "\n@transform\ndef one(*rest):\n    return 1\n",
        "e.py": "\n@expect('a', 'b > 0')\ndef alone(rows):\n    return rows\n",
        "f.py": ORDERS,
        "g.py": "raise SystemExit(3)\n",
    }
    problems = discover(make_project(tmp_path, files)).problems
    folder = tmp_path / "pipelines"
    assert [problem.place for problem in problems] == [
        (folder / "a.py", 4),
        (folder / "b.py", 3),
        (folder / "_deep.py", 6),
        (folder / "d.py", 3),
        (folder / "e.py", 3),
        (folder / "g.py", 2),
    ]
    assert "importing pipelines/a.py failed: ModuleNotFoundError" in str(problems[0])
    assert "SyntaxError" in str(problems[1])
    assert "JSONDecodeError" in str(problems[2])
    assert "does not name an input" in str(problems[3])
    assert "is not a source, transform or pipeline" in str(problems[4])


def test_two_of_one_name_are_a_problem(tmp_path: Path) -> None:
    again = "\n@transform\ndef clean(orders):\n    return orders\n"
    found = discover(make_project(tmp_path, {"a.py": ORDERS, "b.py": again}))
    (problem,) = found.problems
    assert isinstance(problem, DefinitionError)
    assert "there are two functions called clean" in str(problem)
    assert str(tmp_path / "pipelines/a.py:8") in str(problem)


def test_a_missing_folder_is_a_problem(tmp_path: Path) -> None:
    project = make_project(tmp_path, toml='[project]\nname = "shop"\npipelines = "none"\n')
    assert "there is no folder" in str(discover(project).problems[0])


_PROBLEMS = """
import sys
from klamm.pipelines.discovery import discover
from klamm.pipelines.project import Project
print(*discover(Project.load(sys.argv[1])).problems, sep="\\n")
"""


def test_what_wants_a_session_at_import_is_told_with_a_way_out(tmp_path: Path) -> None:
    """In a process without Spark, as lint is."""
    begin = "from pyspark.sql import functions as F\n"
    udf, column = "@F.udf('int')\ndef one(x): return 1\n", "LARGE = F.col('amount') > 10\n"
    make_project(tmp_path, {"a.py": begin + udf, "b.py": begin + column})
    asked = subprocess.run(
        [sys.executable, "-c", _PROBLEMS, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    told = asked.stdout.splitlines()
    assert len(told) == 2, asked.stderr
    assert all("There is no Spark session while files are imported" in line for line in told)


def test_projects_that_were_imported_before_cost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may import many projects, or one many times from other folders."""
    searched: list[int] = []
    forget = discovery._forget
    monkeypatch.setattr(
        discovery, "_forget", lambda folders: (searched.append(len(folders)), forget(folders))
    )
    for number in range(5):
        load_definitions(make_project(tmp_path / str(number), ORDERS))
    assert max(searched) <= 2, "the folder of the last project, and that of the next"
