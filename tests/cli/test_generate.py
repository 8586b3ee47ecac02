"""`klamm generate …` and what it makes: completion in real shells, units that systemd reads."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.cli.commands import KLAMM, Shell, clean_environment
from tests.conftest import cannot_run
from tests.peers.kafka_jars import PeerMissing

import klamm


def environment(shell: Shell) -> dict[str, str]:
    return clean_environment(
        KLAMM_BOOTSTRAP=shell.bootstrap,
        KLAMM_PROFILES=str(shell.folder / "profiles.toml"),
        PATH=f"{Path(KLAMM).parent}:/usr/bin:/bin",
    )


def need(program: str) -> None:
    if shutil.which(program) is None:
        cannot_run(PeerMissing(f"{program} is not installed"))


def completed(shell: Shell, *words: str) -> list[str]:
    """What bash offers for the last of the words."""
    script = shell.out("generate", "completion", "bash")
    line = " ".join(f"'{word}'" for word in words)
    done = subprocess.run(
        [
            "bash",
            "--norc",
            "-c",
            f"{script}\nCOMP_WORDS=(klamm {line}); COMP_CWORD={len(words)}\n"
            "$(complete -p klamm | grep -o '_[a-z_]*') klamm\nprintf '%s\\n' \"${COMPREPLY[@]}\"",
        ],
        env=environment(shell),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.split()


def test_bash_completes_verbs_topics_and_groups(shell: Shell) -> None:
    with klamm.Admin(shell.bootstrap) as admin:
        admin.create_topic("completed-1", 1)
        admin.create_topic("completed-2", 1)
    assert completed(shell, "topic", "desc") == ["describe"]
    assert completed(shell, "topic", "describe", "complet") == ["completed-1", "completed-2"]
    assert completed(shell, "gen") == ["generate"]
    with klamm.Admin(shell.bootstrap) as admin:
        for group in ("finished-1", "finished-$(touch x)"):
            admin.alter_group_offsets(group, {("completed-1", 0): 0})
    assert completed(shell, "group", "seek", "fini") == ["finished-1"], "a shell would run the other name"
    nobody = ("topic", "describe", "-b", "127.0.0.1:1", "complet")
    assert completed(shell, *nobody) == []


def test_fish_completes_topics(shell: Shell) -> None:
    with klamm.Admin(shell.bootstrap) as admin:
        admin.create_topic("swum-1", 1)
    need("fish")
    script = shell.out("generate", "completion", "fish")
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"{script}\ncomplete -C 'klamm topic describe sw'"],
        env=environment(shell) | {"HOME": str(shell.folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["swum-1"]), done


def test_zsh_completes_topics_where_somebody_types(shell: Shell) -> None:
    """zsh completes only on a terminal."""
    with klamm.Admin(shell.bootstrap) as admin:
        admin.create_topic("zipped-1", 1)
    need("zsh")
    (shell.folder / "_klamm").write_text(shell.out("generate", "completion", "zsh"))
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        ["zsh", "-f", "-i"],
        cwd=shell.folder,
        env=environment(shell) | {"HOME": str(shell.folder), "TERM": "dumb"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        try:
            os.close(theirs)
            os.write(ours, b"autoload -U compinit; compinit -u; source ./_klamm; echo re''ady\n")
            seen = read_until(ours, b"", b"ready")
            os.write(ours, b"klamm topic describe zip\t")
            read_until(ours, seen, b"describe zipped-1")
        finally:
            process.kill()
            os.close(ours)


def read_until(terminal: int, seen: bytes, text: bytes) -> bytes:
    while text not in seen:
        assert select.select([terminal], [], [], 60)[0], f"{text!r} does not appear: {seen!r}"
        seen += os.read(terminal, 4096)
    return seen


def test_a_shell_that_nobody_knows_is_wrong_usage(shell: Shell) -> None:
    done = shell("generate", "completion", "tcsh")
    assert done.returncode == 2 and "tcsh" in done.stderr


UNITS = [
    [],
    ["up", "--data-dir", "/srv/my data/100%"],
    ["--user", "root", "broker", "--id", "1", "--coordination", "zookeeper://zk:2181/klamm"],
    ["--user", "root", "--directory", "/", "pipeline", "run"],
]


@pytest.mark.parametrize("words", UNITS, ids=lambda words: " ".join(words) or "nothing")
def test_systemd_reads_the_unit(shell: Shell, words: list[str]) -> None:
    unit = shell.out("generate", "systemd", *words)
    assert f"ExecStart={KLAMM} " in unit
    file = shell.folder / "klamm.service"
    file.write_text(unit)
    need("systemd-analyze")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "klamm.service" not in done.stderr, done
    assert done.returncode == 0, done


def test_a_unit_quotes_what_systemd_would_read_otherwise(shell: Shell) -> None:
    unit = shell.out("generate", "systemd", "up", "--data-dir", '/srv/my "$data" 100%')
    assert r' up --data-dir "/srv/my \"$$data\" 100%%"' in unit


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["topic", "list"], "'topic list' is not a service: expected one of up, broker"),
        (["up", "--prot", "9092"], "klamm up: No such option: --prot"),
        (["broker", "--id", "1"], "klamm broker: Missing option '--coordination'"),
        (["up", "--config", "klamm.toml"], "--config klamm.toml is not valid: a service needs an absolute"),
        (["pipeline", "run"], "pipelines run in the folder of their project. Name the folder"),
        (["--directory", "here", "up"], "--directory here is not valid: expected an absolute path"),
    ],
)
def test_what_cannot_be_a_service_is_told(shell: Shell, words: list[str], text: str) -> None:
    assert shell.complaint("generate", "systemd", *words).startswith(text)
