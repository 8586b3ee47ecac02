"""Produce (key 0), versions 3 to 13; 0 to 2 are advertised, as Kafka does, and refused.

Each partition gets exactly one batch; one that is named again is refused with INVALID_REQUEST. The handler
checks its header and CRC and appends it; nothing is opened except where the topic's settings ask for it
(replication/opening.py). The answer waits where the topic's flush settings ask for an fsync, and with
acks=all until the high watermark has reached the end of every batch, at most for timeout_ms
(REQUEST_TIMED_OUT). With one replica, acks=1 and acks=all are the same promise: the record is in the log, and
survives the death of the process.

Version 5 tells the log start offset, in most refusals too; 7 allows zstd; 8 names the records that were
refused and why; 10 the current leader; 13 names topics by id. Transactional produces are refused until there
is a transaction coordinator.

An answer names at most `MAX_RECORD_ERRORS` records. Kafka names all; here a batch beyond that number has its
code and message only, which clients take as the error of each record of the batch.

Clients may not write to internal topics (INVALID_TOPIC_EXCEPTION): a record there is state of the broker.
As in Kafka, a client with the id of the brokers' own admin client may.

A batch of an idempotent producer that follows one which was just refused for now is refused with the same
code, where Kafka answers OUT_OF_ORDER_SEQUENCE_NUMBER (replication/refused_batches.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from klamm.apis.broker import Broker
from klamm.apis.produce_shortcut import (
    ACKS_ALL,
    FIRST_VERSION_WITH_ZSTD,
    ProduceShortcuts,
    is_for_one_partition,
)
from klamm.apis.registry import LATER, NO_RESPONSE, CloseConnection, Later, NoResponse, Request, api
from klamm.apis.steps import Steps, in_steps, lazily
from klamm.cluster.image import INTERNAL_TOPICS
from klamm.model.errors import ErrorCode, KafkaError
from klamm.protocol.apis import ApiKey
from klamm.protocol.messages.k00_produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from klamm.records.batch import HEADER_SIZE, TRANSACTIONAL_FLAG, BatchHeader, parse_header
from klamm.records.validation import validate_produced
from klamm.replication.opening import MAX_RECORD_ERRORS, InvalidRecords, RecordError, must_open
from klamm.replication.partition import Partition
from klamm.replication.refused_batches import REFUSED_FOR_NOW
from klamm.storage.log import AppendResult

_FIRST_VERSION_WITH_RECORD_ERRORS = 8
_FIRST_VERSION_WITH_TOPIC_IDS = 13
_CLIENT_ID_OF_BROKERS = "__admin_client"
_CODES_WITHOUT_LOG_START = frozenset(
    {ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.KAFKA_STORAGE_ERROR}
)
"""Refusals in which Kafka does not tell where the log starts, although it knows the partition."""

Answer = ProduceResponse | NoResponse | Steps[ProduceResponse]
Outcome = Answer | Later | Coroutine[Any, Any, Answer | Later]


@api(ApiKey.PRODUCE)
def handle(broker: Broker, request: Request[ProduceRequest]) -> Outcome | Steps[Outcome]:
    produce = _Produce(broker, request)
    if request.is_large:
        return produce.append_in_steps()
    for topic in request.message.topic_data:
        produce.append_topic(topic)
    outcome = produce.finish()
    if produce.partition is not None and not produce.unopened and is_for_one_partition(request.message):
        _offer_shortcut(broker, request, produce.partition)
    return outcome


def _named_again(message: ProduceRequest, *, by_id: bool) -> frozenset[tuple[str | bytes, int]]:
    """The partitions that the request names more than once, as (topic name or id, index)."""
    if is_for_one_partition(message):
        return frozenset()
    named = [
        (topic.topic_id if by_id else topic.name, data.index)
        for topic in message.topic_data
        for data in topic.partition_data
    ]
    if len(set(named)) == len(named):
        return frozenset()
    return frozenset(place for place, count in Counter(named).items() if count > 1)


def _offer_shortcut(broker: Broker, request: Request[ProduceRequest], partition: Partition) -> None:
    """Let the connection handle requests like this one in a shorter way."""
    shortcuts = request.connection.shortcut
    if not isinstance(shortcuts, ProduceShortcuts):
        shortcuts = ProduceShortcuts(broker.clock, broker.partitions.waiting_produces)
        request.connection.shortcut = shortcuts
    shortcuts.offer(request, partition)


class _Produce:
    """One request: which batches were appended, which were refused, and how many are not acknowledged yet.

    The reply is completed with the last of them.
    """

    __slots__ = (
        "acks",
        "broker",
        "is_long",
        "named_again",
        "now_ms",
        "partition",
        "request",
        "responses",
        "unacknowledged",
        "unopened",
        "version",
    )

    def __init__(self, broker: Broker, request: Request[ProduceRequest]) -> None:
        self.broker = broker
        self.request = request
        self.version = request.version
        self.acks = request.message.acks
        self.now_ms = broker.clock.now_ms()
        self.responses: list[TopicProduceResponse] = []
        self.unacknowledged = 1
        """What the answer waits for: fsyncs, replicas, and until the last batch is appended the handler."""
        self.unopened: list[tuple[Partition, bytearray, PartitionProduceResponse]] = []
        self.partition: Partition | None = None
        """The last one that was appended to."""
        self.is_long = request.is_large
        """The answer must be encoded in steps."""
        by_id = self.version >= _FIRST_VERSION_WITH_TOPIC_IDS
        self.named_again = _named_again(request.message, by_id=by_id)

    def append_in_steps(self) -> Steps[Outcome]:
        for topic in self.request.message.topic_data:
            responses: list[PartitionProduceResponse] = []
            for data in topic.partition_data:
                responses.append(self._append(topic, data))
                yield
            self._add_response(topic, responses)
            yield
        return self.finish()

    def finish(self) -> Outcome:
        if self.unopened:
            return self.open_then_append()
        return self.answer_if_acknowledged()

    def answer_if_acknowledged(self) -> Answer | Later:
        self.unacknowledged -= 1
        return LATER if self.unacknowledged else self.answer()

    def acknowledge(self, response: PartitionProduceResponse, error: KafkaError | None) -> None:
        """A batch that the answer waited for is acknowledged, or refused with `error`."""
        if error is not None:
            _refuse(response, error, None)
        self.unacknowledged -= 1
        if not self.unacknowledged:
            try:
                self.request.reply.complete(self.answer())
            except CloseConnection as fault:
                self.request.reply.fail(fault)

    def append_topic(self, topic: TopicProduceData) -> None:
        self._add_response(topic, [self._append(topic, data) for data in topic.partition_data])

    def _add_response(self, topic: TopicProduceData, responses: list[PartitionProduceResponse]) -> None:
        self.responses.append(
            TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=responses)
        )

    def _append(self, topic: TopicProduceData, data: PartitionProduceData) -> PartitionProduceResponse:
        response = PartitionProduceResponse(index=data.index, base_offset=-1)
        partition = None
        try:
            partition = self._find_partition(topic, data.index)
            config = partition.log.config
            records = memoryview(b"") if data.records is None else data.records
            header = validate_produced(
                records,
                max_message_bytes=config.max_message_bytes,
                zstd_allowed=self.version >= FIRST_VERSION_WITH_ZSTD,
            )
            if header.attributes & TRANSACTIONAL_FLAG:
                raise KafkaError(
                    ErrorCode.INVALID_TXN_STATE, "there is no transaction to write this batch to"
                )
            if must_open(header, config, self.now_ms):
                # Other requests use the receive buffer once this function returns: keep a copy.
                self.unopened.append((partition, bytearray(records), response))
            else:
                self._append_batch(partition, records, header, response)
        except KafkaError as error:
            _refuse(response, error, partition)
            with suppress(KafkaError):  # of a partition that this broker does not have, nothing is noted
                self._note_refused(self._partition_of(topic, data.index), data, error)
        return response

    def _note_refused(self, partition: Partition, data: PartitionProduceData, error: KafkaError) -> None:
        """Count the failure, and have the batches refused that the producer has sent behind this one."""
        partition.counters.note_failed_produce(error.code)
        if error.code not in REFUSED_FOR_NOW or data.records is None or len(data.records) < HEADER_SIZE:
            return
        header = parse_header(data.records)
        if header.producer_id >= 0:
            partition.note_refused(header, error)

    def _partition_of(self, topic: TopicProduceData, index: int) -> Partition:
        """Also one that this broker does not lead."""
        partitions = self.broker.partitions
        has_id = self.version >= _FIRST_VERSION_WITH_TOPIC_IDS
        return partitions.get(partitions.topic_of(topic.topic_id) if has_id else topic.name, index)

    def _find_partition(self, topic: TopicProduceData, index: int) -> Partition:
        if self.acks not in (-1, 0, 1):
            raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be 0, 1 or -1, not {self.acks}")
        if self.request.message.transactional_id is not None:
            raise KafkaError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "transactions are not available on this broker",
            )
        by_id = self.version >= _FIRST_VERSION_WITH_TOPIC_IDS
        if self.named_again and (topic.topic_id if by_id else topic.name, index) in self.named_again:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "the request has more than one batch for this partition; nothing of them was written",
            )
        if by_id:
            partition = self.broker.partitions.led_by_id(topic.topic_id, index)
        else:
            partition = self.broker.partitions.led(topic.name, index)
        if partition.topic in INTERNAL_TOPICS and self.request.client_id != _CLIENT_ID_OF_BROKERS:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"{partition.topic} is an internal topic: only brokers write to it",
            )
        if self.acks == ACKS_ALL:
            partition.check_enough_replicas()
        return partition

    def _append_batch(
        self,
        partition: Partition,
        batch: memoryview,
        header: BatchHeader,
        response: PartitionProduceResponse,
    ) -> None:
        result: AppendResult = partition.append(batch, header, self.now_ms)
        self.partition = partition
        response.base_offset = result.base_offset
        response.log_append_time_ms = result.log_append_time_ms
        response.log_start_offset = result.log_start_offset
        partitions = self.broker.partitions
        if partition.log.needs_flush(self.now_ms):
            self.unacknowledged += 1
            partitions.flusher.flush(partition.log, lambda error: self.acknowledge(response, error))
        if self.acks == ACKS_ALL and result.last_offset >= partition.high_watermark:
            self.unacknowledged += 1
            waiting = _WaitingBatch(result.last_offset + 1, self, response)
            partitions.waiting_produces.add(partition, waiting, self.request.message.timeout_ms)

    async def open_then_append(self) -> Answer | Later:
        names_records = self.acks != 0 and self.version >= _FIRST_VERSION_WITH_RECORD_ERRORS
        errors_left = MAX_RECORD_ERRORS if names_records else 0
        for partition, batch, response in self.unopened:
            try:
                config = partition.log.config
                rewritten = await self.broker.partitions.open_batch(batch, config, self.now_ms, errors_left)
                if self.acks == ACKS_ALL:
                    partition.check_enough_replicas()  # the ISR may have shrunk meanwhile
                view = memoryview(rewritten)
                header = validate_produced(view, max_message_bytes=config.max_message_bytes)
                self._append_batch(partition, view, header, response)
            except KafkaError as error:
                _refuse(response, error, partition)
                partition.counters.note_failed_produce(error.code)
                if isinstance(error, InvalidRecords) and error.record_errors:
                    response.record_errors = lazily(error.record_errors, _named)
                    errors_left -= len(error.record_errors)
                    self.is_long = True
        return self.answer_if_acknowledged()

    def answer(self) -> Answer:
        if self.acks != 0:
            answer = ProduceResponse(responses=self.responses)
            return in_steps(answer) if self.is_long else answer
        for topic in self.responses:
            for response in topic.partition_responses:
                if response.error_code:
                    # The client gets no answer: only a closed connection makes it ask for metadata again.
                    raise CloseConnection(
                        f"a produce with acks=0 to {topic.name}-{response.index} failed: "
                        f"{ErrorCode(response.error_code).name}, {response.error_message}"
                    )
        return NO_RESPONSE


class _WaitingBatch:
    """A batch that other replicas must fetch before it is acknowledged."""

    __slots__ = ("_produce", "_response", "deadline_s", "end_offset")

    def __init__(self, end_offset: int, produce: _Produce, response: PartitionProduceResponse) -> None:
        self.end_offset = end_offset
        self.deadline_s = 0.0
        self._produce = produce
        self._response = response

    @property
    def is_open(self) -> bool:
        return self._produce.request.reply.is_open

    def acknowledge(self, error: KafkaError | None) -> None:
        self._produce.acknowledge(self._response, error)


def _refuse(response: PartitionProduceResponse, error: KafkaError, partition: Partition | None) -> None:
    """Answer with `error`. `partition` is the partition whose log refused the batch, or None."""
    response.error_code = error.code
    response.error_message = error.message
    response.base_offset = -1
    response.log_start_offset = -1
    if partition is not None and error.code not in _CODES_WITHOUT_LOG_START:
        response.log_start_offset = partition.log.log_start_offset


def _named(error: RecordError) -> BatchIndexAndErrorMessage:
    return BatchIndexAndErrorMessage(batch_index=error.batch_index, batch_index_error_message=error.message)
