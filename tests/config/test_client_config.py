"""A client's settings: where they come from, which wins, and what an error tells."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from klamm.config.client_config import KEYS_BY_KIND, ClientConfig
from klamm.config.foreign_keys import RENAMED
from klamm.config.rows import ConfigError
from scripts import config_reference

ADDRESS = "localhost:9092"


def write(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_password_is_taken_as_it_was_typed():
    login = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}
    config = ClientConfig(
        "admin", ADDRESS, None, {**login, "sasl_password": " secret ", "sasl_username": " name "}
    )
    assert (config["sasl.password"], config["sasl.username"]) == (" secret ", "name")


def test_a_protocol_may_be_in_small_letters():
    assert ClientConfig("admin", ADDRESS, {"security.protocol": "ssl"})["security.protocol"] == "SSL"


@pytest.mark.parametrize("config", [["linger.ms"], 5, {5: "linger.ms"}])
def test_a_config_that_is_none_is_refused(config):
    with pytest.raises(ConfigError, match=r"is refused|is not a configuration key"):
        ClientConfig("producer", ADDRESS, config)


@pytest.mark.parametrize("name", RENAMED)
def test_a_name_of_another_client_leads_to_one_of_ours(name):
    assert any(RENAMED[name] in keys for keys in KEYS_BY_KIND.values())
    assert not any(name in keys for keys in KEYS_BY_KIND.values())
    with pytest.raises(ConfigError, match=RENAMED[name]):
        ClientConfig("producer", ADDRESS, {name: "1"})


# ---- where settings come from


def test_arguments_of_their_own_win_over_options_over_config_over_default():
    config = ClientConfig(
        "producer",
        "a:1",
        {"bootstrap.servers": "b:2", "linger.ms": "5", "batch.size": "100", "acks": "1"},
        {"bootstrap_servers": "c:3", "linger_ms": 7},
    )
    assert config["bootstrap.servers"] == ("a:1",)
    assert config["linger.ms"] == 7
    assert config["batch.size"] == 100
    assert config["compression.type"] == "none"
    assert {name for name in config if config.given(name)} == {
        "bootstrap.servers",
        "linger.ms",
        "batch.size",
        "acks",
    }


def test_options_win_over_a_file(tmp_path):
    file = write(tmp_path, "producer.properties", "bootstrap.servers=b:2\nlinger.ms=5\nbatch.size=100\n")
    config = ClientConfig("producer", None, file, {"linger_ms": 7})
    assert (config["bootstrap.servers"], config["linger.ms"], config["batch.size"]) == (("b:2",), 7, 100)


def test_an_option_that_is_none_is_not_given():
    config = ClientConfig("producer", ADDRESS, {"linger.ms": 5}, {"linger_ms": None, "acks": None})
    assert config["linger.ms"] == 5
    assert not config.given("acks")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("consumer.properties", "bootstrap.servers=a:1,b:2\nsession.timeout.ms: 10000\ncheck.crcs = false\n"),
        (
            "consumer.toml",
            'bootstrap.servers = ["a:1", "b:2"]\ncheck.crcs = false\n[session.timeout]\nms = 10000\n',
        ),
    ],
)
def test_a_file_is_read_as_properties_or_toml(tmp_path, name, text):
    path = write(tmp_path, name, text)
    for given in (path, str(path)):
        config = ClientConfig("consumer", config=given, options={"group_id": "g"})
        assert config["bootstrap.servers"] == ("a:1", "b:2")
        assert config["session.timeout.ms"] == 10_000
        assert config["check.crcs"] is False


@pytest.mark.parametrize("name", ["session.timeout.ms", "session_timeout_ms"])
def test_a_mapping_takes_both_spellings(name):
    assert ClientConfig("consumer", ADDRESS, {name: 7000, "group.id": "g"})["session.timeout.ms"] == 7000


def test_values_may_be_what_python_has():
    config = ClientConfig(
        "consumer",
        ["a:1", "b:2"],
        {"enable.auto.commit": False, "ssl.ca.location": Path("ca.pem"), "session.timeout.ms": 7000.0},
        {"group_id": "g", "partition_assignment_strategy": ["sticky", "range"]},
    )
    assert config["bootstrap.servers"] == ("a:1", "b:2")
    assert config["enable.auto.commit"] is False
    assert config["ssl.ca.location"] == "ca.pem"
    assert config["session.timeout.ms"] == 7000
    assert config["partition.assignment.strategy"] == ("sticky", "range")


def test_commits_may_be_turned_off_where_there_are_none():
    assert ClientConfig("consumer", ADDRESS, {"enable.auto.commit": False})["enable.auto.commit"] is False


def test_assignors_may_have_the_names_of_java():
    names = ["RangeAssignor", "RoundRobinAssignor", "StickyAssignor", "CooperativeStickyAssignor"]
    classes = ",".join(f"org.apache.kafka.clients.consumer.{name}" for name in names)
    config = ClientConfig("consumer", ADDRESS, {"group.id": "g", "partition.assignment.strategy": classes})
    every = ("range", "roundrobin", "sticky", "cooperative-sticky")
    assert config["partition.assignment.strategy"] == every
    mixed = ["org.apache.kafka.clients.consumer.RangeAssignor", "range", "sticky"]
    config = ClientConfig("consumer", ADDRESS, {"group.id": "g", "partition.assignment.strategy": mixed})
    assert config["partition.assignment.strategy"] == ("range", "sticky")


# ---- what is refused


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("producer", {"lingr_ms": 5}, "unknown producer configuration key 'lingr.ms'.*nearest.*linger.ms"),
        ("admin", {"request_timeout": 5}, "nearest known key is request.timeout.ms"),
        ("producer", {"queue_buffering_max_ms": 5}, "buffering.max.ms': in Klamm the key is linger.ms"),
        ("producer", {"value_serializer": str.encode}, "'value.serializer': .*encode before `send`"),
        ("producer", {"zookeeper_connect": 5}, "unknown producer configuration key 'zookeeper.connect'$"),
        ("consumer", {"linger_ms": 5}, "linger.ms is a key of the producer, not of the consumer"),
        ("admin", {"group_id": "g"}, "group.id is a key of the consumer, not of the admin"),
        ("producer", {"linger_ms": "soon"}, "linger.ms='?soon'? .*a number from 0"),
        ("producer", {"linger_ms": -1}, "linger.ms.*from 0"),
        ("producer", {"batch_size": 1.5}, "batch.size.*whole number"),
        ("producer", {"batch_size": True}, "batch.size.*whole number"),
        ("producer", {"batch_size": b"100"}, "batch.size.*whole number"),
        ("producer", {"compression_type": "brotli"}, "compression.type.*none, gzip, snappy, lz4, zstd"),
        ("producer", {"enable_idempotence": "perhaps"}, "enable.idempotence.*true or false"),
        ("consumer", {"partition_assignment_strategy": ["range", "mine"]}, "partition.assignment.strategy"),
        ("consumer", {"ssl_ca_location": object()}, "ssl.ca.location.*a string"),
        ("consumer", {"heartbeat_interval_ms": 45_000}, "heartbeat.interval.ms=45000.*session.timeout.ms"),
        ("admin", {"security_protocol": "SASL_SSL"}, "SASL_SSL needs sasl.mechanism"),
        ("admin", {"ssl_endpoint_identification_algorithm": "x"}, "one of https, none, nothing"),
        (
            "admin",
            {"sasl_mechanism": "PLAIN"},
            "sasl.mechanism is .* security.protocol=PLAINTEXT: set .* SASL_",
        ),
        (
            "producer",
            {"sasl_password": "x", "security_protocol": "SSL"},
            "sasl.password is .*=SSL: set .*SASL_SSL",
        ),
        (
            "consumer",
            {"group_instance_id": "a"},
            "group.instance.id is not used without a group: give .*`group`",
        ),
        ("consumer", {"session_timeout_ms": 7000, "group_id": ""}, "session.timeout.ms is .*without a group"),
        ("consumer", {"enable_auto_commit": True}, "enable.auto.commit is not used without a group"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(kind, options, words):
    with pytest.raises(ConfigError, match=words):
        ClientConfig(kind, ADDRESS, None, options)


@pytest.mark.parametrize("line", ["lingr.ms=5", "linger.ms=soon"])
def test_an_error_in_a_file_names_its_line(tmp_path, line):
    path = write(tmp_path, "producer.properties", f"# ours\nbatch.size=1\n{line}\n")
    with pytest.raises(ConfigError, match=r"producer\.properties, line 3"):
        ClientConfig("producer", ADDRESS, path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.properties cannot be read"):
        ClientConfig("producer", ADDRESS, tmp_path / "none.properties")


@pytest.mark.parametrize("bootstrap", [None, "", []])
def test_a_client_needs_an_address(bootstrap):
    with pytest.raises(
        ConfigError, match="give the client the address of a broker, such as 'localhost:9092'"
    ):
        ClientConfig("admin", bootstrap)


# ---- rules that concern several keys

NOT_IDEMPOTENT = [{"acks": "1"}, {"acks": 0}, {"max_in_flight_requests_per_connection": 6}, {"retries": 0}]


@pytest.mark.parametrize("options", NOT_IDEMPOTENT, ids=str)
def test_idempotence_yields_to_what_the_user_asked_for(options):
    assert ClientConfig("producer", ADDRESS)["enable.idempotence"] is True
    assert ClientConfig("producer", ADDRESS, None, options)["enable.idempotence"] is False


@pytest.mark.parametrize("options", NOT_IDEMPOTENT, ids=str)
def test_idempotence_that_was_asked_for_refuses_what_breaks_it(options):
    with pytest.raises(ConfigError, match=r"enable\.idempotence needs acks=all"):
        ClientConfig("producer", ADDRESS, None, {**options, "enable_idempotence": True})


def test_acks_minus_one_means_all():
    config = ClientConfig("producer", ADDRESS, None, {"acks": -1, "enable_idempotence": True})
    assert config["enable.idempotence"] is True


def test_clients_without_an_id_are_told_apart():
    ids = [ClientConfig(kind, ADDRESS)["client.id"] for kind in ("producer", "producer", "consumer", "admin")]
    assert len(set(ids)) == 4
    for kind, client_id in zip(("producer", "producer", "consumer", "admin"), ids, strict=True):
        assert re.fullmatch(rf"klamm-{kind}-{os.getpid()}-\d+", client_id)
    assert ClientConfig("admin", ADDRESS, {"client.id": "mine"})["client.id"] == "mine"
    assert ClientConfig("admin", ADDRESS, None, {"client_id": ""})["client.id"].startswith("klamm-admin-")


# ---- the rows


def test_every_default_is_a_value_that_its_row_takes():
    for kind, rows in KEYS_BY_KIND.items():
        for row in rows.values():
            text = row.text_of(row.default)
            assert text is None or row.parse(text) == row.default, f"{kind}: {row.name}"


def test_underscores_and_dots_never_mean_two_keys():
    for rows in KEYS_BY_KIND.values():
        assert len({name.replace(".", "_") for name in rows}) == len(rows)


def test_the_document_of_clients_is_what_the_rows_say():
    document = Path(__file__).parents[2] / "docs" / "CLIENT_CONFIGURATION.md"
    assert document.read_text() == config_reference.render_client(), (
        "run: .venv/bin/python scripts/config_reference.py client > docs/CLIENT_CONFIGURATION.md"
    )
