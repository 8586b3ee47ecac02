"""What clients do all day, call by call, so that every answer the client can decode is asked for.

Each use is a list of named steps on one client. A step may fail with a typed error; the next one is tried all
the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import klamm
from klamm.client.results import TopicPartition
from tests.client.bad_input.bounded import BOUND_S, CALL_MS, SHORT, SHORT_PRODUCER, failure_of
from tests.client.faces import Face

POLL_S = 0.1
FAST_GROUP = {"session_timeout_ms": 1000, "heartbeat_interval_ms": 50, "enable_auto_commit": False}
CLOSE_S = BOUND_S + 6.0
"""Closing may wait for records, commits and the group, each for its own time."""

Step = Callable[[], Any]
Steps = dict[str, Step]


def run_steps(steps: Steps) -> dict[str, klamm.ClientError | None]:
    """Each step's failure. One that is not typed, or late, is raised with the step's name."""
    outcome = {}
    for name, step in steps.items():
        try:
            outcome[name] = failure_of(step)
        except BaseException as error:
            raise AssertionError(f"{name}: {error!r}") from error
    return outcome


def use_producer(face: Face, bootstrap: str, client_id: str, topic: str) -> None:
    producer = face.producer(bootstrap, client_id=client_id, **SHORT_PRODUCER)
    steps: Steps = {
        f"send {number}": lambda number=number: producer.send(topic, b"%d" % number).result()
        for number in range(5)
    }
    run_steps(steps)
    assert_well_again(f"{client_id}: send", lambda: producer.send(topic, b"last").result())
    failure_of(producer.close, CLOSE_S)


def use_consumer(face: Face, bootstrap: str, client_id: str, topic: str) -> None:
    """Alone, by offsets and times."""
    consumer = face.consumer(bootstrap, client_id=client_id, start="earliest", **SHORT)
    partition = TopicPartition(topic, 0)
    run_steps(
        {
            "partitions_for": lambda: consumer.partitions_for(topic),
            "topics": consumer.topics,
            "assign": lambda: consumer.assign([partition]),
            "position": lambda: consumer.position(partition),
            **{f"poll {number}": lambda: consumer.poll(timeout=POLL_S) for number in range(3)},
            "end": lambda: consumer.end_offsets([partition]),
            "beginning": lambda: consumer.beginning_offsets([partition]),
            "times": lambda: consumer.offsets_for_times({partition: 1}),
            "lag": consumer.lag,
            "seek": lambda: consumer.seek_to_beginning(partition),
        }
    )

    def read_again() -> None:
        consumer.seek(partition, 0)
        if not consumer.poll(timeout=CALL_MS / 1000):
            raise klamm.TimedOut("reading again", CALL_MS / 1000)

    assert_well_again(f"{client_id}: poll", read_again)
    failure_of(consumer.close, CLOSE_S)


def use_group(face: Face, bootstrap: str, client_id: str, topic: str) -> None:
    consumer = face.consumer(
        bootstrap,
        client_id=client_id,
        group=client_id,
        topics=[topic],
        start="earliest",
        **SHORT,
        **FAST_GROUP,
    )
    partition = TopicPartition(topic, 0)
    run_steps(
        {
            **{f"poll {number}": lambda: consumer.poll(timeout=POLL_S) for number in range(8)},
            "commit": consumer.commit,
            "committed": lambda: consumer.committed([partition]),
            **{f"poll again {number}": lambda: consumer.poll(timeout=POLL_S) for number in range(3)},
            "commit again": consumer.commit,
        }
    )

    def join_and_commit() -> None:
        # What was assigned may be nothing: a damaged assignment looks like one for a member too many.
        consumer.poll(timeout=POLL_S)
        consumer.commit({partition: 1})

    assert_well_again(f"{client_id}: join and commit", join_and_commit)
    failure_of(consumer.close, CLOSE_S)


def use_admin(face: Face, bootstrap: str, client_id: str, topic: str) -> None:
    admin = face.admin(bootstrap, client_id=client_id, **SHORT)
    own = client_id
    partition = TopicPartition(topic, 0)
    resource = klamm.ConfigResource.topic(topic)
    run_steps(
        {
            "create": lambda: admin.create_topics([klamm.NewTopic(own, partitions=1)]),
            "list": admin.list_topics,
            "describe": lambda: admin.describe_topics([topic]),
            "grow": lambda: admin.create_partitions(own, 2),
            "settings": lambda: admin.describe_configs([resource]),
            "set": lambda: admin.alter_configs(
                {resource: klamm.ConfigChange(set={"retention.ms": "86400000"})}
            ),
            "resources": admin.list_config_resources,
            "groups": admin.list_groups,
            "group": lambda: admin.describe_groups([own]),
            "alter offsets": lambda: admin.alter_group_offsets(own, {partition: 1}),
            "offsets": lambda: admin.list_group_offsets(own),
            "offsets of groups": lambda: admin.list_groups_offsets([own, f"{own}-2"]),
            "lag": lambda: admin.group_lag(own),
            "delete offsets": lambda: admin.delete_group_offsets(own, [partition]),
            "delete group": lambda: admin.delete_groups([own]),
            "ends": lambda: admin.list_offsets({partition: "latest"}),
            "delete records": lambda: admin.delete_records({TopicPartition(own, 0): 0}),
            "directories": admin.describe_log_dirs,
            "producers": lambda: admin.describe_producers([partition]),
            "cluster": admin.describe_cluster,
            "delete": lambda: admin.delete_topics([own]),
        }
    )
    assert_well_again(f"{client_id}: describe", lambda: admin.describe_topics([topic]))
    failure_of(admin.close, CLOSE_S)


TRIES = 12


def assert_well_again(what: str, call: Step) -> None:
    """The damage is over, so the client must get over it, too.

    Only what a broker once said that it serves is believed for as long as the connection lives.
    """
    for _ in range(TRIES):
        failure = failure_of(call)
        if failure is None or isinstance(failure, klamm.UnsupportedRequest):
            return
    raise AssertionError(f"{what} does not work again: {failure!r}")
