from __future__ import annotations

import pickle

import pytest

from klamm.model.ids import TopicPartition
from pyspark_klamm.client_options import client_config, client_settings
from pyspark_klamm.errors import OptionError
from pyspark_klamm.offsets import EARLIEST, LATEST
from pyspark_klamm.options import ReadOptions, parse_read_options

LEAST = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}


def batch(**options: str) -> ReadOptions:
    return parse_read_options({**LEAST, **options}, is_stream=False)


def stream(**options: str) -> ReadOptions:
    return parse_read_options({**LEAST, **options}, is_stream=True)


def refusal(options: dict[str, str], *, is_stream: bool = False) -> str:
    with pytest.raises(OptionError) as caught:
        parse_read_options(options, is_stream=is_stream)
    return str(caught.value)


def test_defaults_are_those_of_kafkas_connector() -> None:
    options = batch()
    assert options.starting.everywhere == EARLIEST
    assert options.ending.everywhere == LATEST
    assert stream().starting.everywhere == LATEST
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert not options.latest_if_no_record
    assert (options.min_partitions, options.max_records_per_partition) == (None, None)
    assert (options.max_offsets_per_trigger, options.min_offsets_per_trigger) == (None, None)
    assert options.max_trigger_delay_seconds == 15 * 60
    assert options.poll_timeout_seconds == 120
    assert (options.group_id, options.group_id_prefix) == (None, "spark-klamm")


def test_names_are_taken_in_any_case() -> None:
    options = batch(STARTINGOFFSETS="earliest", failondataloss="FALSE", MinPartitions="7")
    assert not options.fail_on_data_loss
    assert options.min_partitions == 7


def test_everything_that_can_be_said() -> None:
    options = stream(
        startingOffsets='{"orders": {"0": 23, "1": -2}}',
        failOnDataLoss="false",
        minPartitions="10",
        maxRecordsPerPartition="1000",
        maxOffsetsPerTrigger="500",
        minOffsetsPerTrigger="100",
        maxTriggerDelay="2m",
        includeHeaders="true",
        groupIdPrefix="etl",
        **{"kafka.group.id": "billing", "kafkaConsumer.pollTimeoutMs": "5000"},
    )
    assert options.starting.offsets == {TopicPartition("orders", 0): 23, TopicPartition("orders", 1): -2}
    assert (options.min_partitions, options.max_records_per_partition) == (10, 1000)
    assert (options.max_offsets_per_trigger, options.min_offsets_per_trigger) == (500, 100)
    assert options.max_trigger_delay_seconds == 120
    assert options.include_headers
    assert (options.group_id, options.group_id_prefix) == ("billing", "etl")
    assert options.poll_timeout_seconds == 5
    assert pickle.loads(pickle.dumps(options)) == options


def test_times_go_before_offsets() -> None:
    options = batch(
        startingTimestamp="1000",
        startingOffsetsByTimestamp='{"orders": {"0": 5}}',
        startingOffsets="earliest",
        endingOffsetsByTimestamp='{"orders": {"0": 7}}',
        endingOffsets="latest",
        startingOffsetsByTimestampStrategy="latest",
    )
    assert options.starting.time_ms == 1000
    assert options.ending.times_ms == {TopicPartition("orders", 0): 7}
    assert options.latest_if_no_record


