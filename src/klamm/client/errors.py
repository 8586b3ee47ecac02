"""The one tree of exceptions that the client raises.

    ClientError                    anything below; has .code, .retriable, .advice
    ├── BrokerError                a broker answered with an error code
    │   ├── UnknownTopic  RecordRefused  RecordTooLarge  OffsetOutOfRange  GroupError  FencedMember
    │   └── AuthorizationFailed  TopicExists  InvalidTopic  UnsupportedRequest
    ├── ConnectionFailed           no broker there, or it went away
    │   ├── NoBrokerReachable  NotKafka  TlsFailed
    ├── AuthenticationFailed       the login failed
    ├── TimedOut                   says what timed out, where, after how long, and the last cause
    │   └── DeliveryTimedOut
    ├── BufferFull                 the producer's memory is used up
    ├── NotSerializable            a key, value or header that is not bytes
    ├── NoOffset                   no committed offset and `start="none"`
    ├── CorruptRecords             fetched bytes that are not records
    ├── BatchFailed                some items of a call failed; has .results and .errors
    ├── ClaimRevoked               a claim's partition was taken away (plain sessions, on_revoke="cancel")
    ├── ClientClosed  ClientForked ClientMisused
    └── ConfigError                a wrong setting; shared with the broker, so it lies in config/rows.py
    PollOverdue                    a warning: the consumer did not poll in time, and left its group

TimedOut is also a TimeoutError, ConnectionFailed a ConnectionError, NotSerializable a TypeError, ConfigError
a ValueError. All of them can be pickled and copied. Errors of sockets and TLS are raised as one of these. The
cores also pass them around as values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from klamm.model.errors import ClientError as ClientError
from klamm.model.errors import ErrorCode

# ---- a broker said no


class BrokerError(ClientError):
    """A broker answered with an error code. `of` makes the fitting subclass."""

    code: ErrorCode
    _classes: ClassVar[dict[ErrorCode, type[BrokerError]]] = {}

    def __init__(self, message: str, *, code: ErrorCode, advice: str = "") -> None:
        super().__init__(message, code=code, advice=advice)
        self.retriable = code.retriable

    def __init_subclass__(cls, *, codes: tuple[ErrorCode, ...] = ()) -> None:
        for code in codes:
            BrokerError._classes[code] = cls

    @staticmethod
    def of(code: int, what: str, broker_message: str | None = None) -> BrokerError:
        """The error for a code. `what` names the request and the broker: "producing to orders-3 on broker
        1"."""
        try:
            known = ErrorCode(code)
        except ValueError:
            known = ErrorCode.UNKNOWN_SERVER_ERROR
        name = known.name if known == code else f"error {code}"
        said = f": {broker_message}" if broker_message else ""
        cls = BrokerError._classes.get(known, BrokerError)
        return cls(f"{what} failed with {name}{said}", code=known, advice=_ADVICE.get(known, ""))


class UnknownTopic(
    BrokerError,
    codes=(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID),
):
    """There is no such topic or partition."""


class TopicExists(BrokerError, codes=(ErrorCode.TOPIC_ALREADY_EXISTS,)):
    """A topic of that name exists already."""


class InvalidTopic(BrokerError, codes=(ErrorCode.INVALID_TOPIC_EXCEPTION,)):
    """A name that no topic can have, or that is reserved for internal topics."""


class RecordRefused(
    BrokerError,
    codes=(
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    ),
):
    """The broker refuses this record, and would refuse it again."""


class RecordTooLarge(
    BrokerError,
    codes=(ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE),
):
    """A record larger than `max_request_size`, or than the topic's max.message.bytes."""


class OffsetOutOfRange(BrokerError, codes=(ErrorCode.OFFSET_OUT_OF_RANGE,)):
    """An offset before the first record of a partition, or after the last."""


class GroupError(
    BrokerError,
    codes=(
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.INVALID_SESSION_TIMEOUT,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ),
):
    """The group or its coordinator refused."""


class FencedMember(GroupError, codes=(ErrorCode.FENCED_INSTANCE_ID,)):
    """Another consumer runs under the same `group_instance_id`."""


