"""ControlledShutdown, key 7: a broker that stops asks the controller to move its leaders elsewhere.

Version 3 only, the newest that Kafka had: brokers of a cluster run the same program.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, Struct, array, field, int16, int32, int64, string


class ControlledShutdownRequest(Message, api_key=7, versions="3", flexible="3+"):
    broker_id: int = field(int32)
    broker_epoch: int = field(int64, default=-1)


class RemainingPartition(Struct):
    topic_name: str = field(string)
    partition_index: int = field(int32)


class ControlledShutdownResponse(Message, api_key=7, versions="3", flexible="3+"):
    error_code: int = field(int16)
    remaining_partitions: list[RemainingPartition] = field(array(RemainingPartition))
