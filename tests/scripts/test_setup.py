"""The set-up of a clone: done once, done again when its sources change, and clear about what is missing."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/setup.py"


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script as a module, with folders of its own and a machine that has no programs and no root."""
    spec = importlib.util.spec_from_file_location("klamm_setup", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("KAFKA_JARS", "CONNECTOR_JARS", "KAFKAJS", "ZOOKEEPER_JAR"):
        monkeypatch.setattr(module, name, tmp_path / name)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("KAFKA_JARS", raising=False)
    monkeypatch.delenv("SPARK_KAFKA_JARS", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    return module


def program(folder: Path, name: str, script: str) -> None:
    """Put a small program on the path."""
    path = folder / name
    path.write_text(f"#!{shutil.which('sh', path='/usr/bin:/bin')}\n{script}\n")
    path.chmod(0o755)


def test_a_step_is_done_again_when_its_sources_change(setup: ModuleType, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("one")
    stamp = setup.Stamp(tmp_path / "done/stamp", source)
    assert not stamp.stands()
    stamp.set()
    assert setup.Stamp(tmp_path / "done/stamp", source).stands()
    assert not setup.Stamp(tmp_path / "done/stamp", source, extra="another folder").stands()
    source.write_text("two")
    assert not setup.Stamp(tmp_path / "done/stamp", source).stands()


def test_the_pins_hold_for_what_is_installed_and_for_what_builds_it(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "ENVIRONMENT", tmp_path)
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin", "pip", "exit 1")
    told = tmp_path / "told"
    variables = '"$PIP_CONSTRAINT" "$PIP_BUILD_CONSTRAINT"'
    program(tmp_path / "bin", "python", f'[ -f "$PIP_CONSTRAINT" ] && echo {variables} "$@" >> {told}')
    setup.install_klamm()
    setup.install_development_tools()
    calls = told.read_text().splitlines()
    assert len(calls) == 2
    assert all(call.startswith("constraints.txt constraints.txt -m pip install") for call in calls)


def test_missing_programs_are_named_in_one_line(
    setup: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program(tmp_path, "apt-get", "exit 0")
    program(tmp_path, "java", "exit 0")
    setup.provide_programs()
    assert capsys.readouterr().out == (
        "setup: missing: kcat, mvn, node, npm, chromium, zsh, fish, systemd-analyze, zookeeper "
        "(only root can install packages); "
        "as root: apt-get install chromium fish kcat maven nodejs npm systemd zookeeper zsh\n"
    )


def test_peers_that_cannot_be_had_are_named(setup: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    setup.provide_kafkajs()
    setup.provide_jars()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" (")[0] for line in lines] == [
        "setup: missing: kafkajs",
        "setup: missing: Apache Kafka 4.3.0",
        "setup: missing: Spark's Kafka connector 4.2.0",
    ]


def test_root_installs_what_is_missing(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    # The first attempt fails, as it does where the lists of packages are old; an update helps.
    program(
        tmp_path,
        "apt-get",
        f'cd {tmp_path}\necho "$@" >> calls\n[ "$1" = update ] && : > updated\n[ -e updated ]',
    )
    for name in ("java", "mvn", "node", "npm", "chromium", "zsh", "fish", "systemd-analyze"):
        program(tmp_path, name, "exit 0")
    setup.ZOOKEEPER_JAR.touch()
    setup.provide_programs()
    calls = (tmp_path / "calls").read_text().splitlines()
    install = "install --yes --quiet --no-install-recommends kcat"
    assert calls == [install, "update --quiet", install]
    assert "missing: kcat" in capsys.readouterr().out, "it says so when the packages did not bring it"


def test_a_step_that_fails_leaves_no_stamp(
    setup: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program(tmp_path, "mvn", "echo no such repository; exit 3")
    setup.provide_kafka_jars()
    assert "no such repository" in capsys.readouterr().out
    program(tmp_path, "mvn", "exit 0")
    setup.provide_kafka_jars()
    setup.provide_kafka_jars()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1, "done once, and then no more"
