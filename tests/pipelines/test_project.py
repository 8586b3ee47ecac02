from __future__ import annotations

import re
from pathlib import Path

import pytest

from klamm.pipelines.errors import ProjectError
from klamm.pipelines.project import Project
from klamm.pipelines.retrying import RunPolicy


def load(root: Path, text: str) -> Project:
    (root / "klamm.toml").write_text(text)
    return Project.load(root)


def test_a_name_is_enough(tmp_path: Path) -> None:
    project = load(tmp_path, '[project]\nname = "shop"\n')
    assert project.name == "shop"
    assert project.root == tmp_path
    assert project.bootstrap == "localhost:9092"
    assert project.tables == str(tmp_path / "tables")
    assert project.state == tmp_path / ".klamm"
    assert project.checkpoints == str(tmp_path / ".klamm/checkpoints")
    assert project.pipelines == tmp_path / "pipelines"
    assert project.dead_letters == "shop.dead-letters"
    assert project.master == "local[*]"
    assert project.group_of("revenue") == "shop.revenue"


def test_everything_can_be_said(tmp_path: Path) -> None:
    project = load(
        tmp_path,
        """
        [project]
        name = "shop"
        bootstrap = ["one:9092", "two:9092"]
        pipelines = "src"
        schemas = "types"
        tables = "s3a://lake/tables"
        state = "state"
        checkpoints = "hdfs://name/checkpoints"
        dead_letters = "broken"
        [spark]
        master = "spark://host:7077"
        spark.sql.shuffle.partitions = 2
        "spark.ui.enabled" = false
        [kafka]
        security.protocol = "SSL"
        "linger.ms" = 5
        """,
    )
    assert project.bootstrap == "one:9092,two:9092"
    assert (project.pipelines, project.schemas) == (tmp_path / "src", tmp_path / "types")
    assert (project.tables, project.checkpoints) == ("s3a://lake/tables", "hdfs://name/checkpoints")
    assert (project.state, project.dead_letters) == (tmp_path / "state", "broken")
    assert project.master == "spark://host:7077"
    assert project.spark == {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
    assert project.kafka == {"security.protocol": "SSL", "linger.ms": "5"}
    assert project.client_settings("consumer") == {"security.protocol": "SSL"}
    assert project.client_settings("producer") == project.kafka


def test_a_state_at_a_uri_has_the_checkpoints_too(tmp_path: Path) -> None:
    project = load(tmp_path, '[project]\nname = "shop"\nstate = "s3://lake/state"\n')
    assert project.shared_state == "s3://lake/state"
    assert project.checkpoints == "s3://lake/state/checkpoints"
    assert project.state == tmp_path / ".klamm", "for locks and logs"
    mounted = load(tmp_path, '[project]\nname = "shop"\nstate = "file:///mnt/state"\n')
    assert (mounted.shared_state, mounted.state) == ("", Path("/mnt/state"))


def test_packages_are_installed_or_sent(tmp_path: Path) -> None:
    assert load(tmp_path, '[project]\nname = "shop"\n').packages == ""
    sending = load(tmp_path, '[project]\nname = "shop"\n[spark]\npackages = "send"\n')
    assert (sending.packages, sending.spark) == ("send", {})
    with pytest.raises(ProjectError, match=r'klamm.toml:4: packages is .*Use "installed" or "send"'):
        load(tmp_path, '[project]\nname = "shop"\n[spark]\npackages = "sent"\n')


def test_arguments_win_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "klamm.toml").write_text('[project]\nname = "shop"\n[spark]\nmaster = "yarn"\n')
    project = Project.load(tmp_path / "klamm.toml", bootstrap="here:1", master="local[1]")
    assert (project.bootstrap, project.master, project.spark) == ("here:1", "local[1]", {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the project has no name"),
        ('[project]\nname = "a shop"', "not a valid project name"),
        (
            '[project]\nname = "shop"\ndead_leters = "x"',
            "klamm.toml:3: dead_leters is not a key of [project]. Did you mean dead_letters",
        ),
        ('[project]\nname = "shop"\n[kafka]\nlinger.mz = 1', "Did you mean linger.ms"),
        ('[project]\nname = "shop"\n[spark]\nshuffle = 1', "klamm.toml:4: shuffle is not a key of [spark]"),
        ('[project]\nname = "shop"\n[sparks]\nmaster = 1', "[sparks] is not a known section"),
        ('[project]\nname = "shop"\ntables = ""', "tables is empty"),
        ('[project]\nname = "shop"\n[iceberg]\nuri = "x"', "klamm.toml:4: uri is not in the section of a c"),
        ("[project", "the file is not valid TOML"),
    ],
)
def test_what_cannot_be_is_refused_by_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ProjectError) as refused:
        load(tmp_path, text)
    assert words in str(refused.value)


def test_a_folder_without_a_project_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match="klamm pipeline init"):
        Project.load(tmp_path)


def test_what_a_run_does_about_failures(tmp_path: Path) -> None:
    assert load(tmp_path, '[project]\nname = "shop"\n').run == RunPolicy(3, "stop")
    text = '[project]\nname = "shop"\n[run]\n'
    assert load(tmp_path, text + 'retries = 0\non_failure = "go on"\n').run == RunPolicy(0, "go on")
    for line, complaint in (
        ("retries = -1", "retries is '-1'. Give a whole number"),
        ('on_failure = "panic"', 'on_failure is \'panic\'. Use "stop" or "go on"'),
        ("retrys = 1", "Did you mean retries?"),
    ):
        with pytest.raises(ProjectError, match=re.escape(complaint)):
            load(tmp_path, text + line)


def test_catalogs_of_iceberg_have_sections_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_SECRET", "s3cret")
    project = load(
        tmp_path,
        """
        [project]
        name = "shop"
        [iceberg.lake]
        type = "sql"
        uri = "sqlite:///catalog.db"
        warehouse = "warehouse"
        "s3.secret-access-key" = "${env:LAKE_SECRET}"
        [iceberg.other]
        type = "rest"
        uri = "https://catalog.example.org"
        warehouse = "main"
        [iceberg.third]
        type = "sql"
        uri = "postgresql+psycopg2://host/db"
        warehouse = "s3://lake/warehouse"
        """,
    )
    assert project.iceberg["lake"] == {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"{tmp_path}/warehouse",
        "s3.secret-access-key": "s3cret",
    }
    assert project.iceberg["other"]["warehouse"] == "main"
    assert project.iceberg["third"]["uri"] == "postgresql+psycopg2://host/db"
    assert project.iceberg["third"]["warehouse"] == "s3://lake/warehouse"
    assert "s3cret" not in repr(project)
