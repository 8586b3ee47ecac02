"""Commands that find a `klamm pipeline dev` by its socket. Whatever goes wrong, there is no answer, and the
command starts a Spark of its own. A thread of the test stands for the main thread of dev."""

from __future__ import annotations

import os
import queue
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.pipelines.projects import make_project
from tests.waiting import wait_until

from klamm.cli.output import Output
from klamm.cli.pipelines.dev import answering, asking, places
from klamm.cli.pipelines.dev.answering import Answering, Task
from klamm.cli.pipelines.dev.asking import Answer, Refused, ask_dev, hello
from klamm.cli.pipelines.dev.messages import framed
from klamm.cli.pipelines.questions import LintQuestion, question_of
from klamm.pipelines.project import Project

QUESTION = LintQuestion(Output.TABLE)


class Dev:
    """A dev that takes questions and answers as the test says."""

    def __init__(self, folder: Path) -> None:
        self.tasks: queue.Queue[Task] = queue.Queue()
        self.cancelled: list[Task] = []
        self.answering = Answering(folder, self.tasks.put, self.cancelled.append)

    def answer_soon(self, *messages: dict[str, object], after: threading.Event | None = None) -> None:
        def work() -> None:
            task = self.tasks.get(timeout=20)
            assert task.begin()
            if after is not None:
                after.wait(20)
            task.finish(messages)

        threading.Thread(target=work, daemon=True).start()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = make_project(tmp_path)
    project.state.mkdir()
    return project


@pytest.fixture
def dev(project: Project) -> Iterator[Dev]:
    dev = Dev(project.state)
    yield dev
    dev.answering.close()


def test_a_question_is_answered(project: Project, dev: Dev, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Task] = []

    def work() -> None:
        task = dev.tasks.get(timeout=20)
        seen.append(task)
        assert task.begin()
        task.finish([{"out": "a"}, {"err": "b"}, {"out": "c"}, {"status": 3}])

    threading.Thread(target=work, daemon=True).start()
    answer = ask_dev(project, QUESTION)
    assert answer == Answer((("out", "a"), ("err", "b"), ("out", "c")), 3)
    inquiry = seen[0].inquiry
    assert question_of(inquiry.question) == QUESTION
    assert (inquiry.root, inquiry.folder) == (str(project.root), os.getcwd())
    assert inquiry.environment["PATH"] == os.environ["PATH"]
    answer.write()
    assert tuple(capsys.readouterr()) == ("ac", "b")


def test_the_socket_is_for_its_owner_alone(
    project: Project, dev: Dev, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = project.state / places.SOCKET
    assert stat.S_IMODE(there.stat().st_mode) == 0o600
    monkeypatch.setattr(os, "getuid", lambda: there.stat().st_uid + 1)
    assert ask_dev(project, QUESTION) is None, "the command looks whose socket it is"
    with socket.socket(socket.AF_UNIX) as other, monkeypatch.context() as patch:
        patch.chdir(project.state)
        other.connect(places.SOCKET)
        other.settimeout(20)
        assert other.recv(1) == b"", "dev looks who connects"
    assert dev.tasks.empty()


def test_a_path_may_be_longer_than_those_of_sockets(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120) / ("e" * 120)
    deep.mkdir(parents=True)
    project = make_project(deep)
    project.state.mkdir()
    dev = Dev(project.state)
    dev.answer_soon({"status": 0})
    here = os.getcwd()
    assert ask_dev(project, QUESTION) == Answer((), 0)
    assert os.getcwd() == here
    dev.answering.close()
    assert not (project.state / places.SOCKET).exists()


def test_nobody_or_a_dead_one_listens(project: Project) -> None:
    assert ask_dev(project, QUESTION) is None
    places.listen(project.state).close()  # as a killed process leaves it
    there = project.state / places.SOCKET
    assert there.exists()
    assert ask_dev(project, QUESTION) is None
    dev = Dev(project.state)
    dev.answer_soon({"status": 0})
    assert ask_dev(project, QUESTION) is not None
    dev.answering.close()
    assert not there.exists()
    there.write_text("not a socket")
    assert ask_dev(project, QUESTION) is None


def test_a_busy_one_refuses_in_time(project: Project, dev: Dev, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "BEGIN_S", 0.2)
    with pytest.raises(Refused, match="it is busy"):
        ask_dev(project, QUESTION)
    assert not dev.tasks.get_nowait().begin(), "nobody waits for it any more"


def test_what_has_begun_is_waited_for(project: Project, dev: Dev, monkeypatch: pytest.MonkeyPatch) -> None:
    """With signs of life, which are more frequent than the command's patience."""
    monkeypatch.setattr(answering, "BEGIN_S", 0.2)
    monkeypatch.setattr(answering, "SIGN_S", 0.1)
    monkeypatch.setattr(asking, "SILENCE_S", 2.0)
    done = threading.Event()
    dev.answer_soon({"out": "late"}, {"status": 0}, after=done)
    threading.Timer(3.0, done.set).start()
    assert ask_dev(project, QUESTION) == Answer((("out", "late"),), 0)


def test_one_that_is_stopped_is_not_waited_for(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Ctrl-Z: the system accepts the connection, and nobody speaks."""
    monkeypatch.setattr(asking, "HELLO_S", 0.2)
    listening = places.listen(project.state)
    with pytest.raises(Refused, match="does not answer"):
        ask_dev(project, QUESTION)
    listening.close()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        framed(hello()),
        framed(hello()) + framed({"out": "half an ans"}),
        framed(hello()) + b"\xff\xff\xff\xff",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_one_that_dies_or_is_another_gives_no_answer(project: Project, said: bytes) -> None:
    listening = places.listen(project.state)

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.sendall(said)
            if said:
                connection.recv(100_000)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert ask_dev(project, QUESTION) is None
    listening.close()
    thread.join(20)


@pytest.mark.parametrize("other", [{"klamm": "0.0.1"}, {"protocol": 2}, {"python": "/elsewhere"}])
def test_another_version_is_not_asked(project: Project, other: dict[str, object]) -> None:
    listening = places.listen(project.state)

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.sendall(framed({**hello(), **other}))
            assert connection.recv(1) == b""

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with pytest.raises(Refused, match="start it again"):
        ask_dev(project, QUESTION)
    thread.join(20)
    listening.close()


def test_what_a_command_waits_for_is_cancelled_when_it_ends(project: Project, dev: Dev) -> None:
    def leave(after_bytes: bool) -> Task:
        with places.connect(project.state, 20) as connection:
            connection.recv(100_000)
            connection.sendall(framed(asking._inquiry(project, QUESTION).to_json()))
            task = dev.tasks.get(timeout=20)
            if after_bytes:
                assert task.begin()
        return task

    begun = leave(True)
    wait_until(lambda: dev.cancelled == [begun], "the task is cancelled")
    waiting = leave(False)
    wait_until(lambda: waiting._is_given_up, "the task is given up")
    assert not waiting.begin()
    assert dev.cancelled == [begun]


def test_only_so_many_may_wait(project: Project, dev: Dev, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = [places.connect(project.state, 20) for _ in range(answering.MOST_CONNECTIONS)]
    for connection in waiting:
        assert connection.recv(100_000)
    with pytest.raises(Refused, match="too many commands wait"):
        ask_dev(project, QUESTION)
    for connection in waiting:
        connection.close()
