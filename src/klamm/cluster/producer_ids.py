"""Producer ids: the controller gives them out in blocks, and notes the last block in the store.

Each block is written with a check of the controller epoch, and only over the block that was read. So no id is
given twice, also if two brokers take themselves for the controller. A block whose writing has an unknown
outcome is lost.
"""

from __future__ import annotations

from klamm.cluster import layout
from klamm.cluster.loading import ControllerTerm
from klamm.coordination.store import BadVersion, Check, Create, NoNode, Operation, Set, Store, StoreError
from klamm.model.errors import ErrorCode, KafkaError

BLOCK_SIZE = 1_000


async def next_block(store: Store, term: ControllerTerm, broker_id: int) -> range:
    """The next block, for `broker_id`; NOT_CONTROLLER, or REQUEST_TIMED_OUT if the store does not answer."""
    path = layout.PRODUCER_ID_BLOCK
    try:
        operation: Operation
        try:
            node = await store.get(path)
            start = int(layout.decode(path, node)["block_end"]) + 1
            operation = Set(path, _encoded(start, broker_id), node.version)
        except NoNode:
            start = 0
            operation = Create(path, _encoded(start, broker_id))
        await store.txn([Check(layout.CONTROLLER_EPOCH, term.version), operation])
    except StoreError as error:
        if isinstance(error, BadVersion) and error.path == layout.CONTROLLER_EPOCH:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "another broker has become the controller") from None
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"no producer ids can be given now: {error}") from error
    return range(start, start + BLOCK_SIZE)


def _encoded(start: int, broker_id: int) -> bytes:
    end = start + BLOCK_SIZE - 1
    return layout.encode(
        {"version": 1, "broker": broker_id, "block_start": str(start), "block_end": str(end)}
    )
