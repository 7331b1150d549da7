"""Cases about writes: columns, topics and modes. `run.INPUT` contains the rows to write."""

from __future__ import annotations

from typing import Final

from integration.parity.case import (
    OWN,
    SERVERS,
    WRITES,
    Case,
    Kind,
    about,
    both_refuse,
    case,
    different,
    we_refuse,
)
from integration.parity.cases.reasons import IGNORED_OPTION
from integration.parity.topics import Topic

_BATCH: Final = (Kind.BATCH_WRITE,)
_STREAM: Final = (Kind.STREAM_WRITE,)
_FIVE: Final = Topic(partitions=5)
_VALUE: Final = "SELECT v AS value FROM records"
_COUNTS: Final = (
    "SELECT string(n) AS key, string(count(*)) AS value FROM records WHERE n >= 0 GROUP BY n"
)
_NO_TOPIC: Final = {"kafka.bootstrap.servers": SERVERS}
_IMPATIENT: Final = {
    "kafka.max.block.ms": 3_000,
    "kafka.delivery.timeout.ms": 4_000,
    "kafka.request.timeout.ms": 2_000,
}
_INVALID: Final = both_refuse("OptionError")
_INVALID_COLUMN: Final = both_refuse("SchemaError")
_INVALID_ROW: Final = both_refuse("RowError")
_SUPPORTS_APPEND: Final = (
    "Spark rejects the mode for Python data sources. Set the mode to `append`."
)
_IGNORED_COLUMN: Final = we_refuse(
    "SchemaError",
    "Spark's connector ignores the column, so its content is lost. Ours rejects it.",
)

