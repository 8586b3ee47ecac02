"""Which dead-letter records of a range of records matter to its replay: those that went back to topics stand
in the way, and those that are there when it begins count no more when it has ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from klamm.client.errors import BrokerError, ClientError
from klamm.client.plain.admin import Admin
from klamm.client.results import TopicPartition
from klamm.pipelines.originals import DeadLetter, Originals, open_clients
from klamm.pipelines.project import Project
from klamm.pipelines.redrive import Marks
from klamm.pipelines.redriven_tables import Replayed
from klamm.pipelines.replay import ReplayRefused
from klamm.pipelines.starts import resolve
from klamm.pipelines.state import Attempt
from klamm.pipelines.tables.ranges import Ranges, includes
from klamm.pipelines.tables.table import Table


def dead_letter_ends(project: Project) -> dict[int, int]:
    """Where the dead-letter topic ends now, by partition; empty if there is none yet."""
    try:
        with Admin(project.bootstrap, config=project.client_settings("admin")) as admin:
            is_there = project.dead_letters in admin.list_topics()
    except ClientError as error:
        raise _no_broker(project, error) from error
    if not is_there:
        return {}
    found = resolve(project, [project.dead_letters], "latest")[project.dead_letters]
    return {int(number): end for number, end in found.items()}


def check_sent_back(
    project: Project,
    pipeline: str,
    readers: Mapping[str, Sequence[str]],
    present: Attempt,
    table: Table,
    ranges: Ranges,
) -> list[str]:
    """Raise if dead-letter records of the range went back to their topics: they have rows that tell the
    record that was sent, so a replay of the original would add theirs once more. Returns warnings.

    `readers` has the sources of the pipeline by topic, `present` is its attempt.
    """
    replayed = Replayed(table, project.group_of(pipeline))

    def stands_in_the_way(dead_letter: DeadLetter) -> bool:
        record = dead_letter.topic, dead_letter.partition, dead_letter.offset
        return (
            dead_letter.pipeline == pipeline
            and includes(ranges, *record)
            and not present.is_given_up(dead_letter.epoch)
            and not present.reads_anew(dead_letter.epoch, readers.get(dead_letter.topic, ()), *record)
            and not replayed.settles(dead_letter)
        )

    try:
        with open_clients(project) as clients:
            looking = Originals(project, clients)
            partitions = looking.dead_letter_partitions()
            if not partitions:
                return []
            sent = clients.admin.list_group_offsets(project.group_of("redrive"))
            marks = {each: Marks.of(sent.get(each), 0) for each in partitions}
            beginnings = clients.consumer.beginning_offsets(partitions)
            ends = clients.consumer.end_offsets(partitions)
            count = sum(
                marks[partition].is_done(dead_letter.name, dead_letter.record.offset)
                and stands_in_the_way(dead_letter)
                for partition in partitions
                for dead_letter in _handled(
                    looking, partition, beginnings[partition], min(marks[partition].most, ends[partition])
                )
            )
            is_forgotten = any(marks[each].most > 0 and beginnings[each] > 0 for each in partitions)
    except ClientError as error:
        raise _no_broker(project, error) from error
    if count:
        raise ReplayRefused(
            f"{count:,} dead-letter records of that range were handled by a redrive --to-topic: the records "
            "that it sent back have rows of their own, and a replay of the range would add these rows again",
            advice="Give a range without them, or replay from earliest, without --to",
        )
    if is_forgotten:
        return [
            f"the oldest dead-letter records are no longer in {project.dead_letters}: if a redrive "
            "--to-topic has sent back some of this range, their rows will be there twice"
        ]
    return []


def _handled(looking: Originals, partition: TopicPartition, start: int, end: int) -> Iterator[DeadLetter]:
    """The dead-letter records of a partition between two offsets."""
    if start < end:
        for _, chunk in looking.chunks(partition, start, end):
            yield from chunk


def _no_broker(project: Project, error: ClientError) -> ReplayRefused:
    return ReplayRefused(
        f"the dead-letter records in {project.dead_letters} cannot be read: {error}",
        advice="" if isinstance(error, BrokerError) else "Is the broker running?",
    )
