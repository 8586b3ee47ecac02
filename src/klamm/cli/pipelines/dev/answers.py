"""Computes the answer to a command's question on the session of `klamm pipeline dev`.

It runs the code of the command, with the command's working folder and environment. What depends on more than
that is refused: a klamm.toml that the command sees differently, Spark with other settings, modules that were
imported here and have changed since. A relative path that a function gives to Spark itself is one of the
folder in which dev was started.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import typer

from klamm.cli.pipeline import complaints, naming_the_log
from klamm.cli.pipelines.dev.messages import Inquiry, fingerprint
from klamm.cli.pipelines.dev.recording import TooLong, recorded
from klamm.cli.pipelines.questions import question_of
from klamm.pipelines.dev.sessions import LastingSession
from klamm.pipelines.dev.versions import OtherModules
from klamm.pipelines.discovery import isolated, without_session
from klamm.pipelines.errors import PipelineError
from klamm.pipelines.project import Project

_OF_SPARK = ("SPARK_", "PYSPARK_", "JAVA_HOME")
"""The beginnings of variables that this process has set for its Spark."""

Message = Mapping[str, object]


class Answers:
    """Answers with a session that was started for `project`."""

    def __init__(self, project: Project, spark: LastingSession, others: OtherModules) -> None:
        self._settings = (project.master, dict(project.spark))
        self._spark = spark
        self._others = others

    def compute(self, inquiry: Inquiry, group: str) -> list[Message]:
        """The messages of the answer, or a refusal. `group` is what its jobs can be cancelled by."""
        ours = {name: text for name, text in os.environ.items() if name.startswith(_OF_SPARK)}
        try:
            with self._spark.fresh(group, {**inquiry.environment, **ours}) as session:
                os.chdir(inquiry.folder)
                project = Project.load(inquiry.root, bootstrap=inquiry.bootstrap, master=inquiry.master)
                if reason := self._why_not(project, inquiry):
                    return _refusal(reason)
                question = question_of(inquiry.question)
                status = 0
                with recorded(inquiry.out, inquiry.err) as recording:
                    try:
                        with (
                            isolated(project.root, project.pipelines),
                            without_session(),
                            complaints(question.failed),
                            naming_the_log(project),
                        ):
                            status = question.answer(project, session)
                    except typer.Exit as end:
                        status = end.exit_code
                return [*recording.messages(), {"status": status}]
        except (PipelineError, OSError, TooLong) as error:
            return _refusal(str(error))
        except (Exception, SystemExit) as error:  # the command meets it again, and shows where it comes from
            return _refusal(f"it failed: {type(error).__name__}: {error}")

    def _why_not(self, project: Project, inquiry: Inquiry) -> str:
        if fingerprint(project) != inquiry.fingerprint:
            return "it sees other settings in klamm.toml"
        if (project.master, dict(project.spark)) != self._settings:
            return "its Spark has other settings; start it again"
        if outdated := self._others.outdated():
            return f"{outdated[0]} has changed since it was started; start it again"
        return ""


def is_refusal(messages: Sequence[Message]) -> bool:
    return any("refused" in message for message in messages)


def _refusal(reason: str) -> list[Message]:
    return [{"refused": reason}]
