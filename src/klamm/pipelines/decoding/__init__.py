"""Decodes the values of records into columns: one module per format.

`decode` takes a DataFrame with the CARRIED columns and adds the columns of the schema and `_error`, which is
null if the value was decoded, else what is wrong with it. A null value (a tombstone) is not an error: its
columns are null. Spark itself decodes text formats in the JVM; Python workers decode Avro and Protobuf.
"""

from __future__ import annotations

from klamm.pipelines.decoding.formats import decode, unknown_fields

__all__ = ["decode", "unknown_fields"]
