"""Features that this broker does not have: real clients raise an error in bounded time instead of waiting.

They raise the same on an Apache Kafka with these features off; the one that the suites can run against has
them on.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, ShareConsumer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from tests.clients.conftest import NewTopic, unique
from tests.clients.java_tools import JavaTools
from tests.clients.remote import java_command
from tests.conftest import cannot_run
from tests.peers.kafka_jars import PeerMissing

PATIENCE_S = 30


@pytest.fixture(autouse=True)
def _klamm_only(is_klamm: bool) -> None:
    if not is_klamm:
        pytest.skip("Apache Kafka has these features")


def test_librdkafka_in_a_group_of_the_new_protocol(bootstrap: str, new_topic: NewTopic) -> None:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": unique("new"), "group.protocol": "consumer"}
    )
    try:
        consumer.subscribe([new_topic()])
        deadline = time.monotonic() + PATIENCE_S
        while (message := consumer.poll(1.0)) is None:
            assert time.monotonic() < deadline, "the consumer polls on without an error"
        error = message.error()
        assert error is not None and error.code() == KafkaError._FATAL
        assert "API version not supported" in error.str()
    finally:
        consumer.close()


def test_librdkafka_in_a_share_group(bootstrap: str, new_topic: NewTopic) -> None:
    consumer = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": unique("share")})
    try:
        consumer.subscribe([new_topic()])
        with pytest.raises(KafkaException) as raised:
            deadline = time.monotonic() + PATIENCE_S
            while time.monotonic() < deadline:
                consumer.poll(1.0)
        assert raised.value.args[0].code() == KafkaError.UNSUPPORTED_VERSION
    finally:
        consumer.close()


def test_librdkafka_adds_an_acl(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    acl = AclBinding(
        *(ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "User:someone", "*"),
        *(AclOperation.READ, AclPermissionType.ALLOW),
    )
    (created,) = admin.create_acls([acl], request_timeout=PATIENCE_S).values()
    with pytest.raises(KafkaException) as raised:
        created.result(PATIENCE_S)
    assert raised.value.args[0].code() == KafkaError.SECURITY_DISABLED


def test_javas_consumers_of_the_new_protocols(bootstrap: str, new_topic: NewTopic) -> None:
    try:
        command = java_command("GroupProtocols")
    except PeerMissing as problem:
        cannot_run(problem)
    done = subprocess.run(
        [*command, bootstrap, new_topic(), str(PATIENCE_S)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S * 4,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "consumer UnsupportedVersionException",
        "share UnsupportedVersionException",
    ], done


@pytest.fixture
def tools(bootstrap: str) -> Iterator[JavaTools]:
    try:
        made = JavaTools(bootstrap)
    except PeerMissing as problem:
        cannot_run(problem)
    yield made
    made.close()


def test_javas_admin_client_lists_acls(tools: JavaTools) -> None:
    outcome = tools.try_run("acls", "--bootstrap-server", "{bootstrap}", "--list")
    assert "SecurityDisabledException: this broker has no authorizer" in outcome.printed + outcome.complained
