"""Which dead-letter records were redriven through retry topics, for the other ways of redriving."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from klamm.client.admin.types import TopicDescription
from klamm.pipelines.definitions import Definitions
from klamm.pipelines.graph import sources_of
from klamm.pipelines.originals import Clients, DeadLetter
from klamm.pipelines.project import Project
from klamm.pipelines.retry.log import RetryLog
from klamm.pipelines.retry.session import NotesGone, RetrySession
from klamm.pipelines.retry.topics import retry_topic

logger = logging.getLogger("klamm.pipelines")


class RetriedRecords:
    """The retry topics of a project's pipelines, asked for single dead-letter records."""

    def __init__(self, project: Project, definitions: Definitions, clients: Clients) -> None:
        self._project = project
        self._definitions = definitions
        self._clients = clients
        self._topics = clients.admin.describe_topics()
        self._logs: dict[str, list[RetryLog]] = {}

    def have(self, dead_letter: DeadLetter) -> bool:
        """True if a dead-letter record was redriven through a retry topic."""
        name = dead_letter.pipeline
        if name not in self._logs:
            self._logs[name] = list(self._read(name))
        place = (dead_letter.record.partition, dead_letter.record.offset)
        return any(log.has(dead_letter.rule, place) for log in self._logs[name])

    def _read(self, pipeline: str) -> Iterator[RetryLog]:
        if pipeline not in self._definitions.pipelines:
            return
        for source in sources_of(pipeline, self._definitions.nodes):
            topic = retry_topic(self._project, pipeline, source.name)
            if topic not in self._topics:
                continue
            try:
                yield session_of(self._project, self._clients, topic, self._topics).read()
            except NotesGone as error:  # who redrives to topics does without them
                logger.warning("%s", error.message)


def session_of(
    project: Project, clients: Clients, topic: str, topics: Mapping[str, TopicDescription]
) -> RetrySession:
    """The access of a redrive to a retry topic."""
    known = topics.get(project.dead_letters)
    topic_id = known.topic_id if known is not None else ""
    return RetrySession(project, clients.originals, clients.admin, topic, topic_id)
