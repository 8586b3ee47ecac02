"""The persistent map holds what a dict would hold, and a change leaves the old map as it was."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from klamm.cluster.persistent_map import MAX_AVERAGE_BUCKET, PersistentMap

KEYS = st.integers(0, 400)


@given(st.lists(st.dictionaries(KEYS, st.one_of(st.none(), st.integers())), max_size=10))
def test_it_is_a_dict_that_never_changes(changes):
    history = [({}, PersistentMap())]
    for entries in changes:
        expected = {**history[-1][0], **entries}
        expected = {key: value for key, value in expected.items() if value is not None}
        history.append((expected, history[-1][1].changed(entries)))
    for expected, actual in history:
        assert actual == expected and len(actual) == len(expected)
        assert dict(actual.items()) == expected and sorted(actual.values()) == sorted(expected.values())
        assert all(actual[key] == expected[key] == actual.get(key) and key in actual for key in expected)
        assert actual.get(-1) is None and actual.get(-1, 5) == 5 and -1 not in actual


@given(st.dictionaries(KEYS, st.integers()), st.dictionaries(KEYS, st.one_of(st.none(), st.integers())))
def test_changes_are_found(before, entries):
    first = PersistentMap(before)
    second = first.changed(entries)
    keys = before.keys() | entries.keys()
    expected = {(key, first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)}
    assert set(second.changes_since(first)) == expected
    assert set(second.changes_since(PersistentMap(before))) == expected, "nothing is shared"
    assert set(first.changes_since(second)) == {(key, new, old) for key, old, new in expected}


def test_a_change_copies_one_bucket_and_shares_the_others():
    before = PersistentMap({number: number for number in range(10_000)})
    after = before.changed({5: 6})
    different = [old for old, new in zip(before._buckets, after._buckets, strict=True) if old is not new]
    assert len(different) == 1 and len(different[0]) <= 2 * MAX_AVERAGE_BUCKET
    assert before.changed({}) is before


def test_buckets_stay_small_while_the_map_grows():
    grown = PersistentMap()
    for number in range(5_000):
        grown = grown.changed({number: number})
    assert len(grown) == 5_000
    assert max(map(len, grown._buckets)) <= 2 * MAX_AVERAGE_BUCKET
