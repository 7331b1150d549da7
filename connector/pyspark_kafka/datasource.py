"""The data source class, which Spark instantiates to create readers and writers from options.

Spark imports this module each time it looks up data sources. To keep the import fast, each method
imports other modules only when Spark calls the method.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from pyspark_kafka.tracebacks import short_traceback

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class KafkaDataSource(DataSource):
    """The data source for `format("pyspark_kafka")`."""

    @classmethod
    def name(cls) -> str:
        return "pyspark_kafka"

    @short_traceback
    def schema(self) -> StructType:
        """Return the schema of the source.

        `load()` calls this method before Spark determines whether the query is batch or streaming.
        """
        from pyspark_kafka.options.parse import check_source_options  # noqa: PLC0415
        from pyspark_kafka.source.schema import source_schema  # noqa: PLC0415

        return source_schema(include_headers=check_source_options(self.options))

    @short_traceback
    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_kafka.options.parse import parse_source_options  # noqa: PLC0415
        from pyspark_kafka.source.batch_reader import batch_reader  # noqa: PLC0415

        return batch_reader(schema, parse_source_options(self.options, streaming=False))

    @short_traceback
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from pyspark_kafka.errors import PysparkKafkaError  # noqa: PLC0415
        from pyspark_kafka.options.parse import parse_source_options  # noqa: PLC0415
        from pyspark_kafka.source.stream_reader import (  # noqa: PLC0415
            FailedStreamReader,
            KafkaStreamReader,
        )

        try:
            return KafkaStreamReader(schema, parse_source_options(self.options, streaming=True))
        except PysparkKafkaError as error:
            return FailedStreamReader(error)

    @short_traceback
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_kafka.errors import OptionError  # noqa: PLC0415
        from pyspark_kafka.options.parse import parse_sink_options  # noqa: PLC0415
        from pyspark_kafka.sink.writers import batch_writer  # noqa: PLC0415

        if overwrite:
            raise OptionError(
                "A Kafka topic cannot be overwritten.",
                advice="Use mode('append').",
            )
        return batch_writer(parse_sink_options(self.options, streaming=False), schema)

    @short_traceback
    def streamWriter(
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002
    ) -> DataSourceStreamWriter:
        """Return a writer that appends rows.

        `overwrite` is ignored, as in Spark's connector. Spark sets `overwrite` in the `complete`
        output mode.
        """
        from pyspark_kafka.options.parse import parse_sink_options  # noqa: PLC0415
        from pyspark_kafka.sink.writers import stream_writer  # noqa: PLC0415

        return stream_writer(parse_sink_options(self.options, streaming=True), schema)
