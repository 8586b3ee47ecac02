"""A mapping that never changes: a change makes a new one that shares nearly everything with the old one.

The entries lie in buckets, which are plain dicts; a change copies the buckets that it touches and the tuple
of all buckets. A lookup is a hash and a lookup in a dict. The order of the entries means nothing, and differs
from process to process: sort where order is seen.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from itertools import chain
from typing import Any, TypeVar, overload

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")
DefaultT = TypeVar("DefaultT")

# With this many entries in a bucket on average, copying a bucket costs about a microsecond.
MAX_AVERAGE_BUCKET = 64
# The number of buckets grows by this, a power of two, so that a growing map is seldom laid out anew.
_GROWTH = 4


class PersistentMap(Mapping[KeyT, ValueT]):
    __slots__ = ("_buckets", "_len", "_mask")

    def __init__(self, entries: Mapping[KeyT, ValueT] | Iterable[tuple[KeyT, ValueT]] = ()) -> None:
        source = dict(entries)
        self._lay_out(source, _bucket_count(len(source)))

    def _lay_out(self, source: Mapping[KeyT, ValueT], bucket_count: int) -> None:
        buckets: list[dict[KeyT, ValueT]] = [{} for _ in range(bucket_count)]
        mask = bucket_count - 1
        for key, value in source.items():
            buckets[hash(key) & mask][key] = value
        self._buckets = tuple(buckets)
        self._mask = mask
        self._len = len(source)

    def __getitem__(self, key: KeyT) -> ValueT:
        return self._buckets[hash(key) & self._mask][key]

    @overload
    def get(self, key: KeyT, /) -> ValueT | None: ...
    @overload
    def get(self, key: KeyT, /, default: ValueT | DefaultT) -> ValueT | DefaultT: ...
    def get(self, key: KeyT, /, default: Any = None) -> Any:
        return self._buckets[hash(key) & self._mask].get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._buckets[hash(key) & self._mask]

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[KeyT]:
        return chain.from_iterable(self._buckets)

    def values(self) -> ValuesView[ValueT]:
        return _Values(self)

    def items(self) -> ItemsView[KeyT, ValueT]:
        return _Items(self)

    def __repr__(self) -> str:
        return f"PersistentMap({dict(self)!r})"

    def changed(self, entries: Mapping[KeyT, ValueT | None]) -> PersistentMap[KeyT, ValueT]:
        """With `entries` added or replaced; an entry of None is removed. No entries: this map itself."""
        if not entries:
            return self
        mask = self._mask
        copies: dict[int, dict[KeyT, ValueT]] = {}
        for key, value in entries.items():
            number = hash(key) & mask
            bucket = copies.get(number)
            if bucket is None:
                bucket = copies[number] = dict(self._buckets[number])
            if value is None:
                bucket.pop(key, None)
            else:
                bucket[key] = value
        return self._with_buckets(copies)

    def _with_buckets(self, copies: Mapping[int, dict[KeyT, ValueT]]) -> PersistentMap[KeyT, ValueT]:
        buckets = list(self._buckets)
        length = self._len
        for number, bucket in copies.items():
            length += len(bucket) - len(buckets[number])
            buckets[number] = bucket
        after: PersistentMap[KeyT, ValueT] = PersistentMap.__new__(PersistentMap)
        if length > MAX_AVERAGE_BUCKET * len(buckets):
            entries = {key: value for bucket in buckets for key, value in bucket.items()}
            after._lay_out(entries, _bucket_count(length))
            return after
        after._buckets = tuple(buckets)
        after._mask = self._mask
        after._len = length
        return after

    def changes_since(
        self, before: PersistentMap[KeyT, ValueT]
    ) -> Iterator[tuple[KeyT, ValueT | None, ValueT | None]]:
        """Keys whose value does not equal that in `before`, with the value before and now; None is none.

        Of two maps of which one was made from the other, the shared buckets are not looked into.
        """
        if self._mask == before._mask:
            pairs: Iterable[tuple[Mapping[KeyT, ValueT], Mapping[KeyT, ValueT]]] = zip(
                self._buckets, before._buckets, strict=True
            )
        else:
            pairs = ((dict(self.items()), dict(before.items())),)
        for ours, theirs in pairs:
            if ours is theirs:
                continue
            for key, value in ours.items():
                known = theirs.get(key)
                if known is not value and known != value:
                    yield key, known, value
            for key, known in theirs.items():
                if key not in ours:
                    yield key, known, None


class _Values(ValuesView[ValueT]):
    """Goes over the buckets, where the base class would look up each key."""

    _mapping: PersistentMap[Any, ValueT]

    def __iter__(self) -> Iterator[ValueT]:
        return chain.from_iterable(bucket.values() for bucket in self._mapping._buckets)


class _Items(ItemsView[KeyT, ValueT]):
    _mapping: PersistentMap[KeyT, ValueT]

    def __iter__(self) -> Iterator[tuple[KeyT, ValueT]]:
        return chain.from_iterable(bucket.items() for bucket in self._mapping._buckets)


def _bucket_count(length: int) -> int:
    count = 1
    while length > MAX_AVERAGE_BUCKET * count:
        count *= _GROWTH
    return count