COLUMNS: Final[tuple[Case, ...]] = (
    *about(
        "value column",
        WRITES,
        case("string", select=_VALUE),
        case("binary", select="SELECT CAST(v AS BINARY) AS value FROM records"),
        case("null", select="SELECT CAST(NULL AS STRING) AS value FROM records"),
        case("char", select="SELECT CAST(v AS CHAR(4)) AS value FROM records"),
        case("int", {}, _INVALID_COLUMN, select="SELECT 1 AS value FROM records"),
        case("missing", {}, _INVALID_COLUMN, select="SELECT k AS key FROM records"),
        case("upper-case name", {}, _INVALID_COLUMN, select="SELECT v AS VALUE FROM records"),
    ),
    *about(
        "key column",
        WRITES,
        case("string", select="SELECT k AS key, v AS value FROM records"),
        case("binary", select="SELECT CAST(k AS BINARY) AS key, v AS value FROM records"),
        case("int", {}, _INVALID_COLUMN, select="SELECT 1 AS key, v AS value FROM records"),
        case(
            "partitions of 40 keys",
            own=_FIVE,
            select="SELECT concat('key-', id) AS key, v AS value FROM records "
            "CROSS JOIN (SELECT explode(sequence(1, 40)) AS id)",
        ),
        case(
            "partition of the empty key",
            own=_FIVE,
            select="SELECT '' AS key, v AS value FROM records",
        ),
    ),
    *about(
        "partition column",
        WRITES,
        case(
            "int",
            own=_FIVE,
            select="SELECT v AS value, n AS partition FROM records WHERE n IS NOT NULL",
        ),
        case(
            "null in some rows",
            own=_FIVE,
            select="SELECT coalesce(k, 'x') AS key, v AS value, n AS partition FROM records",
        ),
        case(
            "a missing partition",
            _IMPATIENT,
            _INVALID_ROW,
            select="SELECT v AS value, 7 AS partition FROM records",
        ),
        case(
            "negative", {}, _INVALID_ROW, select="SELECT v AS value, -1 AS partition FROM records"
        ),
        case("long", {}, _INVALID_COLUMN, select="SELECT v AS value, 0L AS partition FROM records"),
        case(
            "string",
            {},
            _INVALID_COLUMN,
            select="SELECT v AS value, '0' AS partition FROM records",
        ),
    ),
    *about(
        "headers column",
        WRITES,
        case(
            "equal names, null and empty values",
            select="SELECT v AS value, array("
            "named_struct('key', 'a', 'value', CAST('1' AS BINARY)), "
            "named_struct('key', 'a', 'value', CAST(NULL AS BINARY)), "
            "named_struct('key', '', 'value', CAST('' AS BINARY))) AS headers FROM records",
        ),
        case(
            "null",
            select="SELECT v AS value, "
            "CAST(NULL AS array<struct<key:string,value:binary>>) AS headers FROM records",
        ),
        case(
            "empty",
            select="SELECT v AS value, "
            "CAST(array() AS array<struct<key:string,value:binary>>) AS headers FROM records",
        ),
        case(
            "a null name",
            {},
            _INVALID_ROW,
            select="SELECT v AS value, array(named_struct('key', CAST(NULL AS STRING), "
            "'value', CAST('1' AS BINARY))) AS headers FROM records",
        ),
        case(
            "a null header",
            {},
            _INVALID_ROW,
            select="SELECT v AS value, "
            "CAST(array(NULL) AS array<struct<key:string,value:binary>>) AS headers FROM records",
        ),
        case(
            "string values",
            {},
            _INVALID_COLUMN,
            select="SELECT v AS value, array(named_struct('key', 'a', 'value', '1')) AS headers "
            "FROM records",
        ),
        case(
            "other field names",
            {},
            _INVALID_COLUMN,
            select="SELECT v AS value, "
            "array(named_struct('name', 'a', 'content', CAST('1' AS BINARY))) AS headers "
            "FROM records",
        ),
        case(
            "a map",
            {},
            _INVALID_COLUMN,
            select="SELECT v AS value, map('a', CAST('1' AS BINARY)) AS headers FROM records",
        ),
    ),
    *about(
        "topic column",
        WRITES,
        case(
            "string",
            _NO_TOPIC,
            is_complete=True,
            select="SELECT '{own}' AS topic, v AS value FROM records",
        ),
        case(
            "null",
            _NO_TOPIC,
            _INVALID_ROW,
            is_complete=True,
            select="SELECT CAST(NULL AS STRING) AS topic, v AS value FROM records",
        ),
        case(
            "int",
            _NO_TOPIC,
            _INVALID_COLUMN,
            is_complete=True,
            select="SELECT 1 AS topic, v AS value FROM records",
        ),
    ),
    *about(
        "topic",
        WRITES,
        case("set", {"topic": OWN}, select=_VALUE),
        case("with spaces", {"topic": f" {OWN} "}, select=_VALUE),
        case(
            "takes precedence",
            {"topic": OWN},
            select="SELECT 'other' AS topic, v AS value FROM records",
        ),
        case(
            "takes precedence over null",
            {"topic": OWN},
            select="SELECT CAST(NULL AS STRING) AS topic, v AS value FROM records",
        ),
        case("missing", _NO_TOPIC, _INVALID, is_complete=True, select=_VALUE),
        case("an invalid name", {"topic": "a b", **_IMPATIENT}, _INVALID, select=_VALUE),
    ),
    *about(
        "kafka.bootstrap.servers",
        WRITES,
        case("several", {"kafka.bootstrap.servers": f"127.0.0.1:1,{SERVERS}"}, select=_VALUE),
        case("missing", {"topic": OWN}, _INVALID, is_complete=True, select=_VALUE),
        case(
            "unreachable",
            {"kafka.bootstrap.servers": "127.0.0.1:1", **_IMPATIENT},
            both_refuse("DeliveryError"),
            select=_VALUE,
        ),
    ),
    *about(
        "rows",
        WRITES,
        case("none", select="SELECT v AS value FROM records WHERE false"),
        case(
            "one that is too large",
            _IMPATIENT,
            both_refuse("DeliveryError"),
            own=Topic(configs={"max.message.bytes": "1000"}),
            select="SELECT repeat('x', 3000) AS value FROM records LIMIT 1",
        ),
    ),
    *about(
        "timestamp column",
        WRITES,
        case(
            "timestamp",
            {},
            different(
                "Spark's connector ignores the column. Ours sets the timestamps of the records.",
                records=(5, 5),
            ),
            select="SELECT v AS value, t AS timestamp FROM records",
        ),
        case(
            "string",
            {},
            we_refuse("SchemaError", "Ours writes the column, and accepts only timestamps."),
            select="SELECT v AS value, '2024' AS timestamp FROM records",
        ),
    ),
    *about(
        "another column",
        WRITES,
        case(
            "an unknown column",
            {},
            _IGNORED_COLUMN,
            select="SELECT v AS value, n AS amount FROM records",
        ),
        case(
            "the columns of a read",
            {},
            _IGNORED_COLUMN,
            select="SELECT k AS key, v AS value, 'x' AS topic, 0 AS partition, 5L AS offset, "
            "t AS timestamp, 0 AS timestampType FROM records",
        ),
    ),
    *about(
        "includeHeaders",
        WRITES,
        case(
            "true",
            {"includeHeaders": True},
            select="SELECT v AS value, "
            "array(named_struct('key', 'a', 'value', CAST('1' AS BINARY))) AS headers FROM records",
        ),
    ),
    *about(
        "save mode",
        _BATCH,
        case("append", mode="append", select=_VALUE),
        case("overwrite", {}, _INVALID, mode="overwrite", select=_VALUE),
        case(
            "ignore",
            {},
            both_refuse("UNSUPPORTED_DATA_SOURCE_SAVE_MODE"),
            mode="ignore",
            select=_VALUE,
        ),
        case(
            "error",
            {},
            we_refuse("UNSUPPORTED_DATA_SOURCE_SAVE_MODE", _SUPPORTS_APPEND),
            mode="error",
            select=_VALUE,
        ),
        case(
            "not set",
            {},
            we_refuse("UNSUPPORTED_DATA_SOURCE_SAVE_MODE", _SUPPORTS_APPEND),
            mode=None,
            select=_VALUE,
        ),
    ),
    *about(
        "output mode",
        _STREAM,
        case("not set", mode=None, select=_VALUE),
        case("complete", mode="complete", select=_COUNTS),
        case(
            "update",
            {},
            we_refuse(
                "STREAM_FAILED",
                "Spark rejects the mode for Python sinks. Use `complete` or `foreachBatch`.",
            ),
            mode="update",
            select=_COUNTS,
        ),
    ),
    *about(
        "trigger",
        _STREAM,
        case("once", select=_VALUE, trigger={"once": True}),
        case(
            "asynchronous progress tracking",
            {"asyncProgressTrackingEnabled": True},
            we_refuse("IllegalArgumentException", "Spark supports it only for its own connector."),
            select=_VALUE,
            trigger={"processingTime": "0 seconds"},
        ),
    ),
    *about(
        "an unknown option",
        WRITES,
        case("misspelled", {"topics": "x"}, IGNORED_OPTION, select=_VALUE),
        case("a path", {"path": "/data"}, IGNORED_OPTION, select=_VALUE),
        case("an option of a read", {"startingOffsets": "latest"}, IGNORED_OPTION, select=_VALUE),
    ),
)
