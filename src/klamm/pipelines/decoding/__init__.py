"""From records to columns: one module per format.

`decode` takes a frame with the CARRIED columns and adds the columns of the schema and `_error`: null where
the value was decoded, else what is wrong with it. A null value (a tombstone) is no error: its columns are
null. Text formats are decoded by Spark itself, in the JVM; Avro and Protobuf by Python workers, in batches.
"""

from __future__ import annotations

from klamm.pipelines.decoding.formats import decode, unknown_fields

__all__ = ["decode", "unknown_fields"]
