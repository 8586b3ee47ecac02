"""Brokers that note what a controller tells them, and answer as a test wants."""

from __future__ import annotations

from klamm.client.errors import ConnectionFailed
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.k04_leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from klamm.protocol.messages.k05_stop_replica import StopReplicaRequest, StopReplicaResponse
from klamm.protocol.messages.k06_update_metadata import UpdateMetadataRequest, UpdateMetadataResponse

RESPONSES = {
    LeaderAndIsrRequest: LeaderAndIsrResponse,
    StopReplicaRequest: StopReplicaResponse,
    UpdateMetadataRequest: UpdateMetadataResponse,
}


class FakeBrokers:
    """`heard` has (broker, request) of all that was obeyed, in order. `codes` are the next answers of a
    broker; None for no answer, an exception for a failure of ours. A broker in `gates` answers when its event
    is set. One in `without_disk` can use no replica."""

    def __init__(self):
        self.heard = []
        self.codes = {}
        self.gates = {}
        self.without_disk = set()
        self.attempts = 0

    async def send(self, broker_id, request):
        self.attempts += 1
        if broker_id in self.gates:
            await self.gates[broker_id].wait()
        codes = self.codes.get(broker_id)
        code = codes.pop(0) if codes else ErrorCode.NONE
        if isinstance(code, Exception):
            raise code
        if code is None:
            raise ConnectionFailed(f"broker {broker_id} does not answer")
        if code is ErrorCode.NONE:
            self.heard.append((broker_id, request))
        response = RESPONSES[type(request)](error_code=code)
        if isinstance(request, LeaderAndIsrRequest) and code is ErrorCode.NONE:
            response.topics = [self._roles(broker_id, topic) for topic in request.topic_states]
        return response

    def _roles(self, broker_id, topic):
        code = ErrorCode.KAFKA_STORAGE_ERROR if broker_id in self.without_disk else ErrorCode.NONE
        return LeaderAndIsrTopicError(
            topic_id=topic.topic_id,
            partition_errors=[
                LeaderAndIsrPartitionError(partition_index=state.partition_index, error_code=code)
                for state in topic.partition_states
            ],
        )

    def heard_by(self, broker_id, kind):
        return [request for each, request in self.heard if each == broker_id and isinstance(request, kind)]
