"""Files, environment, flags: what they say, which wins, and what an error tells."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.config.files import parse_properties, parse_toml
from klamm.config.loading import BrokerConfig, load_broker_config
from klamm.config.rows import ConfigError, ConfigSource


def write(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_flags_win_over_environment_over_file_over_default(tmp_path):
    file = write(
        tmp_path, "server.properties", "num.partitions=2\nlog.segment.bytes=2000000\nbroker.rack=a\n"
    )
    environment = {"KLAMM_NUM_PARTITIONS": "3", "KLAMM_LOG_SEGMENT_BYTES": "3000000", "HOME": "/"}
    config = load_broker_config(file, environment, ["num.partitions=4"])
    assert config.int_("num.partitions") == 4
    assert config.int_("log.segment.bytes") == 3_000_000
    assert config.str_("broker.rack") == "a"
    assert config.int_("message.max.bytes") == 1_048_588
    assert config.sourced_texts("num.partitions")[0].source is ConfigSource.STATIC_BROKER
    assert config.sourced_texts("message.max.bytes")[0].source is ConfigSource.DEFAULT


def test_properties_are_read_as_java_reads_them():
    text = "\n".join(
        [
            "# a comment",
            "! another",
            "",
            "  log.dirs = a,\\",
            "     b",
            "num.partitions:7",
            "broker.rack east\\u0041\\t1",
            "listeners=PLAINTEXT\\://h:1",
            "odd\\ key=x\\\\",
            "empty",
        ]
    )
    assert [(s.name, s.text, s.line) for s in parse_properties(text)] == [
        ("log.dirs", "a,b", 4),
        ("num.partitions", "7", 6),
        ("broker.rack", "eastA\t1", 7),
        ("listeners", "PLAINTEXT://h:1", 8),
        ("odd key", "x\\", 9),
        ("empty", "", 10),
    ]


@given(st.text())
def test_no_properties_text_breaks_the_reader(text):
    for setting in parse_properties(text):
        assert 1 <= setting.line <= len(text.splitlines())


def test_toml_tables_spell_dots():
    text = """
num.partitions = 3
listeners = ["PLAINTEXT://127.0.0.1:0", "OTHER://127.0.0.1:0"]

[log.retention]
hours = 24
check.interval.ms = 1000

[delete]
"topic.enable" = false
"""
    assert {(s.name, s.text, s.line) for s in parse_toml(text)} == {
        ("num.partitions", "3", 2),
        ("listeners", "PLAINTEXT://127.0.0.1:0,OTHER://127.0.0.1:0", 3),
        ("log.retention.hours", "24", 6),
        ("log.retention.check.interval.ms", "1000", 7),
        ("delete.topic.enable", "false", 10),
    }


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.properties", "\n\nnum.partitons=3", ["line 3", "'num.partitons'", "num.partitions"]),
        ("a.properties", "num.partitions=0", ["line 1", "num.partitions='0'", "from 1 to 10000"]),
        ("a.toml", "[num]\npartitions = 0", ["line 2", "num.partitions='0'", "from 1 to 10000"]),
        ("a.toml", "num = ", ["a.toml", "not valid TOML"]),
        ("a.toml", "num.partitions = 1979-05-27", ["num.partitions", "must be"]),
        ("a.properties", "listeners=SSL://127.0.0.1:1", ["line 1", "SSL is not served yet"]),
        ("a.properties", "log.dirs=", ["line 1", "log.dirs"]),
        (
            "a.properties",
            "group.min.session.timeout.ms=2000000",
            ["line 1", "group.min.session.timeout.ms=2000000", "group.max.session.timeout.ms=1800000"],
        ),
    ],
)
def test_an_error_in_a_file_says_where_and_what(tmp_path, name, text, words):
    with pytest.raises(ConfigError) as caught:
        load_broker_config(write(tmp_path, name, text))
    message = str(caught.value)
    assert name in message and "\n" not in message
    for word in words:
        assert word in message


def test_errors_of_environment_and_flags_say_where(tmp_path):
    with pytest.raises(ConfigError, match=r"environment variable KLAMM_NUM_PARTITIONS.*from 1 to 10000"):
        load_broker_config(environment={"KLAMM_NUM_PARTITIONS": "x"})
    with pytest.raises(ConfigError, match=r"KLAMM_NUM_PARTITON: .*nearest known key is num\.partitions"):
        load_broker_config(environment={"KLAMM_NUM_PARTITON": "1"})
    with pytest.raises(ConfigError, match=r"--set num\.partitions=x: "):
        load_broker_config(flags=["num.partitions=x"])
    with pytest.raises(ConfigError, match="key=value"):
        load_broker_config(flags=["num.partitions"])
    with pytest.raises(ConfigError, match="cannot be read"):
        load_broker_config(tmp_path / "absent.properties")


def test_what_kubernetes_puts_into_the_environment_is_not_ours():
    environment = {
        "KLAMM_SERVICE_HOST": "10.0.0.1",
        "KLAMM_SERVICE_PORT": "9092",
        "KLAMM_PORT": "tcp://10.0.0.1:9092",
        "KLAMM_PORT_9092_TCP_ADDR": "10.0.0.1",
    }
    assert dict(load_broker_config(environment=environment)) == dict(BrokerConfig())


def test_a_real_file_of_kafka_s_kind_is_taken(tmp_path):
    file = write(
        tmp_path,
        "server.properties",
        """
broker.id=3
listeners=PLAINTEXT://:9092
advertised.listeners=PLAINTEXT://localhost:9092
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/logs
num.partitions=1
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
""",
    )
    config = load_broker_config(file)
    assert config.int_("node.id") == 3
