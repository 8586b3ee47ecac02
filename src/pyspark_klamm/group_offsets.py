"""Commits the offsets that a streaming query has processed to a group, so that lag tools show Spark queries.

A query is not a member of its group: it only commits. The group is `kafka.group.id`, or is named after the
query's id. Spark tells that id to tasks but not to the reader. So a task of the first batch commits the id,
as metadata, to a meeting group with a random name, and the reader reads it there and deletes the meeting
group (docs/adr/0011). A failed commit is logged and never fails a query, which continues from its checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping

from klamm.client.admin.groups import delete_groups
from klamm.client.admin.offsets import alter_group_offsets, list_group_offsets
from klamm.client.errors import BatchFailed, ClientError, UnknownTopic
from klamm.client.results import CommittedOffset, TopicPartition
from pyspark_klamm.connections import Connection
from pyspark_klamm.planning import OffsetRange

logger = logging.getLogger("pyspark_klamm")

COMMIT_TIMEOUT_S = 2.0
"""How long a trigger waits for its commit; the next trigger commits again."""

RETRY_PAUSE_S = 5.0
"""How long no commit is tried after a failed one, so that a lost coordinator does not slow triggers down."""

MOST_MEETINGS = 5
"""After how many batches the reader stops asking for the query's id."""

COMMIT_ANEW_S = 3600.0
"""How often unchanged offsets are committed again. A broker deletes offsets of a group without members after
offsets.retention.minutes, and a partition may get no records for longer than that."""

_QUERY_ID = "sql.streaming.queryId"


class GroupOffsets:
    """The reader's side: commits processed offsets, once the group is known."""

    def __init__(
        self, connection: Connection, group_id: str | None, prefix: str, *, makes_group: bool = True
    ) -> None:
        self._connection = connection
        self._group_id = group_id
        self._prefix = prefix
        self._committed: Mapping[TopicPartition, int] = {}
        self._meetings_left = MOST_MEETINGS if makes_group else 0
        self._is_arranged = False
        """True once a task was given the meeting group."""
        self._retry_at = 0.0
        self._commit_anew_at = 0.0
        self._meeting_group = f"{prefix}-reader-{uuid.uuid4()}"

    def meeting_group(self) -> str | None:
        """The group in which a task is to leave the query's id; None if that is not needed."""
        if self._group_id is not None or not self._meetings_left:
            return None
        self._is_arranged = True
        return self._meeting_group

    async def commit(self, processed: Mapping[TopicPartition, int]) -> None:
        """Commit these offsets if they have changed, or were committed long ago."""
        now = asyncio.get_running_loop().time()
        known = self._committed if now < self._commit_anew_at else {}
        news = {
            each: CommittedOffset(offset) for each, offset in processed.items() if known.get(each) != offset
        }
        if not news or now < self._retry_at:
            return
        try:
            if self._group_id is None:
                await self._meet()
            if self._group_id is None:
                return
            await alter_group_offsets(self._connection.calls, self._group_id, news, COMMIT_TIMEOUT_S)
        except ClientError as error:
            if not _is_about_deleted_topics(error):
                self._retry_at = now + RETRY_PAUSE_S
                logger.warning(
                    "could not commit the offsets of this query to group %s: %s", self._group_id, error
                )
                return
        self._committed = dict(processed)
        if not known:
            self._commit_anew_at = now + COMMIT_ANEW_S

    async def _meet(self) -> None:
        if not self._is_arranged or not self._meetings_left:
            return
        self._meetings_left -= 1
        calls = self._connection.calls
        told = await list_group_offsets(calls, self._meeting_group, None, COMMIT_TIMEOUT_S)
        query_id = next((each.metadata for each in told.values() if each.metadata), None)
        if query_id is not None:
            self._group_id = f"{self._prefix}-{query_id}"
            await delete_groups(calls, [self._meeting_group], COMMIT_TIMEOUT_S)
        elif not self._meetings_left:
            logger.warning(
                "the id of this query is unknown, so its offsets are not committed; "
                "set the option kafka.group.id"
            )


def _is_about_deleted_topics(error: ClientError) -> bool:
    return isinstance(error, BatchFailed) and all(
        isinstance(each, UnknownTopic) for each in error.errors.values()
    )


def tell_query_id(connection: Connection, meeting_group: str, wanted: OffsetRange) -> None:
    """The task's side: commit the query's id to the meeting group."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query_id = context.getLocalProperty(_QUERY_ID) if context is not None else None
    if query_id is None:
        return
    told = {wanted.place: CommittedOffset(wanted.start, query_id)}
    try:
        connection.run(alter_group_offsets(connection.calls, meeting_group, told, COMMIT_TIMEOUT_S))
    except ClientError as error:
        logger.warning("could not tell the reader of query %s its id: %s", query_id, error)
