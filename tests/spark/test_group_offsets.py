"""What lag tools see of a stream: its offsets, committed to a group after every batch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark import TaskContext

import klamm
from pyspark_klamm import group_offsets
from tests.client.topics import make_topic, unique
from tests.spark.driving import Stream


@pytest.fixture(scope="module")
def admin(klamm_bootstrap: str) -> Iterator[klamm.Admin]:
    with klamm.Admin(klamm_bootstrap) as admin:
        yield admin


@pytest.fixture
def topic(klamm_bootstrap: str) -> str:
    return make_topic(klamm_bootstrap, partitions=2)


def send(bootstrap: str, topic: str) -> None:
    with klamm.Producer(bootstrap) as producer:
        producer.send(topic, b"v", partition=1).result()


def committed(admin: klamm.Admin, group: str) -> list[int]:
    return [each.offset for each in admin.list_group_offsets(group).values()]


def test_a_group_has_what_was_processed(klamm_bootstrap: str, topic: str, admin: klamm.Admin) -> None:
    group = unique("group")
    stream = Stream(klamm_bootstrap, subscribe=topic, startingOffsets="earliest", kafka__group__id=group)
    send(klamm_bootstrap, topic)
    stream.trigger()
    assert committed(admin, group) == [0, 0], "a batch that is under way is not processed"
    assert admin.group_lag(group) == {(topic, 0): 0, (topic, 1): 1}
    stream.trigger()
    assert committed(admin, group) == [0, 1]
    assert stream.partitions[0].meeting_group is None  # type: ignore[attr-defined]


def test_a_group_that_cannot_be_committed_to_stops_nothing(
    klamm_bootstrap: str, topic: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_offsets, "RETRY_PAUSE_S", 0.0)
    group = unique("group")
    stream = Stream(klamm_bootstrap, subscribe=topic, startingOffsets="earliest", kafka__group__id=group)
    with klamm.Consumer(klamm_bootstrap, group=group, topics=[topic]) as member:
        while not member.assignment():  # a group with members takes no offsets from others
            member.poll(timeout=0.05)
        send(klamm_bootstrap, topic)
        assert len(stream.trigger()) == 1
        assert stream.trigger() == []
    assert f"could not commit the offsets of this query to group {group}" in caplog.text
    stream.trigger()
    with klamm.Admin(klamm_bootstrap) as admin:
        assert committed(admin, group) == [0, 1], "as soon as it can be done, it is"


def test_what_does_not_change_is_committed_anew_before_brokers_forget_it(
    klamm_bootstrap: str, topic: str, admin: klamm.Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = unique("group")
    stream = Stream(klamm_bootstrap, subscribe=topic, startingOffsets="earliest", kafka__group__id=group)
    monkeypatch.setattr(group_offsets, "COMMIT_ANEW_S", 0.0)
    for _ in range(2):
        stream.trigger()
        assert committed(admin, group) == [0, 0]
        admin.delete_groups([group])
    monkeypatch.setattr(group_offsets, "COMMIT_ANEW_S", 3600.0)
    for expected in ([0, 0], []):
        stream.trigger()
        assert committed(admin, group) == expected
        if expected:
            admin.delete_groups([group])


class FakeContext:
    """What Spark tells a task."""

    def __init__(self, query_id: str) -> None:
        self._query_id = query_id

    def getLocalProperty(self, key: str) -> str | None:
        return {"sql.streaming.queryId": self._query_id}.get(key)


def test_without_a_group_the_query_gives_its_name(
    klamm_bootstrap: str, topic: str, admin: klamm.Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix, query_id = unique("etl"), "11111111-2222"
    monkeypatch.setattr(TaskContext, "get", lambda: FakeContext(query_id))
    stream = Stream(klamm_bootstrap, subscribe=topic, startingOffsets="earliest", groupIdPrefix=prefix)
    assert stream.trigger() == []
    for _ in range(2):
        send(klamm_bootstrap, topic)
        assert len(stream.trigger()) == 1
    assert stream.partitions[0].meeting_group is None  # type: ignore[attr-defined]
    assert stream.trigger() == []
    groups = [each.group for each in admin.list_groups() if each.group.startswith(prefix)]
    assert groups == [f"{prefix}-{query_id}"], "nothing is left of where reader and task met"
    assert committed(admin, groups[0]) == [0, 2]


def test_a_reader_that_nobody_tells_gives_up(
    klamm_bootstrap: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream(klamm_bootstrap, subscribe=topic, startingOffsets="earliest")
    for _ in range(group_offsets.MOST_MEETINGS + 2):
        send(klamm_bootstrap, topic)
        assert len(stream.trigger()) == 1
    assert caplog.text.count("the id of this query is unknown") == 1
    assert stream.partitions[0].meeting_group is None, "tasks need not go there any more"  # type: ignore[attr-defined]
