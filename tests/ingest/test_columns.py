"""Lines as columns, with what else a record gets."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from klamm.ingest.columns import record_batch
from klamm.ingest.lines import LineRules, split

LINES = b"one\ntwo\nthree\n"


def test_columns_have_lines_keys_and_where_they_came_from() -> None:
    data = np.frombuffer(LINES, np.uint8)
    found = split(data, LineRules())
    partitions = np.arange(found.count, dtype=np.int32)
    batch = record_batch(data, found, partitions, key=b"k", origin=("logs/\udcff.log", 100))
    assert batch.column("value").to_pylist() == [b"one", b"two", b"three"]
    assert batch.column("partition").to_pylist() == [0, 1, 2]
    assert batch.column("key").to_pylist() == [b"k"] * 3
    assert batch.column("headers").to_pylist() == [
        [
            {"key": "klamm.file", "value": b"logs/\xff.log"},
            {"key": "klamm.file.offset", "value": b"%d" % position},
        ]
        for position in (100, 104, 108)
    ]
    bare = record_batch(data, found, partitions, key=None, origin=None)
    assert bare.schema.names == ["value", "partition"]


_WITHOUT_PANDAS = """
import sys
import numpy as np
from klamm.ingest.columns import record_batch
from klamm.ingest.lines import LineRules, split
from klamm.records.arrow_encoding import encode_columns

data = np.frombuffer(b"one\\ntwo\\n", np.uint8)
found = split(data, LineRules())
batch = record_batch(data, found, np.zeros(2, np.int32), key=b"k", origin=("a.log", 0))
encoded = encode_columns(
    batch, value="value", key="key", headers="headers", partition="partition", timestamp=None,
    partitions_count=1, batch_size=1000, now_ms=0,
)
assert sum(each.count for each in encoded) == 2
print("pandas" in sys.modules)
"""


def test_pandas_is_not_waited_for() -> None:
    """It would be a quarter of a second at every start."""
    asked = subprocess.run(
        [sys.executable, "-c", _WITHOUT_PANDAS], capture_output=True, text=True, timeout=60
    )
    assert (asked.stdout, asked.stderr) == ("False\n", "")
