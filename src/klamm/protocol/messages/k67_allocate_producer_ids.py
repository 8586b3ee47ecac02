"""AllocateProducerIds, key 67: a broker asks the controller for a block of producer ids.

Version 0, flexible.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, field, int16, int32, int64


class AllocateProducerIdsRequest(Message, api_key=67, versions="0", flexible="0+"):
    broker_id: int = field(int32)
    broker_epoch: int = field(int64, default=-1)


class AllocateProducerIdsResponse(Message, api_key=67, versions="0", flexible="0+"):
    throttle_time_ms: int = field(int32)
    error_code: int = field(int16)
    producer_id_start: int = field(int64)
    producer_id_len: int = field(int32)
