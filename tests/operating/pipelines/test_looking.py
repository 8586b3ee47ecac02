from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from klamm.operating.errors import CannotDo
from klamm.operating.pipelines.looking import look
from klamm.operating.pipelines.outlines import Outlines, read_outline
from klamm.pipelines.progress import PipelineStatus
from klamm.pipelines.state import State
from klamm.pipelines.status import write_status
from tests.pipelines.projects import make_project
from tests.waiting import until

ORDERS = """
    import pathlib
    pathlib.Path(__file__).with_name("imported").open("a").write("x")

    @source(topic="orders", schema="order INT")
    def orders(rows):
        return rows

    @pipeline(to=to_table("orders"))
    def orders_table(orders):
        return orders
"""


def times_imported(folder: Path) -> int:
    return len((folder / "pipelines/imported").read_text())


def is_alive(process: str) -> bool:
    return Path("/proc", process).exists()


async def test_a_project_is_imported_again_only_when_a_file_has_changed(tmp_path: Path) -> None:
    make_project(tmp_path, ORDERS)
    outlines = Outlines()
    assert list((await look(tmp_path, outlines)).pipelines) == ["orders_table"]
    await look(tmp_path, outlines)
    assert times_imported(tmp_path) == 1
    more = """
    @pipeline(to=to_table("copies"))
    def copies(orders):
        return orders
    """
    make_project(tmp_path, ORDERS + more)
    assert list((await look(tmp_path, outlines)).pipelines) == ["orders_table", "copies"]
    assert times_imported(tmp_path) == 2


async def test_a_pipeline_has_the_status_of_its_last_run(tmp_path: Path) -> None:
    project = make_project(tmp_path, ORDERS)
    outlines = Outlines()
    found = await look(tmp_path, outlines)
    assert found.pipelines["orders_table"].state == "never ran"
    assert found.pipelines["orders_table"].key == "shop.orders_table"
    write_status(State(project), PipelineStatus("orders_table", "table orders", "failed", error="no disk"))
    write_status(State(project), PipelineStatus("removed", "table gone", "finished"))
    found = await look(tmp_path, outlines)
    status = found.pipelines["orders_table"].status
    assert status is not None and (status.state, status.error) == ("failed", "no disk")
    assert list(found.pipelines) == ["orders_table"], "pipelines that were removed are not shown"


async def test_without_an_outline_the_status_is_shown(tmp_path: Path) -> None:
    project = make_project(tmp_path, "1 / 0")
    write_status(State(project), PipelineStatus("orders_table", "table orders", "finished"))
    found = await look(tmp_path, Outlines())
    assert found.pipelines["orders_table"].state == "finished"
    assert found.pipelines["orders_table"].outline is None
    assert "division by zero" in " ".join(found.problems)


async def test_a_project_without_its_secrets_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOT_HERE", raising=False)
    toml = '[project]\nname = "shop"\n'
    make_project(tmp_path, ORDERS, toml=toml)
    (tmp_path / "klamm.toml").write_text(toml + '[storage]\naws_secret = "${env:NOT_HERE}"\n')
    found = await look(tmp_path, Outlines())
    assert found.name == "shop"
    assert "NOT_HERE" in found.problems[0]


async def test_a_folder_without_a_project_says_so(tmp_path: Path) -> None:
    found = await look(tmp_path, Outlines())
    assert dict(found.pipelines) == {}
    assert "no klamm.toml" in found.problems[0]
    assert "no folder" in (await look(tmp_path / "nowhere", Outlines())).problems[0]


async def test_a_project_that_does_not_end_its_import_is_given_up(tmp_path: Path) -> None:
    project = make_project(tmp_path, "import time; time.sleep(600)")
    with pytest.raises(CannotDo, match=r"did not end in 0\.1 s"):
        await read_outline(project, timeout_s=0.1)


async def test_a_child_ends_with_whoever_waits_for_it(tmp_path: Path) -> None:
    hangs = """
    import os, pathlib, time
    pathlib.Path(__file__).with_name("process").write_text(str(os.getpid()))
    time.sleep(600)
    """
    project = make_project(tmp_path, hangs)
    file = tmp_path / "pipelines/process"
    reading = asyncio.create_task(read_outline(project))
    await until(lambda: file.exists() and file.read_text())
    assert is_alive(file.read_text())
    reading.cancel()
    await asyncio.wait([reading])
    assert not is_alive(file.read_text())
