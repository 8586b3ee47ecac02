"""Answers that were damaged on the way: a typed error or another try, and then all is well again.

Every kind of answer that the client decodes, to several clients at once, each damaged in its own way. Never
may a call hang, fail with another exception than the client's, or take its loop down.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from klamm.client.network import connection
from klamm.protocol.apis import ApiKey
from klamm.testing.wire import WireConnection
from tests.abuse.calls import batch_of, produce
from tests.client.bad_input.mutations import DAMAGES, damage_answers, wrong_id
from tests.client.bad_input.uses import use_admin, use_consumer, use_group, use_producer
from tests.client.faces import Face
from tests.client.faults.proxy import FaultProxy, pass_all
from tests.client.faults.stands import InProcessStand
from tests.client.topics import make_topic, unique

CLIENTS_AT_ONCE = 6
DAMAGED_ANSWERS = 2
"""Of each client; what comes after them is whole."""
SEED = int(os.environ.get("SEED", "1"))

Use = Callable[[Face, str, str, str], None]

ANSWERS: dict[Use, tuple[ApiKey, ...]] = {
    use_producer: (ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.INIT_PRODUCER_ID, ApiKey.PRODUCE),
    use_consumer: (ApiKey.METADATA, ApiKey.LIST_OFFSETS, ApiKey.FETCH),
    use_group: (
        *(ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT),
        *(ApiKey.OFFSET_FETCH, ApiKey.OFFSET_COMMIT, ApiKey.LEAVE_GROUP),
    ),
    use_admin: (
        *(ApiKey.METADATA, ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS),
        *(ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.DESCRIBE_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS),
        *(ApiKey.LIST_CONFIG_RESOURCES, ApiKey.LIST_GROUPS, ApiKey.DESCRIBE_GROUPS, ApiKey.DELETE_GROUPS),
        *(ApiKey.OFFSET_FETCH, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_DELETE, ApiKey.LIST_OFFSETS),
        *(ApiKey.DELETE_RECORDS, ApiKey.DESCRIBE_LOG_DIRS, ApiKey.DESCRIBE_PRODUCERS),
        ApiKey.DESCRIBE_CLUSTER,
    ),
}
CASES = [
    pytest.param(use, key, id=f"{use.__name__}-{key.title}", marks=pytest.mark.long if is_long else ())
    for use, keys in ANSWERS.items()
    for key, is_long in ((key, use is use_admin and number % 4 != 0) for number, key in enumerate(keys))
]
"""An admin asks one question after the other, in one way: `make test` damages every fourth answer."""


@pytest.fixture(scope="module")
def stand() -> Iterator[InProcessStand]:
    with FaultProxy() as proxy:
        stand = InProcessStand(proxy, {"group.min.session.timeout.ms": 500})
        yield stand
        stand.close()


@pytest.fixture(scope="module")
def topic(stand: InProcessStand) -> str:
    name = make_topic(stand.direct)
    with WireConnection(stand.direct) as connection:
        for number in range(20):
            produce(connection, name, batch_of(b"%d" % number))
    return name


def run(face: Face, stand: InProcessStand, topic: str, use: Use) -> None:
    """Several clients at once; the proxy damages what it was told to."""
    before = stand.proxy.harmed_count
    # Topics and groups are named after their clients, so these are new in every run, up to their number.
    prefix = unique("damaged")
    with ThreadPoolExecutor(CLIENTS_AT_ONCE) as pool:
        uses = [
            pool.submit(use, face, stand.proxy.bootstrap, f"{prefix}-{index}", topic)
            for index in range(CLIENTS_AT_ONCE)
        ]
        for one in uses:
            one.result()
    assert stand.proxy.harmed_count > before, "nothing was damaged"


@pytest.mark.parametrize(("use", "key"), CASES)
def test_damaged_answers(
    face: Face,
    stand: InProcessStand,
    topic: str,
    use: Use,
    key: ApiKey,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    print(f"seed {SEED}")
    # A damaged answer may say that we shall keep quiet; so long these tests need not wait.
    monkeypatch.setattr(connection, "LONGEST_THROTTLE_SECONDS", 0.1)
    caplog.set_level(logging.ERROR)
    stand.proxy.plan = damage_answers(key, SEED, DAMAGED_ANSWERS, DAMAGES)
    try:
        run(face, stand, topic, use)
    finally:
        stand.proxy.plan = pass_all
    tracebacks = [record.getMessage() for record in caplog.records if record.exc_info]
    assert not tracebacks, "\n".join(tracebacks)


@pytest.mark.parametrize(
    ("use", "key"),
    [
        (use_producer, ApiKey.PRODUCE),
        (use_consumer, ApiKey.FETCH),
        (use_group, ApiKey.HEARTBEAT),
        (use_admin, ApiKey.DESCRIBE_CLUSTER),
    ],
)
def test_answers_to_something_else(
    face: Face, stand: InProcessStand, topic: str, use: Use, key: ApiKey
) -> None:
    """The correlation id is not that of the request."""
    stand.proxy.plan = damage_answers(key, SEED, DAMAGED_ANSWERS, (wrong_id,))
    try:
        run(face, stand, topic, use)
    finally:
        stand.proxy.plan = pass_all
