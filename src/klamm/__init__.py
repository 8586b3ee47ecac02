"""Klamm: an event-streaming platform that speaks Kafka's wire protocol.

The client is named here: `klamm.Producer`, `klamm.Consumer` and `klamm.Admin` block, from any thread;
`klamm.aio` has the same three for asyncio. With them go the values they take and return, and the errors.

Names are loaded when they are asked for: `import klamm` alone costs next to nothing, because the broker does
it too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klamm import aio as aio
    from klamm.client import errors as errors
    from klamm.client.admin.types import ActiveProducer as ActiveProducer
    from klamm.client.admin.types import BrokerDescription as BrokerDescription
    from klamm.client.admin.types import BrokerVersions as BrokerVersions
    from klamm.client.admin.types import ClusterDescription as ClusterDescription
    from klamm.client.admin.types import ConfigChange as ConfigChange
    from klamm.client.admin.types import ConfigEntry as ConfigEntry
    from klamm.client.admin.types import ConfigResource as ConfigResource
    from klamm.client.admin.types import ConfigSource as ConfigSource
    from klamm.client.admin.types import ConfigSynonym as ConfigSynonym
    from klamm.client.admin.types import ConfigType as ConfigType
    from klamm.client.admin.types import CreatedTopic as CreatedTopic
    from klamm.client.admin.types import GroupDescription as GroupDescription
    from klamm.client.admin.types import GroupListing as GroupListing
    from klamm.client.admin.types import GroupMember as GroupMember
    from klamm.client.admin.types import LogDirectory as LogDirectory
    from klamm.client.admin.types import NewTopic as NewTopic
    from klamm.client.admin.types import PartitionDescription as PartitionDescription
    from klamm.client.admin.types import PartitionReassignment as PartitionReassignment
    from klamm.client.admin.types import ReplicaSize as ReplicaSize
    from klamm.client.admin.types import ResourceType as ResourceType
    from klamm.client.admin.types import TopicDescription as TopicDescription
    from klamm.client.admin.types import VersionRange as VersionRange
    from klamm.client.errors import AuthenticationFailed as AuthenticationFailed
    from klamm.client.errors import AuthorizationFailed as AuthorizationFailed
    from klamm.client.errors import BatchFailed as BatchFailed
    from klamm.client.errors import BrokerError as BrokerError
    from klamm.client.errors import BufferFull as BufferFull
    from klamm.client.errors import ClaimRevoked as ClaimRevoked
    from klamm.client.errors import ClientClosed as ClientClosed
    from klamm.client.errors import ClientError as ClientError
    from klamm.client.errors import ClientForked as ClientForked
    from klamm.client.errors import ClientMisused as ClientMisused
    from klamm.client.errors import ConnectionFailed as ConnectionFailed
    from klamm.client.errors import CorruptRecords as CorruptRecords
    from klamm.client.errors import DeliveryTimedOut as DeliveryTimedOut
    from klamm.client.errors import FencedMember as FencedMember
    from klamm.client.errors import GroupError as GroupError
    from klamm.client.errors import InvalidTopic as InvalidTopic
    from klamm.client.errors import NoBrokerReachable as NoBrokerReachable
    from klamm.client.errors import NoOffset as NoOffset
    from klamm.client.errors import NotKafka as NotKafka
    from klamm.client.errors import NotSerializable as NotSerializable
    from klamm.client.errors import OffsetOutOfRange as OffsetOutOfRange
    from klamm.client.errors import PollOverdue as PollOverdue
    from klamm.client.errors import RecordRefused as RecordRefused
    from klamm.client.errors import RecordTooLarge as RecordTooLarge
    from klamm.client.errors import TimedOut as TimedOut
    from klamm.client.errors import TlsFailed as TlsFailed
    from klamm.client.errors import TopicExists as TopicExists
    from klamm.client.errors import UnknownTopic as UnknownTopic
    from klamm.client.errors import UnsupportedRequest as UnsupportedRequest
    from klamm.client.plain.admin import Admin as Admin
    from klamm.client.plain.consumer import Consumer as Consumer
    from klamm.client.plain.producer import Delivery as Delivery
    from klamm.client.plain.producer import Producer as Producer
    from klamm.client.plain.producer import RangesDelivery as RangesDelivery
    from klamm.client.plain.sessions import Claim as Claim
    from klamm.client.plain.sessions import Session as Session
    from klamm.client.producer.delivery import SentRange as SentRange
    from klamm.client.results import CommittedOffset as CommittedOffset
    from klamm.client.results import OffsetAndTime as OffsetAndTime
    from klamm.client.results import Record as Record
    from klamm.client.results import SentRecord as SentRecord
    from klamm.client.results import TopicPartition as TopicPartition
    from klamm.config.rows import ConfigError as ConfigError
    from klamm.model.errors import ErrorCode as ErrorCode
    from klamm.security.oauth import OAuthToken as OAuthToken

# Where each name lives. The imports above tell type checkers the same.
_NAMES_BY_HOME = {
    "klamm.client.admin.types": (
        "ActiveProducer BrokerDescription BrokerVersions ClusterDescription ConfigChange "
        "ConfigEntry ConfigResource ConfigSource ConfigSynonym ConfigType CreatedTopic "
        "GroupDescription GroupListing "
        "GroupMember LogDirectory NewTopic PartitionDescription PartitionReassignment ReplicaSize "
        "ResourceType TopicDescription VersionRange"
    ),
    "klamm.client.errors": (
        "AuthenticationFailed AuthorizationFailed BatchFailed BrokerError BufferFull ClaimRevoked "
        "ClientClosed ClientError ClientForked ClientMisused ConnectionFailed CorruptRecords "
        "DeliveryTimedOut FencedMember GroupError InvalidTopic NoBrokerReachable NoOffset NotKafka "
        "NotSerializable OffsetOutOfRange PollOverdue RecordRefused RecordTooLarge TimedOut TlsFailed "
        "TopicExists UnknownTopic UnsupportedRequest"
    ),
    "klamm.client.plain.admin": "Admin",
    "klamm.client.plain.consumer": "Consumer",
    "klamm.client.plain.producer": "Delivery Producer RangesDelivery",
    "klamm.client.plain.sessions": "Claim Session",
    "klamm.client.producer.delivery": "SentRange",
    "klamm.client.results": "CommittedOffset OffsetAndTime Record SentRecord TopicPartition",
    "klamm.config.rows": "ConfigError",
    "klamm.model.errors": "ErrorCode",
    "klamm.security.oauth": "OAuthToken",
}
_MODULES = {"aio": "klamm.aio", "errors": "klamm.client.errors"}
_HOMES = {name: home for home, names in _NAMES_BY_HOME.items() for name in names.split()}

__all__ = [*_MODULES, *_HOMES]


if not TYPE_CHECKING:  # or they would take any name for one of ours

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(_MODULES[name])
        return _load(name, _HOMES, globals())


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _load(name: str, homes: dict[str, str], names: dict[str, Any]) -> Any:
    """The object that `name` stands for, imported now and kept in `names`, so that it is asked for once."""
    home = homes.get(name)
    if home is None:
        raise AttributeError(f"module {names['__name__']!r} has no attribute {name!r}")
    found = names[name] = getattr(import_module(home), name)
    return found
