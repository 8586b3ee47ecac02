"""The data source: what Spark asks for by `.format("klamm")`, and what it gets.

An instance is made in a short-lived Python process for each question, and travels to others by pickle. So it
holds options only, and everything that takes long to import is imported where it is used.
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
    """Topics as tables: a row per record."""

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
        from pyspark_klamm.options import parse_read_options
        from pyspark_klamm.stream_reader import KlammStreamReader

        self._check_schema(schema)
        return KlammStreamReader(parse_read_options(self.options, is_stream=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_klamm.errors import OptionError
        from pyspark_klamm.sink import KlammWriter, make_sink

        if overwrite:
            raise OptionError("save mode overwrite is not allowed for topics: records stay; use append")
        return KlammWriter(make_sink(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from pyspark_klamm.sink import KlammStreamWriter, make_sink

        return KlammStreamWriter(make_sink(self.options, schema))

    def _check_schema(self, given: StructType) -> None:
        """The columns are fixed; those of a user's own could not be filled."""
        from pyspark_klamm.errors import OptionError

        fixed = self.schema()
        if [(each.name, each.dataType) for each in given] != [(each.name, each.dataType) for each in fixed]:
            raise OptionError(
                f"the columns of a topic are fixed, so leave out the schema: {fixed.simpleString()}"
            )
