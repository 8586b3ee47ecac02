"""`klamm profile …`: clusters by name, and which of flag, environment and profile counts."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from tests.cli.test_topic import Shell

from klamm.cli.connecting import cluster_of
from klamm.cli.errors import CommandError
from klamm.cli.profiles import Profile, Profiles, default_path


@pytest.fixture
def shell(klamm_bootstrap: str, tmp_path: Path) -> Shell:
    return Shell(tmp_path, klamm_bootstrap)


def test_profiles_are_made_used_changed_and_deleted(shell: Shell) -> None:
    assert shell.json("profile", "list") == []
    secrets = ("security.protocol=SASL_SSL", "sasl.password=hunter2")
    shell.out("profile", "create", "prod", *secrets, "-b", "broker-1:9093")
    shell.out("profile", "create", "here", "-b", shell.bootstrap, "--no-use")
    assert [(each["profile"], each["in_use"]) for each in shell.json("profile", "list")] == [
        ("prod", True),
        ("here", False),
    ]
    table = shell.out("profile", "list")
    assert "broker-1:9093" in table and "hunter2" not in table and "sasl.password=(hidden)" in table
    assert shell.json("profile", "show")["settings"]["sasl.password"] == "(hidden)"
    shell.out("profile", "use", "here")
    assert shell.json("profile", "show")["bootstrap"] == shell.bootstrap
    shell.out("profile", "set", "prod", "bootstrap=broker-2:9093", "sasl.password=${env:SECRET}")
    shell.out("profile", "unset", "prod", "security.protocol")
    shown = shell.json("profile", "show", "prod")
    assert (shown["bootstrap"], shown["settings"]) == (
        "broker-2:9093",
        {"sasl.password": "${env:SECRET}"},
    )
    file = shell.folder / "profiles.toml"
    assert file.stat().st_mode & 0o777 == 0o600
    assert tomllib.loads(file.read_text())["current"] == "here"

    # The environment names the brokers of the tests; without it the profile does.
    done = shell("topic", "create", "by-profile", "-p", "1", KLAMM_BOOTSTRAP="")
    assert done.returncode == 0, done
    assert "needs the environment variable SECRET" in shell.complaint("topic", "list", "--profile", "prod")

    assert "nothing was done" in shell("profile", "delete", "here").stderr
    shell.out("profile", "delete", "here", "--yes")
    assert [each["profile"] for each in shell.json("profile", "list")] == ["prod"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["show"], "no profile is in use. Choose one: klamm profile use NAME"),
        (["use", "nobody"], "there is no profile nobody: there are none"),
        (["create", "x"], "a profile needs the addresses of brokers. Give --bootstrap HOST:PORT"),
        (["create", "x", "acks", "-b", "a:1"], "setting acks is not valid: expected KEY=VALUE"),
        (["delete", "nobody", "--yes"], "there is no profile nobody"),
    ],
)
def test_what_cannot_be_done_is_one_line(shell: Shell, words: list[str], complaint: str) -> None:
    assert complaint in shell.complaint("profile", *words)


def test_a_file_that_is_no_profile_file_is_named(shell: Shell) -> None:
    (shell.folder / "profiles.toml").write_text("current = ")
    assert f"the profiles in {shell.folder / 'profiles.toml'} cannot be read" in shell.complaint(
        "profile", "list"
    )
    (shell.folder / "profiles.toml").write_text("[profiles.a]\nx = [1]\n")
    assert "x of profile a" in shell.complaint("profile", "list")


def test_flags_win_over_the_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KLAMM_PROFILES", str(tmp_path / "p.toml"))
    assert cluster_of(None, None, None, 1.0).bootstrap == "localhost:9092"
    (tmp_path / "secret").write_text("s3\n")
    profile = Profile("a:1", {"sasl.password": f"${{file:{tmp_path / 'secret'}}}", "client.id": "me"})
    Profiles.read().with_profile("one", profile, is_current=True).write()
    found = cluster_of(None, None, None, 1.0)
    assert (found.bootstrap, found.config) == ("a:1", {"sasl.password": "s3", "client.id": "me"})
    given = cluster_of("b:2", None, ["client.id=you"], 1.0)
    assert (given.bootstrap, given.config["client.id"]) == ("b:2", "you")
    (tmp_path / "secret").unlink()
    with pytest.raises(CommandError, match=r"sasl\.password of profile one needs the file"):
        cluster_of(None, None, None, 1.0)


def test_odd_names_and_values_survive_the_file(tmp_path: Path) -> None:
    odd = {"ssl.key.location": 'C:\\x "y"\n', "a b": "ü\x7f\t"}
    written = Profiles(tmp_path / "a/p.toml").with_profile("my cluster", Profile("h:1", odd), is_current=True)
    written.write()
    assert Profiles.read(tmp_path / "a/p.toml") == written


def test_where_the_file_is() -> None:
    assert default_path({"KLAMM_PROFILES": "/x/p.toml"}) == Path("/x/p.toml")
    assert default_path({"XDG_CONFIG_HOME": "/c"}) == Path("/c/klamm/profiles.toml")
    assert default_path({}) == Path.home() / ".config/klamm/profiles.toml"
