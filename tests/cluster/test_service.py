"""The service over a real store: what lasts, what subscribers see, what happens when the store fails."""

from __future__ import annotations

import asyncio
import time

import pytest

from klamm.cluster import committing, layout
from klamm.cluster.controller.topics import MAX_NEW_PARTITIONS, NewPartitions, NewTopic
from klamm.cluster.image import (
    ALL_BROKERS,
    OFFSETS_TOPIC,
    BrokerDelta,
    BrokerImage,
    Endpoint,
    ImageDelta,
    TopicImage,
    broker_image,
    unfinished_deletions_of,
)
from klamm.cluster.service import COMMANDS_BETWEEN_PAUSES
from klamm.config.alterations import Alteration, AlterOperation
from klamm.config.loading import BrokerConfig
from klamm.config.rows import ResourceType
from klamm.config.topic_keys import topic_config
from klamm.coordination.store import Create, NoNode, Set, Unavailable
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition

from .scenario import broker, run


def unfinished(service):
    """Topics that were deleted and whose files the broker may still have."""
    return unfinished_deletions_of(service.image, 1)


def set_(name, value):
    return [Alteration(name, AlterOperation.SET, value)]


def test_everything_is_the_same_after_a_restart(tmp_path):
    async def scenario(cluster):
        service = await cluster.start()
        await service.create_topics(
            [NewTopic("a", 3), NewTopic("b", 1, config={"retention.ms": "5"}), NewTopic("gone", 2)]
        )
        await service.create_partitions([NewPartitions("a", 5)])
        await service.delete_topics(["gone"])
        await service.alter_config(ResourceType.TOPIC, "a", set_("cleanup.policy", "compact"))
        await service.alter_config(ResourceType.BROKER, ALL_BROKERS, set_("message.max.bytes", "77"))
        await service.alter_config(ResourceType.BROKER, "1", set_("log.retention.ms", "99"))
        group = "any/thing . ü"
        await service.alter_config(ResourceType.GROUP, group, set_("consumer.session.timeout.ms", "50000"))
        await service.alter_config(ResourceType.GROUP, "..", set_("consumer.session.timeout.ms", "50000"))
        await service.raise_leader_epochs([TopicPartition("a", 4)])
        await service.ensure_offsets_topic()
        image = service.image
        assert len(image.topics["a"].partitions) == 5
        assert image.topics["a"].partitions[4].leader_epoch == 1

        again = await cluster.start()
        assert again.image == image
        assert set(again.image.group_configs) == {group, ".."}
        assert again.config["message.max.bytes"] == 77 and again.config["log.retention.ms"] == 99
        assert unfinished(again) == frozenset()
        assert topic_config(again.config, again.image.topics["a"].config)["retention.ms"] == 99

    run(tmp_path, scenario)


def test_a_recreated_topic_has_another_id_and_starts_afresh(tmp_path):
    async def scenario(cluster):
        service = await cluster.start()
        (first,) = await service.create_topics([NewTopic("t", 3, config={"retention.ms": "5"})])
        await service.delete_topics(["t"])
        assert first.topic_id not in service.image.topic_names_by_id
        (second,) = await service.create_topics([NewTopic("t", 1)])
        assert second.topic_id != first.topic_id
        assert len(second.partitions) == 1 and second.config == {}

    run(tmp_path, scenario)


def test_each_topic_of_a_request_succeeds_or_fails_alone_and_in_order(tmp_path):
    async def scenario(cluster):
        service = await cluster.start()
        wanted = ["a", "b/", "c", "a", "c.d", "c_d"]
        results = await service.create_topics([NewTopic(name) for name in wanted])
        assert [result.code if isinstance(result, KafkaError) else result.name for result in results] == [
            "a",
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "c",
            ErrorCode.TOPIC_ALREADY_EXISTS,
            "c.d",
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        ]
        assert set(service.image.topics) == {"a", "c", "c.d"}
        results = await service.delete_topics(["a", "none", "c"])
        assert [isinstance(result, TopicImage) for result in results] == [True, False, True]
        assert set(service.image.topics) == {"c.d"}

    run(tmp_path, scenario)


