"""The jar for Spark's class path that completes the data source, and the code that makes it.

Without the jar `.format("klamm")` is a plain Python data source. With it, batches can be written without a
save mode and streams in update mode, as with Spark's own Kafka connector, and `.format("kafka")` resolves to
this data source: Spark reserves that name for a class on the class path. If Spark's own connector is there as
well, Spark uses that one for "kafka". jar_source/ has the classes as Java source.

The jar ships ready-made. This file makes it without a Java compiler, always with the same bytes:

    python -c 'from pyspark_klamm.jar import *; jar_path().write_bytes(make_jar())'
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from pyspark_klamm.class_file import ClassFile, signature

JAR_NAME = "klamm-spark.jar"

_SQL = "org/apache/spark/sql"
_PYTHON = f"{_SQL}/execution/datasources/v2/python"
_PYTHON_SOURCE = f"{_PYTHON}/PythonDataSourceV2"
_SCHEMA = f"{_SQL}/types/StructType"
_CAPABILITY = f"{_SQL}/connector/catalog/TableCapability"
_WRITE_INFO = f"{_SQL}/connector/write/LogicalWriteInfo"
_WRITER = f"{_SQL}/DataFrameWriter"
_TEXT, _CHARACTERS = "java/lang/String", "java/lang/CharSequence"

_NAME = "klamm"
_SOURCE = "klamm/DefaultSource"
_BATCH_TARGET = "klamm/BatchTarget"
_TABLE = "klamm/TopicTable"
_WRITE_BUILDER = "klamm/TopicWriteBuilder"
_KAFKA_SOURCE = "kafka/DefaultSource"


def jar_path() -> Path:
    """The jar of this package, for `spark.jars`."""
    return Path(__file__).with_name(JAR_NAME)


def make_jar() -> bytes:
    classes = (_kafka_source(), _source(), _batch_target(), _table(), _write_builder())
    entries = {"META-INF/MANIFEST.MF": b"Manifest-Version: 1.0\r\n\r\n"}
    entries |= {f"{each.name}.class": each.to_bytes() for each in classes}
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as jar:
        for name, content in entries.items():
            # Uncompressed and without a date, so that the bytes are always the same.
            entry = zipfile.ZipInfo(name)
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            jar.writestr(entry, content)
    return made.getvalue()


def _kafka_source() -> ClassFile:
    made = ClassFile(_KAFKA_SOURCE, _SOURCE)
    made.constructor()
    return made


def _source() -> ClassFile:
    made = ClassFile(_SOURCE, _PYTHON_SOURCE, (f"{_SQL}/sources/CreatableRelationProvider",))
    made.constructor()
    _set_short_name(made)
    made.method(
        "getTable",
        signature(
            *(_SCHEMA, f"[L{_SQL}/connector/expressions/Transform;", "java/util/Map"),
            returns=f"{_SQL}/connector/catalog/Table",
        ),
        made.new(_TABLE)
        + (made.load(0) + made.load_text(_NAME) + made.load(1))
        + made.call_special(_TABLE, "<init>", signature(_PYTHON_SOURCE, _TEXT, _SCHEMA))
        + made.return_object(),
        stack=5,
        arguments=3,
    )
    made.method(
        "createRelation",
        signature(
            *(f"{_SQL}/SQLContext", f"{_SQL}/SaveMode", "scala/collection/immutable/Map", f"{_SQL}/Dataset"),
            returns=f"{_SQL}/sources/BaseRelation",
        ),
        made.load(4)
        + made.call(f"{_SQL}/Dataset", "write", signature(returns=_WRITER))
        + made.load_text(_BATCH_TARGET.replace("/", "."))
        + made.call(_WRITER, "format", signature(_TEXT, returns=_WRITER))
        + made.load(3)
        + made.call(_WRITER, "options", signature("scala/collection/Map", returns=_WRITER))
        + (made.load(2) + made.call(f"{_SQL}/SaveMode", "name", signature(returns=_TEXT)))
        + (made.load_text("ErrorIfExists") + made.load_text("Append"))
        + made.call(_TEXT, "replace", signature(_CHARACTERS, _CHARACTERS, returns=_TEXT))
        + made.call(_WRITER, "mode", signature(_TEXT, returns=_WRITER))
        + made.call(_WRITER, "save", signature())
        + (made.load_null() + made.return_object()),
        stack=4,
        arguments=4,
    )
    return made


def _batch_target() -> ClassFile:
    made = ClassFile(_BATCH_TARGET, _PYTHON_SOURCE)
    made.constructor()
    _set_short_name(made)
    return made


def _set_short_name(made: ClassFile) -> None:
    made.method(
        "setShortName",
        signature(_TEXT),
        made.load(0)
        + made.load_text(_NAME)
        + made.call_special(made.parent, "setShortName", signature(_TEXT))
        + made.return_nothing(),
        stack=2,
        arguments=1,
    )


def _table() -> ClassFile:
    made = ClassFile(_TABLE, f"{_PYTHON}/PythonTable")
    made.field("source", _PYTHON_SOURCE)
    made.constructor(
        *(_PYTHON_SOURCE, _TEXT, _SCHEMA),
        then=made.load(0) + made.load(1) + made.store_field("source", _PYTHON_SOURCE),
    )
    offered = ("BATCH_READ", "MICRO_BATCH_READ", "STREAMING_WRITE", "TRUNCATE")
    made.method(
        "capabilities",
        signature(returns="java/util/Set"),
        b"".join(made.load_static(_CAPABILITY, name, _CAPABILITY) for name in offered)
        + made.call_static(
            "java/util/EnumSet",
            "of",
            signature(*["java/lang/Enum"] * len(offered), returns="java/util/EnumSet"),
        )
        + made.return_object(),
        stack=len(offered),
        arguments=0,
    )
    made.method(
        "newWriteBuilder",
        signature(_WRITE_INFO, returns=f"{_SQL}/connector/write/WriteBuilder"),
        made.new(_WRITE_BUILDER)
        + (made.load(0) + made.load_field("source", _PYTHON_SOURCE) + made.load_text(_NAME) + made.load(1))
        + made.call_special(_WRITE_BUILDER, "<init>", signature(_PYTHON_SOURCE, _TEXT, _WRITE_INFO))
        + made.return_object(),
        stack=5,
        arguments=1,
    )
    return made


def _write_builder() -> ClassFile:
    interface = f"{_SQL}/internal/connector/SupportsStreamingUpdateAsAppend"
    made = ClassFile(_WRITE_BUILDER, f"{_PYTHON}/PythonWriteBuilder", (interface,))
    made.constructor(_PYTHON_SOURCE, _TEXT, _WRITE_INFO)
    return made
