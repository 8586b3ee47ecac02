"""The admin, call by call, over both faces and against both brokers. The great lines are in behaviour/."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import pytest

import klamm
from klamm import (
    BatchFailed,
    BrokerError,
    ClientClosed,
    ClientMisused,
    CommittedOffset,
    ConfigChange,
    ConfigResource,
    ConfigSource,
    ErrorCode,
    GroupError,
    NewTopic,
    OffsetOutOfRange,
    ResourceType,
    TimedOut,
    TopicPartition,
    UnknownTopic,
)
from klamm.client.admin.types import ConfigType
from klamm.records.builder import build_batch, number_records
from klamm.testing.wire import WireConnection
from tests.abuse import calls
from tests.client.admin.wire_member import WireMember
from tests.client.topics import has_leaders, unique
from tests.waiting import wait_until

START_MS = 1_700_000_000_000


@pytest.fixture
def admin(face, bootstrap):
    with face.admin(bootstrap) as made:
        yield made


@pytest.fixture
def filled(bootstrap, new_topic):
    """A topic whose ten records are a second apart, of years ago, hence without retention."""
    topic = new_topic(1, {"retention.ms": -1})
    with WireConnection(bootstrap) as connection:
        for number in range(10):
            records = number_records([(b"key", b"value")], START_MS + number * 1000)
            assert calls.produce(connection, topic, build_batch(records)).error_code == ErrorCode.NONE
    return TopicPartition(topic, 0)


# ---- topics


def test_a_new_topic_is_known_with_all_its_leaders_at_once(admin, bootstrap):
    with WireConnection(bootstrap) as connection:
        for _ in range(5):
            topic = unique("at-once")
            admin.create_topic(topic, 4)
            assert has_leaders(connection, topic, 4)
            admin.create_partitions(topic, 6)
            assert has_leaders(connection, topic, 6)


def test_the_brokers_of_each_partition_can_be_chosen(admin):
    broker = admin.describe_cluster().brokers[0].broker_id
    topic = unique("assigned")
    created = admin.create_topic(topic, assignments={0: [broker], 1: [broker]})
    assert (created.partitions, created.replication_factor) == (2, 1)
    admin.create_partitions(topic, 3, assignments=[[broker]])
    assert [one.replicas for one in admin.describe_topic(topic).partitions] == [(broker,)] * 3
    with pytest.raises(BrokerError) as refused:
        admin.create_topic(unique("assigned"), assignments={0: [broker + 1000]})
    assert refused.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    with pytest.raises(ClientMisused, match="assignments, and a number of partitions or replicas as well"):
        admin.create_topic(unique("assigned"), 2, assignments={0: [broker]})


def test_what_was_created_is_told(admin):
    created = admin.create_topic(unique("told"), 2, 1, configs={"retention.ms": 5000, "preallocate": False})
    assert created.configs["retention.ms"].value == "5000"
    assert created.configs["retention.ms"].source is ConfigSource.DYNAMIC_TOPIC
    assert created.configs["cleanup.policy"].is_default


@pytest.mark.parametrize(
    ("arguments", "options", "code"),
    [
        ((0,), {}, ErrorCode.INVALID_PARTITIONS),
        ((1, 100), {}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ((1,), {"configs": {"retention.ms": "x"}}, ErrorCode.INVALID_CONFIG),
    ],
    ids=["partitions", "replicas", "settings"],
)
def test_what_cannot_be_created_says_why(admin, arguments, options, code):
    for validate_only in (True, False):
        with pytest.raises(BrokerError) as refused:
            admin.create_topic(unique("refused"), *arguments, validate_only=validate_only, **options)
        assert refused.value.code is code
        assert not refused.value.retriable


def test_a_topic_named_twice_is_a_slip(admin):
    with pytest.raises(ClientMisused, match="named twice"):
        admin.create_topics([NewTopic("twice"), NewTopic("twice")])


def test_deleting_what_is_not_there(admin, new_topic):
    topic = new_topic()
    with pytest.raises(UnknownTopic, match="nowhere"):
        admin.delete_topic("nowhere")
    with pytest.raises(BatchFailed) as failed:
        admin.delete_topics([topic, "nowhere"])
    assert list(failed.value.results) == [topic]
    assert list(failed.value.errors) == ["nowhere"]
    assert failed.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert topic not in admin.list_topics()
    admin.delete_topics([])


def test_a_topic_made_anew_has_another_id(admin, new_topic):
    topic = new_topic()
    before = admin.describe_topic(topic).topic_id
    admin.delete_topic(topic)
    assert admin.create_topic(topic).topic_id != before
    assert admin.describe_topic(topic).topic_id != before


def test_all_topics_and_some(admin, new_topic):
    one, other = new_topic(2), new_topic(3)
    every = admin.describe_topics()
    assert {name: len(every[name].partitions) for name in (one, other)} == {one: 2, other: 3}
    assert list(admin.describe_topics([other, one])) == [other, one]
    assert admin.describe_topics([]) == {}
    with pytest.raises(BatchFailed) as failed:
        admin.describe_topics([one, "not there"])
    assert list(failed.value.results) == [one]


def test_internal_topics_are_listed_when_asked_for(admin):
    admin.list_group_offsets(unique("group"))  # a group's coordinator needs it
    assert "__consumer_offsets" not in admin.list_topics()
    assert "__consumer_offsets" in admin.list_topics(include_internal=True)
    assert admin.describe_topic("__consumer_offsets").internal


def test_growing_says_what_is_wrong(admin, new_topic):
    topic = new_topic(3)
    for total in (3, 2):
        with pytest.raises(BrokerError) as refused:
            admin.create_partitions(topic, total)
        assert refused.value.code is ErrorCode.INVALID_PARTITIONS
    with pytest.raises(UnknownTopic):
        admin.create_partitions("nowhere", 2)
    admin.create_partitions(topic, 4, validate_only=True)
    assert len(admin.describe_topic(topic).partitions) == 3


# ---- settings


def wait_for_settings(admin, resource, expected):
    """Apache Kafka says that settings are altered a moment before they are."""

    def is_so():
        entries = admin.describe_config(resource)
        return all(name in entries and entries[name].value == value for name, value in expected.items())

    wait_until(is_so, f"{resource} has {expected}")


def test_settings_of_several_resources_are_changed_each_whole(admin, new_topic):
    good, bad = ConfigResource.topic(new_topic()), ConfigResource.topic(new_topic())
    with pytest.raises(BatchFailed) as failed:
        admin.alter_configs(
            {
                good: ConfigChange(set={"retention.ms": 4000, "segment.ms": 4000}),
                bad: ConfigChange(set={"retention.ms": 4000, "segment.ms": "never"}),
            }
        )
    assert list(failed.value.results) == [good]
    assert failed.value.errors[bad].code is ErrorCode.INVALID_CONFIG
    wait_for_settings(admin, good, {"retention.ms": "4000", "segment.ms": "4000"})
    found = admin.describe_configs([good, bad], ["retention.ms"])
    assert found[good]["retention.ms"].value == "4000"
    assert found[bad]["retention.ms"].is_default


def test_appending_and_subtracting(admin, new_topic):
    topic = ConfigResource.topic(new_topic(1, {"cleanup.policy": "delete"}))
    admin.alter_config(topic, append={"cleanup.policy": ["compact"]})
    wait_for_settings(admin, topic, {"cleanup.policy": "delete,compact"})
    admin.alter_config(topic, subtract={"cleanup.policy": "delete"}, set={"preallocate": True})
    wait_for_settings(admin, topic, {"cleanup.policy": "compact", "preallocate": "true"})


def test_nothing_is_changed_when_only_validating(admin, new_topic):
    topic = ConfigResource.topic(new_topic())
    admin.alter_config(topic, set={"retention.ms": 4000}, validate_only=True)
    assert admin.describe_config(topic)["retention.ms"].is_default
    with pytest.raises(ClientMisused, match="nothing to alter"):
        admin.alter_config(topic)


def test_a_setting_has_type_words_and_synonyms(admin, new_topic):
    topic = ConfigResource.topic(new_topic(1, {"retention.ms": 5000}))
    entry = admin.describe_config(topic, ["retention.ms"])["retention.ms"]
    assert entry.type is ConfigType.LONG
    assert entry.documentation
    assert entry.synonyms[0] == ("retention.ms", "5000", ConfigSource.DYNAMIC_TOPIC)


def test_settings_of_what_is_not_there(admin):
    with pytest.raises(UnknownTopic):
        admin.describe_config(ConfigResource.topic("nowhere"))
    with pytest.raises(UnknownTopic):
        admin.alter_config(ConfigResource.topic("nowhere"), set={"retention.ms": 1})
    with pytest.raises(BrokerError):
        admin.describe_config(ConfigResource.broker(4711))


def test_settings_of_one_broker_and_of_all(admin):
    one = ConfigResource.broker(admin.describe_cluster().brokers[0].broker_id)
    every = ConfigResource.all_brokers()
    key = "log.cleaner.backoff.ms"

    def wait_for(resource, value, source):
        # Apache Kafka says that it is altered a moment before it is.
        def is_so():
            entry = admin.describe_config(resource).get(key)
            return entry is not None and (entry.value, entry.source) == (value, source)

        wait_until(is_so, f"{resource} has {key}={value} from {source.name}")

    default = admin.describe_config(one)[key].value
    admin.alter_config(every, set={key: 14_000})
    wait_for(every, "14000", ConfigSource.DYNAMIC_DEFAULT_BROKER)
    wait_for(one, "14000", ConfigSource.DYNAMIC_DEFAULT_BROKER)
    admin.alter_config(one, set={key: 13_000})
    wait_for(one, "13000", ConfigSource.DYNAMIC_BROKER)
    admin.alter_configs({one: ConfigChange(delete=[key]), every: ConfigChange(delete=[key])})
    wait_for(one, default, ConfigSource.DEFAULT)


def test_what_has_settings_is_listed(admin, new_topic):
    topic = ConfigResource.topic(new_topic())
    assert topic in admin.list_config_resources()
    kinds = {one.type for one in admin.list_config_resources([ResourceType.BROKER])}
    assert kinds == {ResourceType.BROKER}


# ---- groups


@pytest.fixture
def member(bootstrap, filled):
    made = WireMember(bootstrap, unique("group"), filled)
    yield made
    made.close()


def test_a_member_and_what_it_holds(admin, member, filled):
    described = admin.describe_group(member._group)
    assert (described.state, described.strategy) == ("Stable", "range")
    assert described.coordinator in [one.broker_id for one in admin.describe_cluster().brokers]
    (one,) = described.members
    assert (one.member_id, one.client_id, one.instance_id) == (member.member_id, "wire-member", None)
    assert (one.topics, one.partitions) == ((filled.topic,), {filled})
    assert one.host.endswith("127.0.0.1")


def test_groups_are_listed_by_state_and_type(admin, member):
    other = unique("group")
    admin.alter_group_offsets(other, {(admin.list_topics()[0], 0): 0})

    def listed(**options):
        return {one.group for one in admin.list_groups(**options)} & {member._group, other}

    assert listed() == {member._group, other}
    assert listed(states=["Stable"]) == {member._group}
    assert listed(states=["Empty"]) == {other}
    assert listed(types=["classic"]) == {member._group, other}
    assert listed(types=["consumer"]) == set()
    (one,) = [one for one in admin.list_groups() if one.group == member._group]
    assert (one.protocol_type, one.state, one.type) == ("consumer", "Stable", "classic")


def test_members_are_sent_away(admin, member):
    with pytest.raises(BatchFailed) as failed:
        admin.remove_members(member._group, ["nobody"])
    assert failed.value.errors["nobody"].code is ErrorCode.UNKNOWN_MEMBER_ID
    admin.remove_members(member._group, [])
    assert member.heartbeat() == ErrorCode.NONE
    admin.remove_members(member._group, [member.member_id], reason="to see it go")
    assert member.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert admin.describe_group(member._group).state == "Empty"


@pytest.mark.parametrize("named", [True, False], ids=["by name", "with all"])
def test_a_static_member_is_sent_away(admin, bootstrap, filled, named):
    group = unique("group")
    member = WireMember(bootstrap, group, filled, instance_id="desk-1")
    try:
        assert admin.describe_group(group).members[0].instance_id == "desk-1"
        admin.remove_members(group, instance_ids=["desk-1"] if named else None)
        assert admin.describe_group(group).members == ()
    finally:
        member.close()


def test_groups_that_are_not_there(admin):
    nobody = unique("nobody")
    for call in (admin.describe_group, admin.delete_group):
        with pytest.raises(GroupError) as refused:
            call(nobody)
        assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    assert admin.list_group_offsets(nobody) == {}
    assert admin.group_lag(nobody) == {}
    with pytest.raises(BatchFailed) as failed:
        admin.delete_groups([nobody])
    assert list(failed.value.errors) == [nobody]


# ---- offsets of groups


def test_a_group_with_members_keeps_its_offsets(admin, member, filled):
    with pytest.raises(BatchFailed) as failed:
        admin.alter_group_offsets(member._group, {filled: 3})
    assert "Stop its members first" in str(failed.value.errors[filled])
    with pytest.raises(BatchFailed) as failed:
        admin.delete_group_offsets(member._group, [filled])
    assert failed.value.errors[filled].code is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    with pytest.raises(GroupError) as refused:
        admin.delete_group(member._group)
    assert refused.value.code is ErrorCode.NON_EMPTY_GROUP


def test_offsets_of_some_partitions(admin, filled):
    group = unique("group")
    admin.alter_group_offsets(group, {filled: CommittedOffset(4, "four", 0)})
    assert admin.list_group_offsets(group) == {filled: CommittedOffset(4, "four", 0)}
    assert admin.list_group_offsets(group, [filled, (filled.topic, 1)]) == {
        filled: CommittedOffset(4, "four", 0)
    }
    assert admin.group_lag(group, [filled]) == {filled: 6}
    with pytest.raises(BatchFailed) as failed:
        admin.alter_group_offsets(group, {filled: 5, ("nowhere", 0): 1})
    assert list(failed.value.results) == [filled]
    assert isinstance(failed.value.errors[TopicPartition("nowhere", 0)], UnknownTopic)
    assert admin.list_group_offsets(group)[filled].offset == 5


def test_offsets_of_several_groups(admin, filled):
    groups = [unique("group") for _ in range(3)]
    for number, group in enumerate(groups[:2]):
        admin.alter_group_offsets(group, {filled: number})
    assert admin.list_groups_offsets(groups) == {
        groups[0]: {filled: CommittedOffset(0, "", -1)},
        groups[1]: {filled: CommittedOffset(1, "", -1)},
        groups[2]: {},
    }
    assert admin.list_groups_offsets([]) == {}


def test_lag_leaves_out_what_was_deleted(admin, filled, new_topic):
    group, other = unique("group"), new_topic()
    admin.alter_group_offsets(group, {filled: 10, (other, 0): 0})
    admin.delete_topic(other)
    assert admin.group_lag(group) == {filled: 0}


# ---- offsets of partitions


def test_places_in_a_partition(admin, filled):
    def offset(place):
        found = admin.list_offsets({filled: place})[filled]
        return None if found is None else (found.offset, found.timestamp)

    assert offset("earliest")[0] == 0
    assert offset("latest")[0] == 10
    assert offset("max_timestamp") == (9, START_MS + 9000)
    assert offset(START_MS + 4500) == (5, START_MS + 5000)
    moment = datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(seconds=3)
    assert offset(moment) == (3, START_MS + 3000)
    assert offset(START_MS + 100_000) is None
    for wrong in (datetime(2024, 1, 1), "sometime", -7, True, None):
        with pytest.raises(ClientMisused):
            offset(wrong)


def test_records_are_deleted_up_to_an_offset(admin, filled):
    assert admin.delete_records({filled: 4}) == {filled: 4}
    with pytest.raises(BatchFailed) as failed:
        admin.delete_records({filled: 11, ("nowhere", 0): 1})
    assert isinstance(failed.value.errors[filled], OffsetOutOfRange)
    assert isinstance(failed.value.errors[TopicPartition("nowhere", 0)], UnknownTopic)
    assert admin.delete_records({filled: -1}) == {filled: 10}


# ---- brokers


def test_log_directories_of_a_broker_that_is_not_there(admin):
    known = admin.describe_cluster().brokers[0].broker_id
    with pytest.raises(BatchFailed) as failed:
        admin.describe_log_dirs([known, 4711])
    assert failed.value.errors[4711].code is ErrorCode.BROKER_NOT_AVAILABLE
    (directory,) = failed.value.results[known]
    assert directory.error is None
    assert 0 < directory.usable_bytes <= directory.total_bytes


def test_a_producer_is_remembered(admin, bootstrap, new_topic):
    partition = TopicPartition(new_topic(), 0)
    with WireConnection(bootstrap) as connection:
        batch = calls.batch_of(b"a", b"b", producer_id=4711, producer_epoch=0, base_sequence=0)
        assert calls.produce(connection, partition.topic, batch).error_code == ErrorCode.NONE
    (one,) = admin.describe_producers([partition])[partition]
    assert (one.producer_id, one.producer_epoch, one.last_sequence) == (4711, 0, 1)
    assert one.transaction_start_offset is None
    with pytest.raises(BatchFailed):
        admin.describe_producers([("nowhere", 0)])


def test_what_a_broker_serves(admin):
    broker = admin.describe_cluster().brokers[0].broker_id
    versions = admin.broker_versions(broker)
    assert (versions.apis[18].first, versions.apis[18].last) == (0, 4)
    with pytest.raises(BrokerError) as refused:
        admin.broker_versions(4711)
    assert refused.value.code is ErrorCode.BROKER_NOT_AVAILABLE


# ---- slips, and the end


@pytest.mark.parametrize(
    "slip",
    [
        lambda admin: admin.delete_topics("orders"),
        lambda admin: admin.describe_topics("orders"),
        lambda admin: admin.delete_topic(7),
        lambda admin: admin.describe_producers(("orders", 0)),
        lambda admin: admin.delete_records({"orders": 7}),
        lambda admin: admin.create_topic("x" * 40_000),
        lambda admin: admin.create_topic("orders", 2**40),
        lambda admin: admin.create_topic("orders", configs={"retention.ms": object()}),
        lambda admin: admin.alter_group_offsets("group", {("orders", 0): "here"}),
    ],
)
def test_a_slip_is_told_at_once(admin, slip):
    with pytest.raises(ClientMisused):
        slip(admin)


def test_a_closed_admin_is_refused(face, bootstrap):
    admin = face.admin(bootstrap)
    admin.close()
    admin.close()
    with pytest.raises(ClientClosed, match=r"admin klamm-admin-\d+-\d+ is closed"):
        admin.list_topics()


def test_without_a_broker_a_call_ends_in_time(face):
    admin = face.admin("127.0.0.1:1")
    for call in (
        admin.list_topics,
        admin.describe_cluster,
        admin.list_groups,
        lambda timeout: admin.create_topic("orders", timeout=timeout),
        lambda timeout: admin.describe_group("billing", timeout=timeout),
        lambda timeout: admin.list_offsets({("orders", 0): "latest"}, timeout=timeout),
    ):
        with pytest.raises(TimedOut, match=r"timed out after \d(\.\d+)? s.*127\.0\.0\.1:1"):
            call(timeout=0.3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_admin_is_refused(bootstrap):
    with klamm.Admin(bootstrap) as admin:
        admin.list_topics()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                admin.list_topics()
            except klamm.ClientForked as error:
                os.write(writer, str(error).encode())
            admin.close()
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writer)
        with os.fdopen(reader) as told:
            assert "Make another admin in the child" in told.read()
        admin.list_topics()
