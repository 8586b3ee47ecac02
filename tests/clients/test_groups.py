"""Groups share partitions, hand them over, and remember how far they came."""

from __future__ import annotations

import pytest
from tests.clients.conftest import Clients, Group, NewTopic, unique
from tests.clients.contract import (
    COMMITS_ON_DEMAND,
    DELETES_GROUP_OFFSETS,
    DELETES_GROUPS,
    STATIC_MEMBERS,
    AdminClient,
    Client,
    ClientError,
    Member,
    Record,
    values,
)
from tests.clients.kcat import KcatClient, KcatMember
from tests.clients.selection import for_clients
from tests.waiting import wait_until

NON_EMPTY_GROUP = 68
GROUP_ID_NOT_FOUND = 69
GROUP_SUBSCRIBED_TO_TOPIC = 86


def numbered(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


def fill(client: Client, topic: str, partition: int, sent: list[bytes]) -> None:
    client.produce(topic, [Record(value) for value in sent], partition=partition)


def settle(members: list[Member], partitions: int) -> list[frozenset[int]]:
    """Wait until the members hold every partition once, in equal parts, and return who holds what."""

    def settled() -> list[frozenset[int]] | None:
        held = [member.assignment() for member in members]
        is_whole = sorted(number for one in held for number in one) == list(range(partitions))
        sizes = [len(one) for one in held]
        is_fair = max(sizes) - min(sizes) <= 1
        return held if is_whole and is_fair and all(one.assignments_seen() for one in members) else None

    found = wait_until(settled, lambda: f"settled; now {[member.assignment() for member in members]}")
    assert found is not None
    return found


def wait_for_values(member: Member, expected: list[bytes]) -> None:
    """Wait until a member has as many records, then compare them, whatever their partitions."""
    wait_until(
        lambda: len(member.received()) >= len(expected),
        lambda: f"{len(expected)} records; now {values(member.received())}",
    )
    assert sorted(value or b"" for value in values(member.received())) == sorted(expected)


@for_clients()
def test_one_member_gets_everything_in_order(client: Client, group: Group, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    for partition in range(3):
        fill(client, topic, partition, numbered(100 * partition, 100 * partition + 50))
    member = group.join(client, topic)
    assert settle([member], 3) == [frozenset({0, 1, 2})]
    wait_until(lambda: len(member.received()) >= 150, "150 records")
    for partition in range(3):
        mine = [record for record in member.received() if record.partition == partition]
        assert values(mine) == numbered(100 * partition, 100 * partition + 50)
        assert [record.offset for record in mine] == list(range(50))


@pytest.mark.parametrize(
    ("client", "strategy"),
    [
        pytest.param(name, strategy, marks=pytest.mark.long if strategy in ("roundrobin", "sticky") else ())
        for strategy in ("range", "roundrobin", "sticky", "cooperative")
        for name in for_clients(strategy=strategy).args[1]
    ],
    indirect=["client"],
)
def test_two_members_share_and_hand_over(
    client: Client, strategy: str, group: Group, new_topic: NewTopic
) -> None:
    topic = new_topic(4)
    first = group.join(client, topic, strategy=strategy)
    settle([first], 4)
    second = group.join(client, topic, strategy=strategy)
    held = settle([first, second], 4)
    assert [len(one) for one in held] == [2, 2]
    if strategy == "cooperative":
        assert first.revoked() == held[1], "the first member gave up more than the second one got"

    for partition in range(4):
        fill(client, topic, partition, [b"shared %d" % partition])
    for member, partitions in zip([first, second], held, strict=True):
        wait_for_values(member, [b"shared %d" % partition for partition in partitions])

    first.leave()
    settle([second], 4)
    for partition in range(4):
        fill(client, topic, partition, [b"alone %d" % partition])
    wait_until(
        lambda: {b"alone %d" % partition for partition in range(4)} <= set(values(second.received())),
        "the one that stayed reads all partitions",
    )


@pytest.mark.long
@for_clients()
def test_more_members_than_partitions(client: Client, group: Group, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    members = [group.join(client, topic) for _ in range(3)]
    held = settle(members, 2)
    assert sorted(len(one) for one in held) == [0, 1, 1]
    busy = members[held.index(frozenset({0}))]
    idle = members[held.index(frozenset())]
    fill(client, topic, 0, [b"before"])
    wait_for_values(busy, [b"before"])

    busy.leave()
    rest = [member for member in members if member is not busy]
    held = settle(rest, 2)
    assert [len(one) for one in held] == [1, 1], "the idle member takes over"
    (partition,) = idle.assignment()
    seen = len(idle.received())
    fill(client, topic, partition, [b"taken over"])
    wait_until(lambda: b"taken over" in values(idle.received()[seen:]), "the idle member reads")


@for_clients(COMMITS_ON_DEMAND)
def test_commit_and_resume(client: Client, group: Group, new_topic: NewTopic, clients: Clients) -> None:
    topic = new_topic(2)
    fill(client, topic, 0, numbered(0, 10))
    fill(client, topic, 1, numbered(100, 105))
    first = group.join(client, topic)
    wait_for_values(first, numbered(0, 10) + numbered(100, 105))
    first.commit()
    first.leave()

    fill(client, topic, 0, numbered(10, 13))
    second = group.join(client, topic)
    wait_for_values(second, numbered(10, 13))
    assert [record.offset for record in second.received()] == [10, 11, 12]
    second.commit({0: 4})
    second.leave()

    third = group.join(client, topic)
    wait_for_values(third, numbered(4, 13))
    administrator = client if isinstance(client, AdminClient) else clients.get("confluent-kafka")
    assert isinstance(administrator, AdminClient)
    assert administrator.committed(group.name, topic, 0) == 4
    assert administrator.committed(group.name, topic, 1) == 5


@for_clients(STATIC_MEMBERS)
def test_a_static_member_returns_to_what_it_had(client: Client, group: Group, new_topic: NewTopic) -> None:
    topic = new_topic(4)
    stays = group.join(client, topic, name="stays", instance_id="stays")
    settle([stays], 4)
    returns = group.join(client, topic, name="returns", instance_id="returns")
    held = settle([stays, returns], 4)
    rebalances = stays.assignments_seen()

    returns.leave()  # a static member does not tell the broker
    again = group.join(client, topic, name="returns", instance_id="returns")
    wait_until(lambda: again.assignment() == held[1], lambda: f"{held[1]}; now {again.assignment()}")
    for partition in range(4):
        fill(client, topic, partition, [b"%d" % partition])
    wait_for_values(again, [b"%d" % partition for partition in held[1]])
    wait_for_values(stays, [b"%d" % partition for partition in held[0]])
    assert stays.assignments_seen() == rebalances, "the other member was rebalanced"


@for_clients()
def test_new_partitions_reach_a_running_member(
    client: Client, group: Group, new_topic: NewTopic, clients: Clients
) -> None:
    topic = new_topic(1)
    member = group.join(client, topic)
    settle([member], 1)
    administrator = clients.get("confluent-kafka")
    assert isinstance(administrator, AdminClient)
    administrator.create_partitions(topic, 3)
    settle([member], 3)
    fill(administrator, topic, 2, [b"in the new partition"])
    wait_for_values(member, [b"in the new partition"])


@for_clients(admin=True)
def test_groups_are_listed_and_described(client: AdminClient, group: Group, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    assert group.name not in client.list_groups()
    left, right = group.join(client, topic, name="left"), group.join(client, topic, name="right")
    held = settle([left, right], 3)
    assert group.name in client.list_groups()
    wait_until(lambda: client.describe_group(group.name).state == "Stable", "the group is stable")
    assert client.describe_group(group.name).members == {"left": held[0], "right": held[1]}
    left.leave()
    settle([right], 3)
    wait_until(lambda: set(client.describe_group(group.name).members) == {"right"}, "one is left")
    fill(client, topic, 0, [b"one"])
    wait_for_values(right, [b"one"])
    right.commit()
    right.leave()
    # The offsets keep the group alive.
    wait_until(lambda: client.describe_group(group.name).state == "Empty", "the group is empty")
    assert client.describe_group(group.name).members == {}


@for_clients(DELETES_GROUPS, admin=True)
def test_only_empty_groups_are_deleted(client: AdminClient, group: Group, new_topic: NewTopic) -> None:
    topic = new_topic()
    fill(client, topic, 0, [b"one", b"two"])
    member = group.join(client, topic)
    wait_for_values(member, [b"one", b"two"])
    member.commit()
    with pytest.raises(ClientError) as refused:
        client.delete_group(group.name)
    assert refused.value.code == NON_EMPTY_GROUP
    assert client.committed(group.name, topic, 0) == 2
    member.leave()
    client.delete_group(group.name)
    assert group.name not in client.list_groups()
    assert client.committed(group.name, topic, 0) is None
    with pytest.raises(ClientError) as refused:
        client.delete_group(unique("never-was"))
    assert refused.value.code == GROUP_ID_NOT_FOUND


@pytest.mark.long
@for_clients(DELETES_GROUP_OFFSETS, admin=True)
def test_offsets_of_a_group_are_deleted(client: AdminClient, group: Group, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    fill(client, topic, 0, [b"one"])
    fill(client, topic, 1, [b"two"])
    member = group.join(client, topic)
    wait_for_values(member, [b"one", b"two"])
    member.commit()
    with pytest.raises(ClientError) as refused:
        client.delete_group_offsets(group.name, topic, 0)
    assert refused.value.code == GROUP_SUBSCRIBED_TO_TOPIC
    member.leave()
    client.delete_group_offsets(group.name, topic, 0)
    assert client.committed(group.name, topic, 0) is None
    assert client.committed(group.name, topic, 1) == 1


@for_clients()
def test_reading_begins_where_records_were_deleted(
    client: Client, group: Group, new_topic: NewTopic, clients: Clients
) -> None:
    topic = new_topic()
    fill(client, topic, 0, numbered(0, 10))
    administrator = clients.get("confluent-kafka")
    assert isinstance(administrator, AdminClient)
    administrator.delete_records(topic, 0, 6)
    member = group.join(client, topic)
    wait_for_values(member, numbered(6, 10))


# ---- what kcat shows best: it is a process that can be killed, and it commits as it goes


def test_a_member_that_dies_is_replaced(clients: Clients, group: Group, new_topic: NewTopic) -> None:
    kcat = clients.get(KcatClient.name)
    topic = new_topic(2)
    dies, lives = group.join(kcat, topic), group.join(kcat, topic)
    settle([dies, lives], 2)
    assert isinstance(dies, KcatMember)
    dies.crash()
    settle([lives], 2)
    fill(kcat, topic, 0, [b"zero"])
    fill(kcat, topic, 1, [b"one"])
    wait_for_values(lives, [b"zero", b"one"])


def test_kcat_resumes_where_it_ended(clients: Clients, group: Group, new_topic: NewTopic) -> None:
    kcat = clients.get(KcatClient.name)
    topic = new_topic()
    fill(kcat, topic, 0, numbered(0, 5))
    first = group.join(kcat, topic)
    wait_for_values(first, numbered(0, 5))
    first.leave()
    fill(kcat, topic, 0, numbered(5, 8))
    wait_for_values(group.join(kcat, topic), numbered(5, 8))


def test_different_clients_share_a_group(clients: Clients, group: Group, new_topic: NewTopic) -> None:
    """Range is the strategy that all but kafkajs speak: one group of all the others, each with its part."""
    names = for_clients(strategy="range").args[1]
    topic = new_topic(len(names))
    members = [group.join(clients.get(name), topic, name=name, strategy="range") for name in names]
    held = settle(members, len(names))
    assert all(len(one) == 1 for one in held)
    for partition in range(len(names)):
        fill(clients.get("confluent-kafka"), topic, partition, [b"for %d" % partition])
    for member, (partition,) in zip(members, held, strict=True):
        wait_for_values(member, [b"for %d" % partition])
