"""What is missing is named: a test is skipped with the name of its tool, and fails in CI."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.kcat import KcatClient
from tests.clients.remote import JavaClient, KafkaJsClient
from tests.conftest import cannot_run
from tests.peers.apache_kafka import ApacheKafka
from tests.peers.kafka_jars import PeerMissing
from tests.peers.zookeeper import find_zookeeper_jar


@pytest.fixture
def no_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("no_programs")
@pytest.mark.parametrize(
    ("client", "tool"),
    [(KcatClient, "kcat"), (KafkaJsClient, "node"), (JavaClient, "Java"), (ApacheKafka, "Java")],
)
def test_a_missing_program_is_named(client: type[object], tool: str) -> None:
    with pytest.raises(PeerMissing, match=f"^{tool} is missing"):
        client("127.0.0.1:1")  # type: ignore[call-arg]


def test_missing_jars_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "java"
    program.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PeerMissing, match=r"Apache Kafka 4\.3\.0 is missing"):
        ApacheKafka(tmp_path)


def test_a_missing_zookeeper_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOOKEEPER_JAR", str(tmp_path / "zookeeper.jar"))
    with pytest.raises(PeerMissing, match=r"ZooKeeper is missing: no .*zookeeper\.jar; install zookeeper"):
        find_zookeeper_jar()


def test_a_test_without_its_tool_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="kcat is missing"):
        cannot_run(PeerMissing("kcat is missing"))


def test_in_ci_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="kcat is missing"):
        cannot_run(PeerMissing("kcat is missing"))
