from __future__ import annotations

from pathlib import Path

from klamm.pipelines.dev.watching import EMPTIED_S, LONGEST_S, SETTLED_S, Settling, Stamp, stamps
from tests.pipelines.projects import make_project

A, B = Path("/shop/a.py"), Path("/shop/b.py")
FULL: Stamp = (1, 10, 1)


def test_a_change_counts_when_it_has_settled() -> None:
    settling = Settling({A: FULL})
    assert settling.look(0.0, {A: FULL}) == frozenset()
    assert not settling.is_pending
    assert settling.look(1.0, {A: (2, 20, 1)}) == frozenset()
    assert settling.is_pending
    assert settling.look(1.0 + SETTLED_S, {A: (2, 20, 1)}) == {A}
    assert not settling.is_pending
    assert settling.look(9.0, {A: (2, 20, 1)}) == frozenset(), "it is told once"


def test_files_that_are_saved_together_are_told_together() -> None:
    settling = Settling({A: FULL, B: FULL})
    half = SETTLED_S / 2
    assert settling.look(0.0, {A: (2, 20, 1), B: FULL}) == frozenset()
    assert settling.look(half, {A: (2, 20, 1), B: (3, 20, 1)}) == frozenset()
    assert settling.look(SETTLED_S, {A: (2, 20, 1), B: (3, 20, 1)}) == frozenset(), "B is still young"
    assert settling.look(half + SETTLED_S, {A: (2, 20, 1), B: (3, 20, 1)}) == {A, B}


def test_a_file_that_is_being_written_is_waited_for() -> None:
    """An editor empties a file and then fills it, or moves it away and writes a new one."""
    for written in ({A: (2, 0, 1)}, {}):
        settling = Settling({A: FULL})
        settling.look(0.0, written)
        assert settling.look(EMPTIED_S - 0.1, written) == frozenset()
        settling.look(EMPTIED_S - 0.05, {A: (3, 12, 2)})
        assert settling.look(EMPTIED_S - 0.05 + SETTLED_S, {A: (3, 12, 2)}) == {A}


def test_files_may_be_emptied_and_removed() -> None:
    settling = Settling({A: FULL, B: FULL})
    settling.look(0.0, {A: (2, 0, 1)})
    assert settling.look(EMPTIED_S, {A: (2, 0, 1)}) == {A, B}


def test_files_that_never_rest_are_told_in_the_end() -> None:
    settling = Settling({A: FULL})
    told = [settling.look(step * 0.05, {A: (step, 10, 1)}) for step in range(2, int(LONGEST_S / 0.05) + 5)]
    assert [each for each in told if each] == [{A}]


def test_what_is_changed_back_is_told_as_nothing() -> None:
    settling = Settling({A: FULL})
    settling.look(0.0, {A: (2, 20, 1)})
    settling.look(0.01, {A: FULL})
    assert settling.look(1.0, {A: FULL}) == frozenset()
    assert not settling.is_pending


def test_the_files_of_a_project(tmp_path: Path) -> None:
    project = make_project(tmp_path, {"a.py": "", "_b.py": "", "deep/c.py": ""})
    for name in ("pipelines/.a.py.swp", "pipelines/.#a.py", "pipelines/__pycache__/a.py", "pipelines/a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "schemas").mkdir()
    for name in ("schemas/orders.json", "schemas/payment.avsc", "schemas/orders.json~", "lib.py"):
        (tmp_path / name).write_text("{}")
    found = stamps(project, [tmp_path / "lib.py", tmp_path / "gone.py"])
    assert sorted(str(path.relative_to(tmp_path)) for path in found) == [
        "klamm.toml",
        "lib.py",
        "pipelines/_b.py",
        "pipelines/a.py",
        "pipelines/deep/c.py",
        "schemas/orders.json",
        "schemas/payment.avsc",
    ]
    (tmp_path / "lib.py").write_text("{ }")
    assert stamps(project, [tmp_path / "lib.py"])[tmp_path / "lib.py"] != found[tmp_path / "lib.py"]