def test_validate_only_changes_nothing(tmp_path):
    async def scenario(cluster):
        service = await cluster.start()
        await service.create_topics([NewTopic("t")])
        image = service.image
        (topic,) = await service.create_topics([NewTopic("new", 4)], validate_only=True)
        assert len(topic.partitions) == 4
        await service.create_partitions([NewPartitions("t", 4)], validate_only=True)
        await service.alter_config(ResourceType.TOPIC, "t", set_("retention.ms", "1"), validate_only=True)
        await service.replace_config(ResourceType.TOPIC, "t", [("retention.ms", "1")], validate_only=True)
        assert service.image is image
        assert (await cluster.start()).image == image

    run(tmp_path, scenario)


def test_replacing_a_configuration_drops_what_is_not_named(tmp_path):
    async def scenario(cluster):
        service = await cluster.start()
        await service.create_topics([NewTopic("t", config={"retention.ms": "1", "flush.ms": "2"})])
        await service.replace_config(ResourceType.TOPIC, "t", [("flush.ms", "3"), ("segment.ms", "4")])
        assert service.image.topics["t"].config == {"flush.ms": "3", "segment.ms": "4"}

    run(tmp_path, scenario)


def test_too_many_partitions_in_one_request_are_refused(tmp_path):
    async def scenario(cluster):
        service = await cluster.start({"num.partitions": "100"})
        half = MAX_NEW_PARTITIONS // 2
        results = await service.create_topics([NewTopic("a", half), NewTopic("b", half), NewTopic("c")])
        assert {result.code for result in results} == {ErrorCode.POLICY_VIOLATION}
        await service.create_topics([NewTopic("a", 1)])
        (result,) = await service.create_partitions([NewPartitions("a", MAX_NEW_PARTITIONS + 2)])
        assert result.code is ErrorCode.POLICY_VIOLATION
        assert set(service.image.topics) == {"a"}

    run(tmp_path, scenario)


def test_a_change_is_answered_when_subscribers_are_done_and_holds_up_no_other(tmp_path):
    async def scenario(cluster):
        service = await cluster.start()
        seen = []
        gate = asyncio.Event()

        async def slow(old, new, delta):
            assert service.image is new and new == old.with_delta(delta)
            seen.append((sorted(old.topics), sorted(new.topics), sorted(delta.topics)))
            await gate.wait()
            return {}

        service.subscribe(slow)
        creation = asyncio.create_task(service.create_topics([NewTopic("a")]))
        while "a" not in service.image.topics:  # noqa: ASYNC110 (the store is in another thread)
            await asyncio.sleep(0.001)
        other = asyncio.create_task(service.create_topics([NewTopic("b")]))
        while "b" not in service.image.topics:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        assert not creation.done() and not other.done()
        gate.set()
        await asyncio.gather(creation, other)
        await service.delete_topics(["a"])
        created = [([], ["a"], ["a"]), (["a"], ["a", "b"], ["b"])]
        # The last time because the deletion need not be remembered any more.
        deleted = [(["a", "b"], ["b"], ["a"]), (["b"], ["b"], [])]
        assert seen == created + deleted

    run(tmp_path, scenario)


def test_changes_that_come_while_one_is_written_share_the_next_transaction(tmp_path):
    async def scenario(cluster):
        service = await cluster.start()
        store = service._committer.store = Lossy(service._committer.store)
        creations = [asyncio.create_task(service.create_topics([NewTopic("first")]))]
        while not store.transactions:  # noqa: ASYNC110 (there is no event for it)
            await asyncio.sleep(0)
        creations += [asyncio.create_task(service.create_topics([NewTopic(f"t{n}")])) for n in range(50)]
        await asyncio.gather(*creations)
        assert len(store.transactions) == 2
        assert len(service.image.topics) == 51
        assert (await cluster.start()).image == service.image

    run(tmp_path, scenario)


