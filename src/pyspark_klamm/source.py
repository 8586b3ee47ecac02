"""The data source that Spark uses for `.format("klamm")`.

Spark makes an instance in a short-lived Python process for each call, and pickles it to other processes. So
it has options only, and imports everything that takes long where it is used.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

COLUMNS = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)
HEADERS_COLUMN = StructField(
    "headers",
    ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
)
"""The columns of Spark's Kafka connector, this one with the option includeHeaders."""


class KlammSource(DataSource):
    """Topics as tables with a row per record."""

    @classmethod
    def name(cls) -> str:
        return "klamm"

    def schema(self) -> StructType:
        from pyspark_klamm.options import includes_headers

        return StructType([*COLUMNS, HEADERS_COLUMN] if includes_headers(self.options) else [*COLUMNS])

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_klamm.batch_reader import KlammBatchReader
        from pyspark_klamm.options import parse_read_options

        self._check_schema(schema)
        return KlammBatchReader(parse_read_options(self.options, is_stream=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from pyspark_klamm.hang_ups import end_quietly
        from pyspark_klamm.options import parse_read_options
        from pyspark_klamm.stream_reader import KlammStreamReader

        end_quietly()
        self._check_schema(schema)
        return KlammStreamReader(parse_read_options(self.options, is_stream=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_klamm.errors import OptionError
        from pyspark_klamm.sink import KlammWriter, make_sink

        if overwrite:
            raise OptionError(
                "save mode overwrite is not supported for topics, whose records stay: use append"
            )
        return KlammWriter(make_sink(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from pyspark_klamm.sink import KlammStreamWriter, make_sink

        return KlammStreamWriter(make_sink(self.options, schema))

    def _check_schema(self, given: StructType) -> None:
        """Raise if the user gave another schema: the columns of a topic are fixed."""
        from pyspark_klamm.errors import OptionError

        fixed = self.schema()
        if [(each.name, each.dataType) for each in given] != [(each.name, each.dataType) for each in fixed]:
            raise OptionError(
                f"the columns of a topic are fixed, so do not give a schema: {fixed.simpleString()}"
            )