class AuthorizationFailed(
    BrokerError,
    codes=(
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
):
    """The login succeeded, but the user is not allowed to do this."""


class UnsupportedRequest(BrokerError, codes=(ErrorCode.UNSUPPORTED_VERSION,)):
    """The broker does not support a request that is needed."""


_ADVICE = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "Create the topic, or look at its name",
    ErrorCode.UNKNOWN_TOPIC_ID: "The topic was deleted; create it again",
    ErrorCode.TOPIC_ALREADY_EXISTS: "Choose another name, or delete the topic first",
    ErrorCode.MESSAGE_TOO_LARGE: "Send less at once, or raise max.message.bytes of the topic",
    ErrorCode.RECORD_LIST_TOO_LARGE: "Lower batch_size, or raise segment.bytes of the topic",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "A name has 1 to 249 letters, digits, dots, dashes and underscores; "
    "only brokers write to internal topics",
    ErrorCode.INVALID_RECORD: "A compacted topic takes only records with a key",
    ErrorCode.INVALID_TIMESTAMP: "Send a timestamp nearer to the present, or change the topic's bounds",
    ErrorCode.NOT_ENOUGH_REPLICAS: "Wait until more replicas are in sync, or lower min.insync.replicas",
    ErrorCode.REBALANCE_IN_PROGRESS: "Poll, so that the member takes part, and commit after that",
    ErrorCode.ILLEGAL_GENERATION: "The group went on without this member; poll to join again",
    ErrorCode.UNKNOWN_MEMBER_ID: "The group went on without this member; poll to join again",
    ErrorCode.FENCED_INSTANCE_ID: "Give each running consumer a group_instance_id of its own",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "Give all members a partition_assignment_strategy in common",
    ErrorCode.INVALID_SESSION_TIMEOUT: "The broker allows 6 seconds to 30 minutes unless told otherwise",
    ErrorCode.NON_EMPTY_GROUP: "Stop its members first",
    ErrorCode.OFFSET_OUT_OF_RANGE: "Seek to an offset that is there, or set `start`",
    ErrorCode.UNSUPPORTED_VERSION: "The broker is too old for this",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Ask for access to the topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Ask for access to the group",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Ask for access to the cluster",
}


# ---- no answer


class ConnectionFailed(ClientError, ConnectionError):
    """A connection could not be opened, or ended before an answer came."""

    retriable = True


class NoBrokerReachable(ConnectionFailed):
    """None of the addresses answered."""


class NotKafka(ConnectionFailed):
    """Something listens there and does not speak Kafka's protocol."""

    retriable = False


class TlsFailed(ConnectionFailed):
    """The TLS handshake failed: certificates, names, or a server without TLS."""

    retriable = False


class AuthenticationFailed(ClientError):
    """The broker did not accept our credentials, or does not support the mechanism."""


class TimedOut(ClientError, TimeoutError):
    """A call took too long. The text says what timed out, where, after how long, and the last cause.
    `seconds` is the time that passed, which may differ a little from the time-out."""

    retriable = True

    def __init__(
        self,
        what: str,
        seconds: float,
        *,
        cause: BaseException | None = None,
        advice: str = "",
    ) -> None:
        last = f"; the last cause was: {cause}" if cause is not None and str(cause) else ""
        super().__init__(f"{what} timed out after {_rounded(seconds):g} s{last}", advice=advice)
        self.seconds = seconds
        self.cause = cause
        if isinstance(cause, ClientError):
            self.code = cause.code


def _rounded(seconds: float) -> float:
    """Rounded to two or three digits: 0.05, 9.8, 31.2, 120."""
    return float(f"{seconds:.3g}") if seconds >= 10 else float(f"{seconds:.2g}")


class DeliveryTimedOut(TimedOut):
    """A record was not acknowledged within `delivery_timeout_ms`. It may have been written all the same."""


# ---- the user's side


class BufferFull(ClientError):
    """`buffer_memory` is used up: records are sent faster than brokers acknowledge them."""

    retriable = True


class NotSerializable(ClientError, TypeError):
    """A key, a value or a header that is not bytes."""


class LocalRecordTooLarge(RecordTooLarge):
    """A record larger than `max_request_size`, found before it was sent."""

    def __init__(self, message: str, *, advice: str = "") -> None:
        super().__init__(message, code=ErrorCode.MESSAGE_TOO_LARGE, advice=advice)


class NoOffset(ClientError):
    """A partition has no committed offset, and `start` is "none"."""


class CorruptRecords(ClientError):
    """Fetched bytes that are not record batches, or whose checksum is wrong."""


class BatchFailed(ClientError):
    """Some items of a call about several items failed.

    `results` has the results of the items that succeeded, `errors` the error of each item that failed.
    """

    NAMED = 3
    """How many of the errors are in the text; `errors` has all."""

    def __init__(self, what: str, results: Mapping[Any, Any], errors: Mapping[Any, ClientError]) -> None:
        named = "; ".join(str(error) for error in list(errors.values())[: self.NAMED])
        more = f"; and {len(errors) - self.NAMED} more" if len(errors) > self.NAMED else ""
        super().__init__(f"{what} failed for {len(errors)} of {len(results) + len(errors)}: {named}{more}")
        self.results = dict(results)
        self.errors = dict(errors)
        codes = {error.code for error in errors.values()}
        self.code = codes.pop() if len(codes) == 1 else None
        self.retriable = all(error.retriable for error in errors.values())


class ClientClosed(ClientError):
    """The client was used after it was closed."""


class ClientForked(ClientError):
    """The client was used in a child process that was forked after it was made."""


class ClientMisused(ClientError):
    """A call, or an argument, that cannot work: `subscribe` after `assign`, `commit` without a group."""


class ClaimRevoked(ClientError):
    """The partition of a claim was revoked during the iteration over it, with `on_revoke="cancel"`."""


class PollOverdue(UserWarning):
    """The consumer left its group, because it did not poll for longer than `max_poll_interval_ms`."""
