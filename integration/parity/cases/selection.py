"""Cases about what to read: brokers, topics, partitions, columns and transactions."""

from __future__ import annotations

from typing import Final

from integration.parity.case import (
    OWN,
    READS,
    SERVERS,
    Case,
    Kind,
    about,
    both_refuse,
    case,
    different,
    spark_refuses,
    we_refuse,
)
from integration.parity.cases.reasons import IGNORED_OPTION
from integration.parity.topics import (
    ABORTED,
    COMPACTED,
    EMPTY,
    ENDED,
    HALF_EMPTY,
    LOG_APPEND_TIME,
    OPEN,
    PLAIN,
    RICH,
    SECOND,
    TRUNCATED,
)

_BATCH: Final = (Kind.BATCH_READ,)
_STREAM: Final = (Kind.STREAM_READ,)
_COMMITTED: Final = {"kafka.isolation.level": "read_committed"}
_UNCOMMITTED: Final = {"kafka.isolation.level": "read_uncommitted"}
_MISSING: Final = "parity-missing"
_UNKNOWN_TOPIC: Final = both_refuse("UnknownTopicOrPartitionError")
_INVALID: Final = both_refuse("OptionError")
_DATA_LOSS: Final = both_refuse("DataLossError")
_NO_SUCH_PARTITION: Final = we_refuse(
    "OptionError",
    "Spark's connector ignores a partition that does not exist, so the query never reads it. Ours "
    "rejects it.",
)

