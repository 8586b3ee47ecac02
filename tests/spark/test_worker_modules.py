from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

from pyspark_klamm.worker_modules import FORGOTTEN_FOLDERS, forget_modules


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "shop_rules/deep").mkdir(parents=True)
    (tmp_path / "shop_rules/deep/rates.py").write_text("RATE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return tmp_path


def rate() -> int:
    return int(importlib.import_module("shop_rules.deep.rates").RATE)


def test_a_module_that_was_saved_is_imported_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice in a second and with the same size, by which Python tells whether bytecode is old."""
    monkeypatch.setenv(FORGOTTEN_FOLDERS, os.pathsep.join(["/elsewhere", str(project)]))
    forget_modules()
    for number in (1, 2, 3):
        (project / "shop_rules/deep/rates.py").write_text(f"RATE = {number}\n")
        assert rate() == number
        forget_modules()
        assert "shop_rules" not in sys.modules and "shop_rules.deep" not in sys.modules
    assert not list(project.rglob("*.pyc"))
    assert {"sys", "builtins", "klamm"} <= set(sys.modules)


def test_without_folders_nothing_is_forgotten(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FORGOTTEN_FOLDERS, raising=False)
    assert rate() == 1
    forget_modules()
    assert "shop_rules.deep.rates" in sys.modules
    monkeypatch.setenv(FORGOTTEN_FOLDERS, str(project))
    forget_modules()


def test_what_has_no_file_stays(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's workers run in the project's folder, from where a file without a name would be."""
    monkeypatch.chdir(project)
    monkeypatch.setenv(FORGOTTEN_FOLDERS, str(project))
    forget_modules()
    assert sys.modules["sys"] is sys
    assert "builtins" in sys.modules
