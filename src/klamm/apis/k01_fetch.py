"""Fetch (key 1), versions 4 to 18.

Answers whole stored batches as file ranges, which the connection sends without reading them. With a session
(version 7) a request names only what changed, and an answer only what is new. A fetch that finds less than
min_bytes waits up to max_wait_ms (fetches.py). Data that the page cache lacks is fetched by a thread first.
A request that is shaped like the one before takes a shortcut (fetch_shortcut.py).

Consumers are given records up to the high watermark. A request with a replica id of a broker comes from a
follower: its fetch offset is noted, and it is given records up to the log end.

Version 12 adds the diverging epoch and the current leader, 13 names topics by id, 15 moves the replica id
into a tag and adds the broker epoch, 16 adds the addresses of leaders, 18 a follower's high watermark,
which is answered at once if it is old. There are no transactions: the last stable offset is the high
watermark.
"""

from __future__ import annotations

from collections.abc import Iterator

from klamm.apis.broker import Broker
from klamm.apis.fetch_shortcut import FIRST_VERSION, FetchShortcut
from klamm.apis.fetches import FIRST_VERSION_WITH_TOPIC_IDS, Answer, Fetch, FetchOptions, positions_of
from klamm.apis.registry import LATER, Later, Request, api
from klamm.apis.steps import Steps, pieces_of
from klamm.model.errors import ErrorCode, KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k01_fetch import FetchRequest, FetchResponse
from klamm.replication.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchPosition,
    FetchSession,
    PartitionKey,
)


@api(ApiKey.FETCH)
def handle(broker: Broker, request: Request[FetchRequest]) -> Answer | Later | Steps[Answer | Later]:
    options = FetchOptions.of(request.message, request.version, broker.config.int_("fetch.max.bytes"))
    if options.replica_id >= 0 and not _may_be_follower(broker, request):
        return FetchResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if request.is_large:
        return _handle_in_steps(broker, request, options)
    try:
        session = _session_of(broker, request, options, positions_of(request.message, request.version))
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    _offer_shortcut(broker, request, options)
    fetch = Fetch(broker, request.connection, session, options)
    answer = fetch.start()
    if answer is None:
        fetch.answer_later(request.reply)
        return LATER
    return answer


def _may_be_follower(broker: Broker, request: Request[FetchRequest]) -> bool:
    """Followers come through the listener for brokers. What a client said in a follower's name would have
    records acknowledged that no replica has, and the real follower refused."""
    for_brokers = broker.config.inter_broker_listener_name
    return for_brokers is None or request.listener_name == for_brokers


def _offer_shortcut(broker: Broker, request: Request[FetchRequest], options: FetchOptions) -> None:
    """Let the connection handle requests like this one in a shorter way."""
    if request.version < FIRST_VERSION:
        return
    shortcut = request.connection.shortcut
    if not isinstance(shortcut, FetchShortcut):
        request.connection.shortcut = shortcut = FetchShortcut(broker, request.connection)
    shortcut.learn(request, options)


def _handle_in_steps(
    broker: Broker, request: Request[FetchRequest], options: FetchOptions
) -> Steps[Answer | Later]:
    positions: list[FetchPosition] = []
    for position in positions_of(request.message, request.version):
        positions.append(position)
        yield
    try:
        # Without positions at first: many of them are added in steps.
        session = _session_of(broker, request, options, iter(()))
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    for piece in pieces_of(positions):
        session.update(piece)
        yield
    try:
        broker.fetch_sessions.recount(session)
    except KafkaError as error:
        return FetchResponse(error_code=error.code)
    fetch = Fetch(broker, request.connection, session, options, is_large=True)
    answer = yield from fetch.start_in_steps(request.reply)
    if answer is None:
        fetch.answer_later(request.reply)
        return LATER
    return answer


def _session_of(
    broker: Broker, request: Request[FetchRequest], options: FetchOptions, positions: Iterator[FetchPosition]
) -> FetchSession:
    """The session that the request makes, goes on with, or has for itself."""
    message = request.message
    sessions = broker.fetch_sessions
    uses_topic_ids = request.version >= FIRST_VERSION_WITH_TOPIC_IDS
    if message.session_epoch not in (FINAL_EPOCH, INITIAL_EPOCH):
        return sessions.resume(
            message.session_id,
            message.session_epoch,
            positions,
            _forgotten(request),
            uses_topic_ids=uses_topic_ids,
            replica_id=options.replica_id,
        )
    sessions.remove(message.session_id)
    if message.session_epoch == INITIAL_EPOCH:
        if options.replica_id >= 0:
            request.connection.let_send_buffer_grow()  # a whole answer, so that it is sent at one go
        session = sessions.create(
            request.connection, positions, uses_topic_ids=uses_topic_ids, replica_id=options.replica_id
        )
        if session is not None:
            return session
    return FetchSession(positions, replica_id=options.replica_id)


def _forgotten(request: Request[FetchRequest]) -> Iterator[PartitionKey]:
    uses_topic_ids = request.version >= FIRST_VERSION_WITH_TOPIC_IDS
    for topic in request.message.forgotten_topics_data:
        name: str | bytes = topic.topic_id if uses_topic_ids else topic.topic
        for partition in topic.partitions:
            yield name, partition
