"""The offsets that a streaming query has processed, committed to a group, so that lag tools see Spark.

A query is no member of its group: it only commits. The group is `kafka.group.id`, or is named after the
query's id. Spark tells that id to tasks but not to the reader, so they meet in a group whose name only the
two know: a task of the first batch commits there, with the id as the commit's metadata, and the reader reads
it and deletes the group (docs/adr/0011). A commit that fails is logged; it never fails a query, whose own
memory is its checkpoint.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping

from klamm.client.admin.groups import delete_groups
from klamm.client.admin.offsets import alter_group_offsets, list_group_offsets
from klamm.client.errors import ClientError
from klamm.client.results import CommittedOffset, TopicPartition
from pyspark_klamm.connections import Connection
from pyspark_klamm.planning import OffsetRange

logger = logging.getLogger("pyspark_klamm")

COMMIT_TIMEOUT_S = 2.0
"""How long a trigger waits for its commit; the next one commits more."""

_QUERY_ID = "sql.streaming.queryId"


class GroupOffsets:
    """The reader's side: commits what was processed, once it knows where."""

    def __init__(self, connection: Connection, group_id: str | None, prefix: str) -> None:
        self._connection = connection
        self._group_id = group_id
        self._prefix = prefix
        self._committed: Mapping[TopicPartition, int] = {}
        self._is_met = False
        """Whether a task was told where to meet."""
        self._meeting_group = f"{prefix}-reader-{uuid.uuid4()}"

    def meeting_group(self) -> str | None:
        """Where a task shall tell the query's id; None when that is not needed."""
        if self._group_id is not None:
            return None
        self._is_met = True
        return self._meeting_group

    async def commit(self, processed: Mapping[TopicPartition, int]) -> None:
        """Commit these offsets, if they are news."""
        if not processed or processed == self._committed:
            return
        calls = self._connection.calls
        try:
            if self._group_id is None and self._is_met:
                await self._meet()
            if self._group_id is None:
                return
            offsets = {
                each: CommittedOffset(offset)
                for each, offset in processed.items()
                if self._committed.get(each) != offset
            }
            await alter_group_offsets(calls, self._group_id, offsets, COMMIT_TIMEOUT_S)
        except ClientError as error:
            logger.warning(
                "the offsets of this query were not committed to group %s: %s", self._group_id, error
            )
        self._committed = dict(processed)

    async def _meet(self) -> None:
        calls = self._connection.calls
        told = await list_group_offsets(calls, self._meeting_group, None, COMMIT_TIMEOUT_S)
        query_id = next((each.metadata for each in told.values() if each.metadata), None)
        if query_id is not None:
            self._group_id = f"{self._prefix}-{query_id}"
            await delete_groups(calls, [self._meeting_group], COMMIT_TIMEOUT_S)


def tell_query_id(connection: Connection, meeting_group: str, wanted: OffsetRange) -> None:
    """The task's side."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query_id = context.getLocalProperty(_QUERY_ID) if context is not None else None
    if query_id is None:
        return
    told = {wanted.place: CommittedOffset(wanted.start, query_id)}
    try:
        connection.run(alter_group_offsets(connection.calls, meeting_group, told, COMMIT_TIMEOUT_S))
    except ClientError as error:
        logger.warning("the reader of query %s was not told where to commit: %s", query_id, error)
