"""`klamm pipeline dev`: waits for saves, keys and questions of other commands, and works on one at a time.

The main thread does all work, so that Ctrl-C ends what a user's function does. Other threads watch the files,
read keys and hold the connections of commands; they put what comes into one queue. A save makes the work for
an older save useless, which is then cancelled; a command's question is always answered to its end.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from klamm.cli.pipelines.dev.answering import Answering, Task
from klamm.cli.pipelines.dev.answers import Answers, is_refusal
from klamm.cli.pipelines.dev.keys import has_keys, keys
from klamm.cli.pipelines.dev.places import LOCK
from klamm.cli.pipelines.dev.showing import Sections, saved_title
from klamm.pipelines.dev.saves import Part, Saves, Superseded
from klamm.pipelines.dev.sessions import LastingSession
from klamm.pipelines.dev.versions import OtherModules
from klamm.pipelines.dev.watching import Settling, stamps
from klamm.pipelines.errors import PipelineError
from klamm.pipelines.project import PROJECT_FILE, Project
from klamm.pipelines.state import State

LOOK_S = 0.1
"""How often the files are looked at."""

MOST_LOOKING = 0.05
"""The most of a processor's time that looking may take: a large project is looked at less often."""

NEWS_S = 3.0
"""How often to ask for new records of topics that have few."""

GROUP_OF_SAVES = "klamm-dev-saves"
"""Spark's name for the jobs that a later save cancels."""

_HINT = "r: newest records again · n, p: next, previous node · f: what changes · q: quit"


@dataclass(frozen=True)
class Options:
    """What the command was given. `bootstrap` and `master` override klamm.toml whenever it is read."""

    nodes: tuple[str, ...]
    last: int
    compared: int
    show: int
    bootstrap: str | None = None
    master: str | None = None