SELECTION: Final[tuple[Case, ...]] = (
    *about(
        "kafka.bootstrap.servers",
        READS,
        case("several", {"kafka.bootstrap.servers": f" 127.0.0.1:1, {SERVERS},"}),
        case("missing", {"subscribe": PLAIN.name}, _INVALID, is_complete=True),
        case("no port", {"kafka.bootstrap.servers": "localhost"}, _INVALID),
        case(
            "unreachable",
            {
                "kafka.bootstrap.servers": "127.0.0.1:1",
                "kafka.default.api.timeout.ms": 2_000,
                "kafka.request.timeout.ms": 1_000,
                "fetchOffset.numRetries": 1,
            },
            both_refuse("BrokerUnreachableError"),
        ),
    ),
    *about(
        "subscribe",
        READS,
        case("one topic", {"subscribe": PLAIN.name}),
        case("two topics and spaces", {"subscribe": f" {PLAIN.name} ,, {SECOND.name} "}),
        case("the same topic twice", {"subscribe": f"{PLAIN.name},{PLAIN.name}"}),
        case("upper-case option name", {"SUBSCRIBE": PLAIN.name}),
        case("a topic without records", {"subscribe": EMPTY.name}),
        case("a topic with an empty partition", {"subscribe": HALF_EMPTY.name}),
        case("a missing topic", {"subscribe": _MISSING}, _UNKNOWN_TOPIC),
        case("one missing topic", {"subscribe": f"{PLAIN.name},{_MISSING}"}, _UNKNOWN_TOPIC),
        case("an invalid topic name", {"subscribe": "a b"}, _INVALID),
        case("blank", {"subscribe": " "}, _INVALID),
        case("only commas", {"subscribe": ","}, _INVALID),
        case("missing", {"kafka.bootstrap.servers": SERVERS}, _INVALID, is_complete=True),
        case("with assign", {"subscribe": PLAIN.name, "assign": {PLAIN.name: [0]}}, _INVALID),
        case("with a pattern", {"subscribe": PLAIN.name, "subscribePattern": "p.*"}, _INVALID),
    ),
    *about(
        "assign",
        READS,
        case("some partitions of two topics", {"assign": {PLAIN.name: [0, 2], SECOND.name: [1]}}),
        case("the same partition twice", {"assign": {PLAIN.name: [1, 1]}}),
        case("a missing partition", {"assign": {PLAIN.name: [0, 7]}}, _NO_SUCH_PARTITION),
        case("a negative partition", {"assign": {PLAIN.name: [-1]}}, _NO_SUCH_PARTITION),
        case("no partitions", {"assign": "{}"}, _NO_SUCH_PARTITION),
        case("a missing topic", {"assign": {_MISSING: [0]}}, _UNKNOWN_TOPIC),
        case("not JSON", {"assign": "0,1"}, _INVALID),
        case("invalid JSON", {"assign": "{"}, _INVALID),
        case("not a list", {"assign": {PLAIN.name: 0}}, _INVALID),
    ),
    *about(
        "subscribePattern",
        READS,
        case("two topics", {"subscribePattern": "parity-(plain|second)"}),
        case("a prefix", {"subscribePattern": "parity-pl.*"}),
        case("a part of the name", {"subscribePattern": "ity-plai"}),
        case("with an internal topic", {"subscribePattern": "(__consumer_offsets|parity-plain)"}),
        case("no matching topic", {"subscribePattern": "parity-none-.*"}, kinds=_BATCH),
        case(
            "no matching topic",
            {"subscribePattern": "parity-none-.*"},
            different(
                "Spark's connector runs no micro-batch until a topic matches. Ours runs an empty "
                "micro-batch with the offset `{}`.",
                tasks=([], [[]]),
                batches=([], [[0, 0]]),
                offsets=(0, 1),
                commits=(0, 1),
            ),
            kinds=_STREAM,
        ),
        case(
            "Java syntax",
            {"subscribePattern": r"parity-plai\p{Lower}"},
            we_refuse("OptionError", "Ours accepts the syntax of Python's `re`, not of Java."),
        ),
        case("an invalid expression", {"subscribePattern": "("}, _INVALID),
        case("blank", {"subscribePattern": " "}, _INVALID),
    ),
    *about(
        "includeHeaders",
        READS,
        case("true", {"subscribe": RICH.name, "includeHeaders": True}),
        case("false", {"subscribe": RICH.name, "includeHeaders": False}),
        case("upper case", {"subscribe": RICH.name, "includeHeaders": "TRUE"}),
        case("invalid", {"includeHeaders": "maybe"}, _INVALID),
    ),
    *about(
        "columns of a read",
        READS,
        case(
            "a projection",
            {"subscribe": RICH.name, "includeHeaders": True},
            select="SELECT headers, offset, key FROM records",
        ),
        case(
            "filters",
            select="SELECT partition, offset FROM records WHERE partition = 1 AND offset >= 2 "
            "AND timestamp < TIMESTAMP '2023-11-14 22:13:24'",
        ),
        case("no column", select="SELECT 1 AS one FROM records"),
        case(
            "LogAppendTime",
            {"subscribe": LOG_APPEND_TIME.name},
            select="SELECT timestampType, value, offset, "
            "timestamp > TIMESTAMP '2024-01-01' AS is_recent FROM records",
        ),
        case(
            "an aggregate",
            select="SELECT partition, count(*) AS n, max(timestamp) AS last FROM records "
            "GROUP BY partition",
            kinds=_BATCH,
        ),
        case(
            "a limit",
            select="SELECT count(*) AS n FROM (SELECT * FROM records LIMIT 3)",
            kinds=_BATCH,
        ),
        case(
            "a self-join",
            select="SELECT a.partition, a.offset, b.value FROM records a JOIN records b "
            "ON a.partition = b.partition AND a.offset = b.offset",
            kinds=_BATCH,
        ),
        case(
            "a schema",
            {},
            spark_refuses(
                "Only ours accepts a schema, which selects columns. Spark's connector rejects it.",
                rows=16,
            ),
            schema="offset BIGINT, value BINARY",
        ),
    ),
    *about(
        "kafka.isolation.level",
        READS,
        case("committed, ended transactions", {"subscribe": ENDED.name, **_COMMITTED}),
        case("uncommitted, ended transactions", {"subscribe": ENDED.name, **_UNCOMMITTED}),
        case("committed, an open transaction", {"subscribe": OPEN.name, **_COMMITTED}),
        case("uncommitted, an open transaction", {"subscribe": OPEN.name, **_UNCOMMITTED}),
        case("committed, an aborted transaction", {"subscribe": ABORTED.name, **_COMMITTED}),
        case("uncommitted, an aborted transaction", {"subscribe": ABORTED.name, **_UNCOMMITTED}),
        *(
            case(
                "not set",
                {"subscribe": OPEN.name},
                different(
                    "The default of Spark's connector is `read_uncommitted`. Ours is "
                    "`read_committed`, so that a replayed micro-batch has the same rows.",
                    rows=(5, 2),
                    tasks=([[5]], [[2]]),
                    **aspects,
                ),
                kinds=kinds,
            )
            for kinds, aspects in (
                (_BATCH, {}),
                (_STREAM, {"batches": ([[0, 5]], [[0, 2]]), "offsets": (1, 1)}),
            )
        ),
        case("invalid", {"kafka.isolation.level": "serializable"}, _INVALID),
    ),
    *about(
        "failOnDataLoss",
        READS,
        case("a log that starts later", {"subscribe": TRUNCATED.name}),
        case("a compacted topic", {"subscribe": COMPACTED.name}),
        case(
            "a start before the log start",
            {"subscribe": TRUNCATED.name, "startingOffsets": {TRUNCATED.name: {0: 1, 1: 0}}},
            _DATA_LOSS,
        ),
        case(
            "a start before the log start, false",
            {
                "subscribe": TRUNCATED.name,
                "startingOffsets": {TRUNCATED.name: {0: 1, 1: 0}},
                "failOnDataLoss": False,
            },
        ),
        case(
            "a start after the log end",
            {"startingOffsets": {PLAIN.name: {0: 50, 1: 0, 2: 0}}},
            _DATA_LOSS,
        ),
        *(
            case(
                "a start after the log end, false",
                {
                    "startingOffsets": {PLAIN.name: {0: 50, 1: 0, 2: 0}},
                    "failOnDataLoss": False,
                },
                **more,
            )
            for more in (
                {"kinds": _STREAM},
                {
                    "kinds": _BATCH,
                    "expected": spark_refuses(
                        "A batch read of Spark's connector fails although the option is `false`. "
                        "Ours reads the other partitions.",
                        rows=6,
                    ),
                },
            )
        ),
        case(
            "an end after the log end",
            {
                "endingOffsets": {PLAIN.name: {0: 50, 1: -1, 2: -1}},
                "kafkaConsumer.pollTimeoutMs": 1_000,
            },
            _DATA_LOSS,
            kinds=_BATCH,
        ),
        case(
            "an end after the log end, false",
            {
                "endingOffsets": {PLAIN.name: {0: 50, 1: -1, 2: -1}},
                "kafkaConsumer.pollTimeoutMs": 1_000,
                "failOnDataLoss": False,
            },
            kinds=_BATCH,
        ),
        case(
            "an end before the log start",
            {"subscribe": TRUNCATED.name, "endingOffsets": {TRUNCATED.name: {0: 2, 1: 1}}},
            _DATA_LOSS,
            kinds=_BATCH,
        ),
        case("invalid", {"failOnDataLoss": "maybe"}, _INVALID),
    ),
    *about(
        "an unknown option",
        READS,
        case("misspelled", {"startingOfsets": "earliest"}, IGNORED_OPTION),
        case("a path", {"path": "/data"}, IGNORED_OPTION),
        case("an option of a write", {"topic": OWN}, IGNORED_OPTION),
    ),
)