def test_a_topic_too_large_for_one_transaction_takes_several(tmp_path, monkeypatch):
    monkeypatch.setattr(committing, "MAX_TRANSACTION_BYTES", 3_000)

    async def scenario(cluster):
        service = await cluster.start()
        store = service._committer.store = Lossy(service._committer.store)
        results = await service.create_topics([NewTopic("small"), NewTopic("large", 60), NewTopic("last")])
        assert [type(result) for result in results] == [TopicImage] * 3
        sizes = [sum(map(committing._unit_bytes, [tuple(each)])) for each in store.transactions]
        assert len(sizes) > 4 and max(sizes) < 3_500
        assert (await cluster.start()).image == service.image
        assert isinstance((await service.delete_topics(["large"]))[0], KafkaError), "another one rules"

    run(tmp_path, scenario)


@pytest.mark.parametrize("command", ["create", "delete"])
@pytest.mark.parametrize("written", range(1, 7))
def test_a_large_change_that_a_crash_cut_short_is_finished(tmp_path, monkeypatch, command, written):
    async def scenario(cluster):
        service = await cluster.start()
        await service.create_topics([NewTopic("other", 2)])
        if command == "delete":
            await service.create_topics([NewTopic("large", 20)])
        monkeypatch.setattr(committing, "MAX_TRANSACTION_BYTES", 1_000)
        store = service._committer.store = Lossy(service._committer.store)
        store.loses_requests_after = written
        if command == "create":
            (result,) = await service.create_topics([NewTopic("large", 20)])
        else:
            (result,) = await service.delete_topics(["large"])
        is_whole = isinstance(result, TopicImage)
        again = await cluster.start()
        assert len(again.image.topics["other"].partitions) == 2
        if command == "create":
            assert len(again.image.topics["large"].partitions) == 20
        else:
            assert "large" not in again.image.topics
            assert is_whole or unfinished(again) == {"large"}
        assert (await cluster.start()).image == again.image
        store = await cluster.store()
        names = await store.list(layout.TOPICS)
        assert names == (["large", "other"] if command == "create" else ["other"])

    run(tmp_path, scenario)


def test_changes_staged_behind_one_that_failed_fail_too(tmp_path):
    async def scenario(cluster):
        service = await cluster.start()
        store = service._committer.store = Lossy(service._committer.store)
        store.loses_requests = True
        first = asyncio.create_task(service.create_topics([NewTopic("a")]))
        while not service._committer._writing:  # noqa: ASYNC110 (there is no event for it)
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        behind = asyncio.create_task(service.create_topics([NewTopic("b")]))
        results = await first + await behind
        assert [result.code for result in results] == [ErrorCode.REQUEST_TIMED_OUT] * 2
        store.loses_requests = False
        results = await service.create_topics([NewTopic("a"), NewTopic("b")])
        assert [result.name for result in results] == ["a", "b"]
        assert (await cluster.start()).image == service.image

    run(tmp_path, scenario)


def test_a_change_is_finished_though_its_caller_is_cancelled(tmp_path):
    async def scenario(cluster):
        service = await cluster.start()
        creation = asyncio.create_task(service.create_topics([NewTopic("a")]))
        await asyncio.sleep(0)
        creation.cancel()
        await asyncio.gather(creation, return_exceptions=True)
        await service.create_topics([NewTopic("b")])
        assert set(service.image.topics) == {"a", "b"}
        assert (await cluster.start()).image == service.image

    run(tmp_path, scenario)