class Dev:
    """One run of the command. `project` is as klamm.toml says, `quiet` has settings for Spark's log."""

    def __init__(self, project: Project, quiet: Project, options: Options) -> None:
        self._project = project
        self._quiet = quiet
        self._options = options
        self._events: queue.Queue[frozenset[Path] | str | Task] = queue.Queue()
        self._stopping = False
        self._started_with = (project.master, dict(project.spark))

    def run(self) -> None:
        """Until q, Ctrl-C or SIGTERM. Raises PipelineError if it cannot begin."""
        sys.dont_write_bytecode = True  # a file may be saved twice in the second that bytecode is dated by
        state = State(self._project)
        with state.lock("klamm pipeline dev", LOCK), ExitStack() as stack:
            self._sections = Sections(self._project, self._options.show)
            self._sections.note(f"starting Spark on {self._project.master} …", "dim")
            self._spark = LastingSession.start(self._quiet)
            stack.callback(self._spark.stop)
            # After Spark's own handler for Ctrl-C was installed.
            stack.enter_context(_interrupting(self._interrupt))
            with suppress(KeyboardInterrupt):
                self._work(state, stack)
            self._stopping = True

    def _work(self, state: State, stack: ExitStack) -> None:
        self._saves = Saves(
            self._quiet,
            self._spark,
            last=self._options.last,
            compared=self._options.compared,
            wanted=self._options.nodes,
            is_superseded=lambda: self._watcher.is_pending or self._has_saves(),
            group=GROUP_OF_SAVES,
        )
        self._watcher = Watcher(self._files, self._events.put, self._cancel_saves)
        self._others = OtherModules(self._project)
        self._answers = Answers(self._project, self._spark, self._others)
        self._told_outdated: list[str] = []
        self._listen(state, stack)
        stack.callback(self._watcher.close)
        self._watcher.start()
        stack.enter_context(keys(self._press) if has_keys() else nullcontext())
        self._hint = _HINT if has_keys() else ""
        self._present(f"{self._project.name}: watching its files", self._saves.after(frozenset()))
        if not self._has_saves():
            self._spark.warm_up()
        self._go_round()

    def _listen(self, state: State, stack: ExitStack) -> None:
        try:
            answering = Answering(
                state.folder, self._events.put, lambda task: self._spark.cancel(_group(task))
            )
        except OSError as error:
            self._sections.note(f"other commands cannot use this session: {state.folder}: {error.strerror}")
        else:
            stack.callback(answering.close)

    def _go_round(self) -> None:
        steps: Iterator[str] = self._saves.prepare()
        while True:
            event = self._next(steps)
            if event is None:
                continue
            if isinstance(event, Task):
                self._answer(event)
                continue
            if isinstance(event, frozenset):
                self._save(event)
            else:
                self._key(event)
            steps = self._saves.prepare()

    def _next(self, steps: Iterator[str]) -> frozenset[Path] | str | Task | None:
        """The next event. While there is none, steps are done, and new records looked for."""
        with suppress(queue.Empty):
            return self._events.get_nowait()
        with suppress(Superseded):
            if next(steps, None) is not None:
                return None
            with suppress(queue.Empty):
                return self._events.get(timeout=NEWS_S)
            return "new records" if self._saves.has_news() else None
        return None

    # ---- saves and keys

    def _save(self, saved: frozenset[Path]) -> None:
        if self._project.root / PROJECT_FILE in saved and not self._read_project():
            return
        if (outdated := self._others.outdated()) != self._told_outdated:
            self._told_outdated = outdated
            names = ", ".join(outdated[:3])
            self._sections.note(f"{names} changed, which is not part of the project: start dev again for it")
        self._present(saved_title(self._project, saved), self._saves.after(saved))

    def _key(self, key: str) -> None:
        if key in ("r", "new records"):
            self._present("newest records", self._saves.after(frozenset()))
        elif key == "f":
            self._saves.wanted = []
            self._sections.note("what changes is shown", "dim")
        elif (name := self._saves.neighbour(1 if key == "n" else -1)) is not None:
            self._saves.wanted = [name]
            self._present(name, self._saves.show(name))

    def _press(self, key: str) -> None:
        """In the thread that reads keys."""
        if key == "q":
            os.kill(os.getpid(), signal.SIGINT)
        elif key in "rnpf":
            self._events.put(key)

    def _present(self, title: str, parts: Iterable[Part]) -> None:
        began = time.monotonic()
        self._sections.begin(f"{title} · {time.strftime('%H:%M:%S')}")
        try:
            for part in parts:
                self._sections.part(part)
        except Superseded:
            self._sections.note("saved again meanwhile", "dim")
        except PipelineError as error:
            self._sections.note(str(error), "red")
        else:
            self._sections.end(time.monotonic() - began, self._hint)

    def _read_project(self) -> bool:
        """Use a klamm.toml that was saved. False if it has a mistake."""
        given = self._options
        try:
            found = Project.load(self._project.root, bootstrap=given.bootstrap, master=given.master)
        except PipelineError as error:
            self._sections.note(str(error), "red")
            return False
        if (found.master, dict(found.spark)) != self._started_with:
            self._sections.note("[spark] in klamm.toml counts when dev is started again")
        self._saves.use_project(replace(found, master=self._quiet.master, spark=self._quiet.spark))
        return True

    def _files(self) -> dict[Path, tuple[int, int, int]]:
        return stamps(self._saves.project, self._saves.files)

    def _has_saves(self) -> bool:
        return any(isinstance(event, frozenset) for event in list(self._events.queue))

    def _cancel_saves(self) -> None:
        """In the thread that watches the files."""
        self._spark.cancel(GROUP_OF_SAVES)

    # ---- questions of commands

    def _cancel_answer(self, task: Task) -> None:
        """In the thread of a connection."""
        self._spark.cancel(_group(task))

    def _answer(self, task: Task) -> None:
        if not task.begin():
            return
        began = time.monotonic()
        messages = self._answers.compute(task.inquiry, _group(task))
        if self._stopping:
            task.refuse("it was stopped")
            raise KeyboardInterrupt
        task.finish(messages)
        if not is_refusal(messages):
            kind = task.inquiry.question["kind"]
            took = f"{time.monotonic() - began:.1f} s"
            self._sections.note(f"answered klamm pipeline {kind} in {took}", "dim")

    def _interrupt(self) -> None:
        self._stopping = True


def _group(task: Task) -> str:
    return f"klamm-dev-{id(task)}"


class Watcher:
    """A thread that looks at the files. `saved` is called with what was saved, once it has settled; `changed`
    as soon as something has changed."""

    def __init__(
        self,
        look: Callable[[], dict[Path, tuple[int, int, int]]],
        saved: Callable[[frozenset[Path]], None],
        changed: Callable[[], None],
    ) -> None:
        self._look = look
        self._saved = saved
        self._changed = changed
        self._settling = Settling(look())
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="klamm-dev-files", daemon=True)

    @property
    def is_pending(self) -> bool:
        return self._settling.is_pending

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        pause = LOOK_S
        while not self._end.wait(pause):
            began = time.monotonic()
            was_pending = self._settling.is_pending
            saved = self._settling.look(began, self._look())
            if saved:
                self._saved(saved)
            if self._settling.is_pending and not was_pending:
                self._changed()
            pause = max(LOOK_S, (time.monotonic() - began) / MOST_LOOKING)


@contextmanager
def _interrupting(noted: Callable[[], None]) -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and the end of the terminal raise KeyboardInterrupt; a second one ends the process
    as usual."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def handle(number: int, frame: object) -> None:
        noted()
        for each in before:
            signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)
        raise KeyboardInterrupt

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
