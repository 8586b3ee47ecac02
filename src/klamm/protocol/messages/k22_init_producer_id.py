"""InitProducerId, key 22: a producer id and epoch for idempotent and transactional producers.

Versions 0-6, flexible from 2. Version 3 lets a producer name the id it has. 6 (two-phase commit) is
unstable: it can be read and written, but is not advertised.
"""

from __future__ import annotations

from klamm.protocol.schema import Message, boolean, field, int16, int32, int64, string


class InitProducerIdRequest(Message, api_key=22, versions="0-6", flexible="2+"):
    transactional_id: str | None = field(string, nullable="0+")
    transaction_timeout_ms: int = field(int32)
    producer_id: int = field(int64, versions="3+", default=-1)
    producer_epoch: int = field(int16, versions="3+", default=-1)
    enable2_pc: bool = field(boolean, versions="6+")
    keep_prepared_txn: bool = field(boolean, versions="6+")


class InitProducerIdResponse(Message, api_key=22, versions="0-6", flexible="2+"):
    throttle_time_ms: int = field(int32, ignorable=True)
    error_code: int = field(int16)
    producer_id: int = field(int64, default=-1)
    producer_epoch: int = field(int16)
    ongoing_txn_producer_id: int = field(int64, versions="6+", default=-1)
    ongoing_txn_producer_epoch: int = field(int16, versions="6+", default=-1)
