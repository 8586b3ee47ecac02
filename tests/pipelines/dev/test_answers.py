"""A command's question over the socket of `klamm pipeline dev`, on Spark: the answer is what the command
itself would print."""

from __future__ import annotations

import queue
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import klamm.testing
from klamm.cli.output import Output
from klamm.cli.pipelines.dev.answering import Answering, Task
from klamm.cli.pipelines.dev.answers import Answers
from klamm.cli.pipelines.dev.asking import Answer, Refused, ask_dev
from klamm.cli.pipelines.questions import AnyQuestion, LintQuestion, PreviewQuestion
from klamm.pipelines.dev.sessions import LastingSession
from klamm.pipelines.dev.versions import OtherModules
from klamm.pipelines.project import Project
from tests.pipelines.projects import make_project
from tests.pipelines.queries import produce

ORDERS = """
    import os

    @source(topic="orders", schema="n INT")
    @expect("small", "n < 10", otherwise="drop")
    def orders(rows):
        return rows

    @transform
    def marked(orders):
        return orders.selectExpr("n", f"'{os.environ.get('SHOP_MARK')}' AS mark")

    @pipeline(to=to_table("orders"))
    def orders_table(marked):
        return marked
"""


def test_the_answer_is_that_of_the_command(
    spark: SparkSession,
    klamm: klamm.testing.Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    produce(klamm.bootstrap, "orders", '{"n": 1}', '{"n": 20}', '{"n": 3}')
    project = make_project(tmp_path, ORDERS, toml=f'[project]\nname="shop"\nbootstrap="{klamm.bootstrap}"\n')
    project.state.mkdir()
    tasks: queue.Queue[Task] = queue.Queue()
    answering = Answering(project.state, tasks.put, lambda task: None)
    answers = Answers(project, LastingSession(spark), OtherModules(project))

    def ask(asked: Project, question: AnyQuestion, **environment: str) -> Answer | None:
        with ThreadPoolExecutor() as command, monkeypatch.context() as patch:
            for name, text in environment.items():
                patch.setenv(name, text)
            answer = command.submit(ask_dev, asked, question)
            task = tasks.get(timeout=60)
            patch.undo()  # the environment of dev is another
            assert task.begin()
            task.finish(answers.compute(task.inquiry, "a test"))
            return answer.result(60)

    try:
        question = PreviewQuestion("marked", 3, False, Output.TABLE)
        monkeypatch.delenv("SHOP_MARK", raising=False)
        answer = ask(project, question, SHOP_MARK="of the command")
        assert answer is not None and answer.status == 0
        answer.write()
        answered = capsys.readouterr()
        monkeypatch.setenv("SHOP_MARK", "of the command")
        assert question.answer(project, spark) == 0
        assert capsys.readouterr() == answered
        assert answered.out.count("of the command") == 2
        assert "broke the expectation 'small'" in answered.err

        # Saved after it was answered once, and wrong now: the exit status is the command's too.
        make_project(tmp_path, ORDERS.replace('"n", f', '"m", f'), toml=(tmp_path / "klamm.toml").read_text())
        failed = ask(project, question)
        assert failed is not None and failed.status == 1
        ((stream, text),) = failed.parts
        assert stream == "err" and text.startswith("klamm: ") and "pipelines/orders.py:" in text
        found = ask(project, LintQuestion(Output.JSON))
        assert found is not None and found.status == 1

        other = Project.load(tmp_path, master="local[7]")
        with pytest.raises(Refused, match="its Spark has other settings"):
            ask(other, question)
        monkeypatch.setattr(answers._others, "outdated", lambda: ["company_library"])
        with pytest.raises(Refused, match="company_library has changed"):
            ask(project, question)
        (tmp_path / "klamm.toml").write_text('[project]\nname = "other"\n')
        with pytest.raises(Refused, match="it sees other settings"):
            ask(project, question)
    finally:
        answering.close()
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
