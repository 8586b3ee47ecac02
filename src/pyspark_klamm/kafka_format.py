"""The jar that makes `.format("kafka")` mean this data source, and the maker of that jar.

Spark refuses the name "kafka" before it asks Python data sources for it. A jar with two small classes changes
that; what they do and why is in jar_source/ beside this file. The jar ships ready. It is made by

    python -m pyspark_klamm.kafka_format FILE

from nothing but this file, without a Java compiler, and always to the same bytes. Where Spark's own connector
is on the class path too Spark takes that one, and the jar does nothing.
"""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

from pyspark_klamm.class_file import ClassFile

JAR_NAME = "klamm-kafka-format.jar"

_SQL = "org/apache/spark/sql"
_PYTHON_SOURCE = f"{_SQL}/execution/datasources/v2/python/PythonDataSourceV2"
_PYTHON_TABLE = f"{_SQL}/execution/datasources/v2/python/PythonTable"
_SCHEMA = f"{_SQL}/types/StructType"
_CAPABILITY = f"{_SQL}/connector/catalog/TableCapability"
_WRITER = f"{_SQL}/DataFrameWriter"
_TEXT = "java/lang/String"
_OURS, _TABLE = "kafka/DefaultSource", "kafka/TopicTable"


def jar_path() -> Path:
    """The jar of this package, for `spark.jars`."""
    return Path(__file__).with_name(JAR_NAME)


def make_jar() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as jar:
        entries = {
            "META-INF/MANIFEST.MF": b"Manifest-Version: 1.0\r\n\r\n",
            f"{_OURS}.class": _source_class().to_bytes(),
            f"{_TABLE}.class": _table_class().to_bytes(),
        }
        for name, content in entries.items():
            # Stored and without a date, so that neither the day nor the version of zlib shows in the bytes.
            entry = zipfile.ZipInfo(name)
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            jar.writestr(entry, content)
    return made.getvalue()


def _signature(*arguments: str, returns: str = "") -> str:
    """A descriptor from the names of classes; without `returns` there is no result."""
    types = [name if name.startswith("[") else f"L{name};" for name in arguments]
    return f"({''.join(types)}){f'L{returns};' if returns else 'V'}"


def _source_class() -> ClassFile:
    made = ClassFile(_OURS, _PYTHON_SOURCE, (f"{_SQL}/sources/CreatableRelationProvider",))
    made.method(
        "<init>",
        _signature(),
        made.load(0) + made.call_constructor(_PYTHON_SOURCE, _signature()) + made.return_nothing(),
        stack=1,
        arguments=0,
    )
    made.method(
        "getTable",
        _signature(
            *(_SCHEMA, f"[L{_SQL}/connector/expressions/Transform;", "java/util/Map"),
            returns=f"{_SQL}/connector/catalog/Table",
        ),
        made.new(_TABLE)
        + (made.load(0) + made.load_text("kafka") + made.load(1))
        + made.call_constructor(_TABLE, _signature(_PYTHON_SOURCE, _TEXT, _SCHEMA))
        + made.return_object(),
        stack=5,
        arguments=3,
    )
    made.method(
        "createRelation",
        _signature(
            *(f"{_SQL}/SQLContext", f"{_SQL}/SaveMode", "scala/collection/immutable/Map", f"{_SQL}/Dataset"),
            returns=f"{_SQL}/sources/BaseRelation",
        ),
        made.load(4)
        + made.call(f"{_SQL}/Dataset", "write", _signature(returns=_WRITER))
        + made.load_text("klamm")
        + made.call(_WRITER, "format", _signature(_TEXT, returns=_WRITER))
        + made.load(3)
        + made.call(_WRITER, "options", _signature("scala/collection/Map", returns=_WRITER))
        + (made.load(2) + made.call(f"{_SQL}/SaveMode", "name", _signature(returns=_TEXT)))
        + (made.load_text("ErrorIfExists") + made.load_text("Append"))
        + made.call(_TEXT, "replace", "(Ljava/lang/CharSequence;Ljava/lang/CharSequence;)Ljava/lang/String;")
        + made.call(_WRITER, "mode", _signature(_TEXT, returns=_WRITER))
        + made.call(_WRITER, "save", _signature())
        + (made.load_null() + made.return_object()),
        stack=4,
        arguments=4,
    )
    return made


def _table_class() -> ClassFile:
    made = ClassFile(_TABLE, _PYTHON_TABLE)
    constructor = _signature(_PYTHON_SOURCE, _TEXT, _SCHEMA)
    made.method(
        "<init>",
        constructor,
        b"".join(made.load(variable) for variable in range(4))
        + made.call_constructor(_PYTHON_TABLE, constructor)
        + made.return_nothing(),
        stack=4,
        arguments=3,
    )
    offered = ("BATCH_READ", "MICRO_BATCH_READ", "STREAMING_WRITE", "TRUNCATE")
    made.method(
        "capabilities",
        _signature(returns="java/util/Set"),
        b"".join(made.load_static(_CAPABILITY, name, f"L{_CAPABILITY};") for name in offered)
        + made.call_static(
            "java/util/EnumSet",
            "of",
            _signature(*["java/lang/Enum"] * len(offered), returns="java/util/EnumSet"),
        )
        + made.return_object(),
        stack=len(offered),
        arguments=0,
    )
    return made


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(make_jar())