def test_a_deletion_whose_files_could_not_be_removed_is_remembered(tmp_path):
    async def scenario(cluster):
        service = await cluster.start()
        await service.create_topics([NewTopic("t")])
        failing = True

        async def fail(old, new, delta):
            is_deleted = failing and "t" not in new.topics
            return {"t": KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is gone")} if is_deleted else {}

        service.subscribe(fail)
        (result,) = await service.delete_topics(["t"])
        assert result.code is ErrorCode.KAFKA_STORAGE_ERROR and "the disk is gone" in str(result)
        assert "t" not in service.image.topics and unfinished(service) == {"t"}

        again = await cluster.start()
        assert unfinished(again) == {"t"}
        # A new topic of that name can come and go meanwhile.
        await again.create_topics([NewTopic("t")])
        assert isinstance((await again.delete_topics(["t"]))[0], TopicImage)
        await again.finish_deletions()
        assert unfinished(again) == frozenset()
        assert unfinished(await cluster.start()) == frozenset()

    run(tmp_path, scenario)


def test_a_deletion_that_an_older_version_noted_by_name_alone_is_finished(tmp_path):
    async def scenario(cluster):
        service = await cluster.start()
        (topic,) = await service.create_topics([NewTopic("t")])
        await service.delete_topics(["t"])
        store = await cluster.store()
        await store.txn([Create(f"{layout.DELETED_TOPICS}/t", layout.encode_topic(topic))])
        again = await cluster.start()
        assert unfinished(again) == {"t"}
        await again.finish_deletions()
        assert await store.list(layout.DELETED_TOPICS) == []

    run(tmp_path, scenario)


def test_a_controller_that_has_been_replaced_changes_nothing(tmp_path):
    async def scenario(cluster):
        old = await cluster.start()
        new = await cluster.start()
        (result,) = await old.create_topics([NewTopic("a")])
        assert result.code is ErrorCode.NOT_CONTROLLER
        assert "a" not in old.image.topics
        await new.create_topics([NewTopic("a")])
        with pytest.raises(KafkaError) as caught:
            await old.alter_config(ResourceType.TOPIC, "a", set_("retention.ms", "1"))
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(tmp_path, scenario)


class Lossy:
    """A store that does what it is told and then does not answer."""

    def __init__(self, store):
        self._store = store
        self.loses_answers = False
        self.loses_requests = False
        self.loses_requests_after = 1_000
        self.transactions = []

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def txn(self, operations):
        self.transactions.append(operations)
        if self.loses_requests or len(self.transactions) > self.loses_requests_after:
            raise Unavailable("no answer")
        revision = await self._store.txn(operations)
        if self.loses_answers:
            raise Unavailable("no answer")
        return revision


@pytest.mark.parametrize("applied", [True, False])
def test_after_an_unknown_outcome_the_image_is_what_the_store_says(tmp_path, applied):
    async def scenario(cluster):
        service = await cluster.start()
        lossy = service._committer.store = Lossy(service._committer.store)
        lossy.loses_answers, lossy.loses_requests = applied, not applied
        (result,) = await service.create_topics([NewTopic("a")])
        assert result.code is ErrorCode.REQUEST_TIMED_OUT and result.code.retriable
        lossy.loses_answers = lossy.loses_requests = False
        seen = []

        async def see(old, new, delta):
            seen.append(sorted(new.topics))
            return {}

        service.subscribe(see)
        (result,) = await service.create_topics([NewTopic("a")])
        assert isinstance(result, KafkaError) == applied
        assert seen == ([["a"]] if applied else [[], ["a"]])
        assert (await cluster.start()).image == service.image

    run(tmp_path, scenario)


def test_a_partition_that_somebody_changed_by_hand_is_read_again(tmp_path):
    async def scenario(cluster):
        service = await cluster.start()
        (topic,) = await service.create_topics([NewTopic("t", 1)])
        store = await cluster.store()
        changed = topic.partitions[0]._replace(leader_epoch=5)
        await store.txn([Set(layout.state_path("t", 0), layout.encode_state(changed, 1))])
        with pytest.raises(KafkaError) as caught:
            await service.raise_leader_epochs([TopicPartition("t", 0)])
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT, "this is the controller all the same"
        await service.raise_leader_epochs([TopicPartition("t", 0)])
        assert service.image.topics["t"].partitions[0].leader_epoch == 6

    run(tmp_path, scenario)


def test_broker_settings_hold_at_once(tmp_path):
    async def scenario(cluster):
        service = await cluster.start({"log.retention.hours": "1"})
        assert service.config["log.retention.ms"] == 3_600_000
        await service.alter_config(ResourceType.BROKER, ALL_BROKERS, set_("log.retention.ms", "5"))
        assert service.config["log.retention.ms"] == 5
        removal = [Alteration("log.retention.ms", AlterOperation.DELETE, None)]
        await service.alter_config(ResourceType.BROKER, ALL_BROKERS, removal)
        assert service.config["log.retention.ms"] == 3_600_000

    run(tmp_path, scenario)


def test_a_higher_minimum_begins_a_new_leader_epoch_also_if_a_lower_one_is_not_published_yet(
    tmp_path, monkeypatch
):
    """A leader that hears of the lower one only may commit alone, and must not make others eligible."""

    async def scenario(cluster):
        service = await cluster.start()
        image = service.image.with_delta(ImageDelta(brokers={2: BrokerDelta(None, broker(2))}))
        service._control.committer.begin_with(image)
        service._control._channels.tell = lambda image, requests: []
        service.view.begin_with(image)
        await service.create_topics([NewTopic("t", 1, 2)])
        published = []

        async def note(old, new, delta):
            published.append(service.config["min.insync.replicas"])
            return {}

        def alter(value):
            setting = set_("min.insync.replicas", value)
            return service.alter_config(ResourceType.BROKER, ALL_BROKERS, setting)

        await alter("3")
        before = service.image.topics["t"].partitions[0].leader_epoch
        service.subscribe(note)
        store, is_writing = service._store, asyncio.Event()
        write = store.txn

        async def txn(operations):
            is_writing.set()
            return await write(operations)

        monkeypatch.setattr(store, "txn", txn)
        lower = asyncio.create_task(alter("1"))
        await is_writing.wait()
        await asyncio.gather(lower, alter("2"))
        assert published == [1, 2], "leaders hear of both"
        assert service.image.topics["t"].partitions[0].leader_epoch == before + 1

    run(tmp_path, scenario)


def test_producer_id_blocks_never_overlap(tmp_path):
    async def scenario(cluster):
        first = await cluster.start()
        blocks = await asyncio.gather(*(first.allocate_producer_ids(1, 0) for _ in range(3)))
        second = await cluster.start()
        blocks += await asyncio.gather(*(second.allocate_producer_ids(1, 0) for _ in range(3)))
        ids = [producer_id for block in blocks for producer_id in block]
        assert len(ids) == len(set(ids)) == 6000
        with pytest.raises(KafkaError) as replaced:
            await first.allocate_producer_ids(1, 0)
        assert replaced.value.code is ErrorCode.NOT_CONTROLLER
        with pytest.raises(KafkaError) as stale:
            await second.allocate_producer_ids(1, 7)
        assert stale.value.code is ErrorCode.STALE_BROKER_EPOCH

    run(tmp_path, scenario)


def test_the_offsets_topic_is_made_once_and_compacted(tmp_path):
    async def scenario(cluster):
        service = await cluster.start({"offsets.topic.num.partitions": "7"})
        first, second = await asyncio.gather(service.ensure_offsets_topic(), service.ensure_offsets_topic())
        assert first is second is service.image.topics[OFFSETS_TOPIC]
        assert len(first.partitions) == 7 and first.replication_factor == 1 and first.is_internal
        assert topic_config(service.config, first.config)["cleanup.policy"] == ("compact",)

    run(tmp_path, scenario)


def test_the_cluster_id_is_made_once(tmp_path):
    async def scenario(cluster):
        first, second = await cluster.start(), await cluster.start()
        assert first.image.cluster_id == second.image.cluster_id
        assert len(first.image.cluster_id) == 22

    run(tmp_path, scenario)


def test_the_broker_is_seen_under_its_advertised_addresses():
    config = BrokerConfig(
        {
            "listeners": "A://h:0",
            "listener.security.protocol.map": "A:PLAINTEXT",
            "node.id": "7",
            "broker.rack": "east",
        }
    )
    assert broker_image(config, config.listeners, {"A": 5}) == BrokerImage(7, {"A": Endpoint("h", 5)}, "east")


def test_a_damaged_node_is_named(tmp_path):
    async def scenario(cluster):
        service = await cluster.start()
        await service.create_topics([NewTopic("t")])
        store = await cluster.store()
        await store.txn([Set(layout.topic_path("t"), b"{}")])
        with pytest.raises(Exception, match="/brokers/topics/t"):
            await cluster.start()

    run(tmp_path, scenario)


def test_a_topic_is_in_the_store_whole_or_not_at_all(tmp_path):
    async def scenario(cluster):
        service = await cluster.start()
        await service.create_topics([NewTopic("t", 3)])
        store = await cluster.store()
        assert await store.list(layout.partitions_path("t")) == ["0", "1", "2"]
        await service.delete_topics(["t"])
        for path in (layout.topic_path("t"), layout.topic_config_path("t")):
            with pytest.raises(NoNode):
                await store.get(path)
        assert await store.list(layout.DELETED_TOPICS) == []

    run(tmp_path, scenario)


def test_four_thousand_partitions_are_created_and_loaded_quickly(tmp_path):
    async def scenario(cluster):
        service = await cluster.start()
        await service.create_topics([NewTopic(f"topic-{number}", 40) for number in range(100)])
        started = time.process_time()
        again = await cluster.start()
        seconds = time.process_time() - started  # which does not pass while other processes run
        assert sum(len(topic.partitions) for topic in again.image.topics.values()) == 4000
        # About 0.15 s; the bound allows for a slow machine.
        assert seconds < 2.0, f"loading took {seconds:.2f} s"

    run(tmp_path, scenario)


def test_many_topics_leave_the_loop_to_others(tmp_path):
    async def scenario(cluster):
        service = await cluster.start()
        turns = 0

        async def others():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        await service.create_topics([NewTopic(f"t{number}", 1) for number in range(400)], validate_only=True)
        task.cancel()
        assert turns >= 400 // COMMANDS_BETWEEN_PAUSES

    run(tmp_path, scenario)


@pytest.mark.parametrize("validate_only", [True, False])
def test_other_changes_are_made_between_those_of_a_long_request(tmp_path, validate_only):
    async def scenario(cluster):
        service = await cluster.start()
        count = 100 * COMMANDS_BETWEEN_PAUSES
        refused = [NewTopic(f"a_{number}", 0) for number in range(count)]
        long = asyncio.create_task(service.create_topics(refused, validate_only=validate_only))
        await asyncio.sleep(0)
        setting = set_("log.retention.ms", "5")
        await service.alter_config(ResourceType.BROKER, ALL_BROKERS, setting, validate_only=True)
        assert not long.done(), "the other change waited for all of it"
        results = await long
        assert len(results) == count and {each.code for each in results} == {ErrorCode.INVALID_PARTITIONS}

    run(tmp_path, scenario)


def test_a_long_request_waits_for_room_and_has_its_results_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(committing, "MAX_STAGED_CHANGES", 2)

    async def scenario(cluster):
        service = await cluster.start()
        names = ["a", "b_c", "d", "b.c", "e"]

        def told(results):
            return [each.code if isinstance(each, KafkaError) else each.name for each in results]

        expected = ["a", "b_c", "d", ErrorCode.INVALID_TOPIC_EXCEPTION, "e"]
        new = [NewTopic(name) for name in names]
        assert told(await service.create_topics(new, validate_only=True)) == expected
        assert told(await service.create_topics(new)) == expected
        assert set(service.image.topics) == {"a", "b_c", "d", "e"}
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert told(await service.delete_topics(names)) == ["a", "b_c", "d", unknown, "e"]
        assert not service.image.topics and not unfinished(service)

    run(tmp_path, scenario)
