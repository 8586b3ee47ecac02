"""How a change is made: worked out on the newest image, written to the store in order, then published.

Changes do not wait for one another. A change is worked out on the newest image, which has all changes that
are staged, also those that are not stored yet. Staged changes are written in order, as many in a transaction
as fit, while the transaction before is under way nothing is written: so one fsync serves all that came in
the meantime. Once a change is stored, the image with it is published: this broker's subscribers and the other
brokers are told what changed. Whoever asked for the change waits until they have followed, so a created topic
can be used when its creation is answered; the next change does not wait for them. Each is told in the order
of the changes, and has to keep that order where it matters to it.

A staged change is made even when whoever asked for it goes away. If a transaction fails, or its outcome is
not known, every staged change fails too: it was worked out on an image that includes the failed change. Then
the store is read again before another change is worked out.

A committer lives for one term of this broker as the controller.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from klamm.cluster import layout
from klamm.cluster.changes import Change, Unit
from klamm.cluster.image import (
    BrokerDelta,
    ClusterImage,
    ImageDelta,
    difference,
    joined,
    with_offline_replicas_of,
)
from klamm.cluster.loading import ControllerTerm, read_image
from klamm.cluster.view import TopicFailures
from klamm.coordination.store import (
    MAX_VALUE_BYTES,
    BadVersion,
    Check,
    Delete,
    Operation,
    Store,
    StoreError,
)
from klamm.model.errors import ErrorCode, KafkaError

T = TypeVar("T")
Publish = Callable[[ClusterImage, ImageDelta], "asyncio.Task[TopicFailures]"]
"""Makes an image, which the delta led to, the current one; the task is done when everybody has followed."""

# Changes share transactions of about this many operations: one fsync for hundreds of topics, and no
# transaction so long that it holds up other writers.
MAX_SHARED_OPERATIONS = 2_000

# The most bytes of a transaction, less than an engine takes of one value.
MAX_TRANSACTION_BYTES = MAX_VALUE_BYTES * 9 // 10
# The most that an operation takes in a transaction of any engine besides its path and value.
_OPERATION_BYTES = 80

# Changes that may wait to be written. Whoever has more of them works them out when these are written.
MAX_STAGED_CHANGES = 4_000


class _Staged(NamedTuple):
    units: deque[Unit]
    """Those that are not written yet."""
    delta: ImageDelta
    stored: asyncio.Future[None]
    made: asyncio.Future[TopicFailures]


class _Transaction(NamedTuple):
    operations: list[Operation]
    finished: list[_Staged]
    """The changes that are stored whole once this is written."""


class Committer:
    """Holds the image that is stored and the newest one, and changes them."""

    def __init__(self, store: Store, term: ControllerTerm, node_id: int, publish: Publish) -> None:
        self.store = store
        self._term = term
        self._node_id = node_id
        self._publish_image = publish
        self._stored: ClusterImage | None = None
        self._newest: ClusterImage | None = None
        self._staged: deque[_Staged] = deque()
        self.last: asyncio.Future[TopicFailures] | None = None
        """Of the change that was staged last. Whoever is refused a change of `newest` is told so when this is
        done: a topic that exists already is found then; and if `newest` was not stored, that is the reason.
        """
        self._last_stored: asyncio.Future[None] | None = None
        """Of the same change; done when it is stored."""
        self._writing: asyncio.Task[None] | None = None
        self._reading = asyncio.Lock()
        self._must_reload = False

    @property
    def stored(self) -> ClusterImage:
        """The image as it is stored and published."""
        assert self._stored is not None, "the cluster is not loaded"
        return self._stored

    @property
    def newest(self) -> ClusterImage:
        """The image with all changes that are staged: what the next change is worked out on."""
        assert self._newest is not None, "the cluster is not loaded"
        return self._newest

    @property
    def controller_epoch(self) -> int:
        return self._term.epoch

    async def load(self) -> ClusterImage:
        """Read everything, and return it: an image with no brokers in it. Nothing is published."""
        self._stored = self._newest = await self._read()
        return self._stored

    def begin_with(self, image: ClusterImage) -> None:
        """Go on from `image`, which differs from the loaded one only in what is not stored."""
        self._stored = self._newest = image

    async def ready(self) -> None:
        """Wait until a change can be worked out on `newest`; KafkaError if the store cannot be read.

        The change has to be staged before anything else is awaited.
        """
        while self._must_reload or len(self._staged) >= MAX_STAGED_CHANGES:
            if self._must_reload:
                await self._reload()
            elif self._writing is not None:
                await asyncio.wait([self._writing])

    def stage(self, change: Change) -> asyncio.Future[TopicFailures]:
        """Have a change of `newest` made.

        The future is done when the change is stored and everybody has followed it; it has the failures of
        this broker, or the KafkaError of a change that was not made.
        """
        assert not self._must_reload, "the store is not read again yet"
        loop = asyncio.get_running_loop()
        staged = _Staged(deque(change.units), change.delta, loop.create_future(), loop.create_future())
        self._newest = change.image
        self.last, self._last_stored = staged.made, staged.stored
        self._staged.append(staged)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_staged())
        return staged.made

    async def commit(self, work_out: Callable[[ClusterImage], Change]) -> TopicFailures:
        """Make the change that `work_out` finds on the newest image; raises a KafkaError."""
        await self.ready()
        try:
            change = work_out(self.newest)
        except KafkaError:
            if self.last is not None:
                await asyncio.shield(self.last)
            raise
        return await asyncio.shield(self.stage(change))

    async def newest_is_stored(self) -> None:
        """Wait until `newest`, as it is now, is stored, but for nobody to follow it.

        Raises a KafkaError if it is never stored.
        """
        if self._last_stored is not None:
            await asyncio.shield(self._last_stored)

    # ---- writing

    async def _write_staged(self) -> None:
        while self._staged:
            transaction = self._next_transaction()
            try:
                await self._write(transaction.operations)
            except BaseException as error:
                self._fail(transaction.finished, error)
                if not isinstance(error, KafkaError):
                    raise
                return
            self._publish(transaction.finished)

    def _next_transaction(self) -> _Transaction:
        """Takes the next units; a change is broken up only if it is too large for one transaction."""
        operations: list[Operation] = []
        finished: list[_Staged] = []
        left_bytes = MAX_TRANSACTION_BYTES
        while self._staged and len(operations) < MAX_SHARED_OPERATIONS:
            staged = self._staged[0]
            if operations and sum(map(_unit_bytes, staged.units)) > left_bytes:
                break
            while staged.units:
                left_bytes -= _unit_bytes(staged.units[0])
                if left_bytes < 0 and operations:
                    return _Transaction(operations, finished)
                operations += staged.units.popleft()
            finished.append(self._staged.popleft())
        return _Transaction(operations, finished)

    async def _write(self, operations: Sequence[Operation]) -> None:
        if not operations:
            return
        try:
            await self.store.txn([Check(layout.CONTROLLER_EPOCH, self._term.version), *operations])
        except StoreError as error:
            if isinstance(error, BadVersion) and error.path == layout.CONTROLLER_EPOCH:
                raise KafkaError(
                    ErrorCode.NOT_CONTROLLER, "another broker has become the controller: ask that one"
                ) from None
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"the change may or may not have been made: {error}"
            ) from error

    def _fail(self, failed: Sequence[_Staged], error: BaseException) -> None:
        """What is staged builds on a change that failed, so it fails too."""
        after = KafkaError(
            ErrorCode.REQUEST_TIMED_OUT, "the change was not made: a change before it failed; try again"
        )
        if isinstance(error, KafkaError) and error.code is ErrorCode.NOT_CONTROLLER:
            after = error
            self._newest = self._stored
            self.last = self._last_stored = None
        else:
            # What the store holds now is not known, so what the image says may be wrong.
            self._must_reload = True
        partly_written = [self._staged.popleft()] if self._staged and not failed else []
        for staged in (*failed, *partly_written):
            _set_error(staged.stored, error)
            _set_error(staged.made, error)
        for staged in self._staged:
            _set_error(staged.stored, after)
            _set_error(staged.made, after)
        self._staged.clear()

    # ---- publishing

    def _publish(self, finished: Sequence[_Staged]) -> None:
        """Make the image with these changes the current one, and have subscribers told."""
        delta = joined(staged.delta for staged in finished)
        if delta:
            self._stored = self.stored.with_delta(delta)
        for staged in finished:
            _set_result(staged.stored, None)
            if not delta:
                _set_result(staged.made, {})
        if not delta:
            return
        telling = self._publish_image(self.stored, delta)

        def answer(task: asyncio.Task[TopicFailures]) -> None:
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            for staged in finished:
                if error is not None:
                    _set_error(staged.made, error)
                else:
                    _set_result(staged.made, task.result())

        telling.add_done_callback(answer)

    # ---- reading

    async def _reload(self) -> None:
        """Read the store again, after a change whose outcome was not known."""
        async with self._reading:
            if not self._must_reload:
                return
            try:
                image = await self._read()
            except StoreError as error:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"the store cannot be read: {error}") from error
            before = self.stored
            brokers = {broker.id: BrokerDelta(None, broker) for broker in before.brokers.values()}
            image = with_offline_replicas_of(before, image.with_delta(ImageDelta(brokers=brokers)))
            self._stored = self._newest = image
            self.last = self._last_stored = None
            self._must_reload = False
            await asyncio.shield(self._publish_image(image, difference(before, image)))

    async def _read(self) -> ClusterImage:
        """The image that the store describes, after finishing what a crash cut short."""
        loaded = await read_image(self.store, self._node_id, self.controller_epoch)
        remaining = deque(loaded.unfinished)
        while remaining:
            operations: list[Operation] = []
            while remaining and len(operations) < MAX_SHARED_OPERATIONS:
                operations += remaining.popleft()
            await self.store.txn([Check(layout.CONTROLLER_EPOCH, self._term.version), *operations])
        return loaded.image


def _unit_bytes(unit: Unit) -> int:
    return sum(
        _OPERATION_BYTES
        + len(operation.path)
        + (0 if isinstance(operation, Delete | Check) else len(operation.value))
        for operation in unit
    )


def _set_result(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _set_error(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # whoever asked may have gone away: then nobody else looks at it