def test_a_subscription_is_names_or_a_pattern_or_partitions() -> None:
    assert batch(subscribe=" a, b,a,").subscription.topics == ("a", "b")
    by_pattern = parse_read_options(
        {"kafka.bootstrap.servers": "x:1", "subscribePattern": "orders-.*"}, is_stream=True
    ).subscription
    assert by_pattern.selects("orders-eu", is_internal=False)
    assert not by_pattern.selects("old-orders-eu", is_internal=False)
    assert not by_pattern.selects("orders-internal", is_internal=True)
    assigned = parse_read_options(
        {"kafka.bootstrap.servers": "x:1", "assign": '{"a": [1, 2]}'}, is_stream=True
    ).subscription
    assert assigned.partitions == (TopicPartition("a", 1), TopicPartition("a", 2))
    assert assigned.selects("a", is_internal=False)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"subscribe": None}, "one of the options subscribe, subscribePattern, assign"),
        ({"assign": '{"a": [1]}'}, "subscribe, assign are given"),
        ({"subscribe": " , "}, "does not name a topic"),
        ({"subscribe": None, "subscribePattern": "("}, "not a valid regular expression"),
        ({"subscribe": None, "subscribePattern": " "}, "empty"),
        ({"kafka.bootstrap.servers": None}, "kafka.bootstrap.servers is missing"),
        ({"startingOffsets": "latest"}, "cannot start at the latest offset"),
        ({"endingOffsets": "earliest"}, "cannot end at the earliest offset"),
        ({"startingOffsets": '{"orders": {"0": -1}}'}, "not valid for orders-0"),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, "not valid for orders-0"),
        ({"minPartitions": "0"}, "minPartitions='0' is not valid"),
        ({"maxRecordsPerPartition": "many"}, "whole number of at least 1"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "error or latest"),
        ({"startingTimestamp": "-5"}, "whole number of at least 0"),
        ({"maxTriggerDelay": "soon"}, "expected a time such as"),
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"maxOffsetPerTrigger": "5"}, "did you mean 'maxOffsetsPerTrigger'"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "above maxOffsetsPerTrigger=4"),
        ({"kafka.auto.offset.reset": "earliest"}, "startingOffsets"),
        ({"kafka.enable.auto.commit": "true"}, "not supported"),
        ({"kafka.key.deserializer": "x"}, "keys are binary"),
    ],
    ids=str,
)
def test_what_is_refused(change: dict[str, str | None], text: str) -> None:
    options = {name: value for name, value in {**LEAST, **change}.items() if value is not None}
    assert text in refusal(options)


@pytest.mark.parametrize("name", ["endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    assert f"{name} is not for streaming queries" in refusal({**LEAST, name: "latest"}, is_stream=True)


def test_options_for_somebody_else_are_left_alone() -> None:
    batch(path="/tables/orders", mergeSchema="true", **{"fetchOffset.numRetries": "3"})


# ---- kafka.*


def settings(**options: str) -> dict[str, str]:
    return client_settings(
        {f"kafka.{name}": value for name, value in {**CLIENT, **options}.items()}, "consumer"
    )


CLIENT = {"bootstrap.servers": "localhost:9092"}


def test_settings_reach_the_client() -> None:
    config = client_config(
        {"kafka.bootstrap.servers": "a:1,b:2", "Kafka.isolation.level": "read_committed"}, "consumer"
    )
    assert config.list_("bootstrap.servers") == ("a:1", "b:2")
    assert config.str_("isolation.level") == "read_committed"
    assert not config.bool_("allow.auto.create.topics"), "a query that reads creates no topics"


def test_settings_of_membership_are_of_no_use_and_do_no_harm() -> None:
    client_config({"kafka.bootstrap.servers": "a:1", "kafka.session.timeout.ms": "9000"}, "consumer")


def test_an_unknown_setting_is_refused_with_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"isolation\.level"):
        client_config({"kafka.bootstrap.servers": "a:1", "kafka.isolation.leve": "x"}, "consumer")
    with pytest.raises(OptionError, match="PEM"):
        client_config(
            {"kafka.bootstrap.servers": "a:1", "kafka.ssl.truststore.location": "x.jks"}, "consumer"
        )


def test_a_login_in_javas_words() -> None:
    jaas = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="bill" password="a \\"b\\" = c;";'
    )
    found = settings(**{"sasl.jaas.config": jaas, "sasl.mechanism": "SCRAM-SHA-512"})
    assert (found["sasl.username"], found["sasl.password"]) == ("bill", 'a "b" = c;')
    assert "sasl.jaas.config" not in found
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required username='u' password='p';"
    assert settings(**{"sasl.jaas.config": plain})["sasl.mechanism"] == "PLAIN"
    with pytest.raises(OptionError, match=r"sasl\.username"):
        settings(**{"sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required;"})


def test_pem_stores_in_javas_words() -> None:
    found = settings(
        **{
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "ca.pem",
            "ssl.keystore.type": "pem",
            "ssl.keystore.location": "me.pem",
            "ssl.key.password": "secret",
        }
    )
    assert found == {
        **CLIENT,
        "allow.auto.create.topics": "false",
        "ssl.ca.location": "ca.pem",
        "ssl.certificate.location": "me.pem",
        "ssl.key.location": "me.pem",
        "ssl.key.password": "secret",
    }


def test_a_stream_can_stop_at_offsets() -> None:
    assert stream().stopping is None
    stops = stream(stoppingOffsets='{"orders": {"0": 23}}').stopping
    assert stops == {("orders", 0): 23}
    assert "at least" not in refusal({**LEAST, "stoppingOffsets": '{"orders": {"0": -1}}'}, is_stream=True)
    assert "for streaming queries" in refusal({**LEAST, "stoppingOffsets": "{}"})
