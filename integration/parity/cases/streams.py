"""Cases about tasks, micro-batches, and changes between two runs of a query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from integration.parity.case import (
    OWN,
    READS,
    SAME,
    AddPartitions,
    Case,
    CaseTemplate,
    CreateTopic,
    DeleteRecords,
    DeleteTopic,
    Expected,
    ForgetLastCommit,
    Kind,
    Produce,
    ReadAgain,
    Run,
    Step,
    Value,
    about,
    both_refuse,
    case,
    different,
    spark_refuses,
    we_refuse,
)
from integration.parity.topics import HALF_EMPTY, PLAIN, SECOND, Topic, numbered

_BATCH: Final = (Kind.BATCH_READ,)
_STREAM: Final = (Kind.STREAM_READ,)
_INVALID: Final = both_refuse("OptionError")
_DATA_LOSS: Final = both_refuse("DataLossError")
_MORE: Final = Produce(batches=(numbered(0, 3, first=4), numbered(1, 1, first=2)))
_THIRD_PARTITION: Final = (AddPartitions(count=3), Produce(batches=(numbered(2, 4),)))
_RECREATED: Final = (
    DeleteTopic(),
    CreateTopic(topic=Topic(partitions=2, batches=(numbered(0, 1),))),
)
_CONTINUOUS: Final = "_LEGACY_ERROR_TEMP_2253"
"""Spark's error condition for a data source without continuous processing."""

_FAST: Final = {"fetchOffset.numRetries": 1, "kafkaConsumer.pollTimeoutMs": 2_000}
_KEEP_GOING: Final = {"failOnDataLoss": False, **_FAST}


def _restarted(
    title: str,
    *between: Step,
    options: Mapping[str, Value] | None = None,
    later: Mapping[str, Value] | None = None,
    expected: Expected = SAME,
    also: tuple[str, ...] = (),
) -> CaseTemplate:
    """Return a case that runs a query twice, with a change between the two runs.

    The second run may use other options. The case's own topic has two partitions, which contain 4
    and 2 records.
    """
    steps = (Run(), *between, Run(options=later or {}))
    return case(title, options, expected, own=_TWO_PARTITIONS, steps=steps, also=also)


_TWO_PARTITIONS: Final = Topic(partitions=2, batches=(numbered(0, 4), numbered(1, 2)))

STREAMS: Final[tuple[Case, ...]] = (
    *about(
        "minPartitions",
        READS,
        *(case(f"{count}", {"minPartitions": count}) for count in (1, 3, 4, 7, 16, 40)),
        case(
            "part of the log",
            {"minPartitions": 5, "startingOffsets": {PLAIN.name: {0: 1, 1: 4, 2: 0}}},
        ),
        case("0", {"minPartitions": 0}, _INVALID),
        case("not a number", {"minPartitions": "a"}, _INVALID),
        case("a fraction", {"minPartitions": "1.0"}, _INVALID),
        case(
            "not set, an empty partition",
            {"subscribe": HALF_EMPTY.name},
            different(
                "A batch read of Spark's connector plans a task for each topic partition, also if "
                "it has no offsets to read. Ours does not plan a task without offsets.",
                partitions=([2], [1]),
            ),
            also=("partitions",),
            kinds=_BATCH,
        ),
    ),
    *about(
        "maxRecordsPerPartition",
        _STREAM,
        *(case(f"{count}", {"maxRecordsPerPartition": count}) for count in (1, 3, 4, 100)),
    ),
    *about(
        "maxRecordsPerPartition",
        READS,
        case("with minPartitions", {"maxRecordsPerPartition": 4, "minPartitions": 9}),
        case("0", {"maxRecordsPerPartition": 0}, _INVALID),
        case("not a number", {"maxRecordsPerPartition": "a"}, _INVALID),
    ),
    *about(
        "maxRecordsPerPartition",
        _BATCH,
        case(
            "4",
            {"maxRecordsPerPartition": 4},
            different(
                "A batch read of Spark's connector ignores the option, unless `minPartitions` is "
                "greater than the number of topic partitions. Ours always applies it.",
                tasks=([[1, 5, 10]], [[1, 2, 3, 3, 3, 4]]),
            ),
        ),
    ),
    *about(
        "maxOffsetsPerTrigger",
        _STREAM,
        *(
            case(f"{count}", {"maxOffsetsPerTrigger": count})
            for count in (1, 7, 10, 1_000, 2**63 - 1)
        ),
        case("two topics", {"subscribe": f"{PLAIN.name},{SECOND.name}", "maxOffsetsPerTrigger": 8}),
        _restarted("after a restart", _MORE, options={"maxOffsetsPerTrigger": 3}),
        case("with Trigger.Once", {"maxOffsetsPerTrigger": 3}, trigger={"once": True}),
        case(
            "0",
            {"maxOffsetsPerTrigger": 0},
            we_refuse(
                "OptionError",
                "With this limit, Spark's connector reads no records. Ours rejects it.",
            ),
        ),
        case("not a number", {"maxOffsetsPerTrigger": "a"}, _INVALID),
    ),
    *about("maxOffsetsPerTrigger", _BATCH, case("set", {"maxOffsetsPerTrigger": 3})),
    *about(
        "minOffsetsPerTrigger",
        _STREAM,
        case("less than available", {"minOffsetsPerTrigger": 5}),
        case("more than available", {"minOffsetsPerTrigger": 1_000}),
        case("with a maximum", {"minOffsetsPerTrigger": 6, "maxOffsetsPerTrigger": 10}),
        _restarted("after a restart", _MORE, options={"minOffsetsPerTrigger": 1_000}),
        case(
            "above the maximum",
            {"minOffsetsPerTrigger": 9, "maxOffsetsPerTrigger": 8},
            _INVALID,
        ),
        case("not a number", {"minOffsetsPerTrigger": "a"}, _INVALID),
    ),
    *about("minOffsetsPerTrigger", _BATCH, case("set", {"minOffsetsPerTrigger": 3})),
    *about(
        "maxTriggerDelay",
        _STREAM,
        case("with a minimum", {"minOffsetsPerTrigger": 1_000, "maxTriggerDelay": "5m"}),
        case("without a minimum", {"maxTriggerDelay": "10s"}),
        case("without a unit", {"minOffsetsPerTrigger": 1_000, "maxTriggerDelay": "100"}),
        case("an unknown unit", {"maxTriggerDelay": "3 fortnights"}, _INVALID),
    ),
    *about("maxTriggerDelay", _BATCH, case("set", {"maxTriggerDelay": "10s"})),
    *about(
        "maxBytesPerTrigger",
        _STREAM,
        case(
            "1",
            {"maxBytesPerTrigger": 1},
            different(
                "Spark's connector ignores the option. Ours limits the size of micro-batches.",
                rows=(16, 16),
                tasks=(1, 10),
                batches=(1, 10),
                offsets=(1, 10),
                commits=(1, 10),
            ),
        ),
    ),
    *about(
        "a restart from a checkpoint",
        _STREAM,
        _restarted("new records", _MORE),
        _restarted("no new records"),
        _restarted("startingOffsets has no effect", _MORE, later={"startingOffsets": "latest"}),
        _restarted("latest, then new records", _MORE, options={"startingOffsets": "latest"}),
        _restarted("a replayed micro-batch", _MORE, Run(), ForgetLastCommit()),
        _restarted("a replayed first micro-batch", ForgetLastCommit(), _MORE),
        _restarted("an added partition", *_THIRD_PARTITION),
        _restarted("an added topic", later={"subscribe": f"{OWN},{SECOND.name}"}),
        _restarted(
            "a removed topic",
            options={"subscribe": f"{OWN},{SECOND.name}"},
            later={"subscribe": OWN},
            expected=both_refuse("CheckpointError"),
        ),
        _restarted(
            "a removed topic, failOnDataLoss=false",
            options={"subscribe": f"{OWN},{SECOND.name}", **_KEEP_GOING},
            later={"subscribe": OWN},
        ),
        _restarted("deleted records that were read", DeleteRecords(before={0: 3}), _MORE),
        _restarted(
            "deleted records",
            _MORE,
            DeleteRecords(before={0: 6}),
            expected=_DATA_LOSS,
        ),
        _restarted(
            "deleted records, failOnDataLoss=false",
            _MORE,
            DeleteRecords(before={0: 6}),
            options=_KEEP_GOING,
        ),
        _restarted("a deleted topic", DeleteTopic(), options=_FAST, expected=_DATA_LOSS),
        _restarted(
            "a deleted topic, failOnDataLoss=false",
            DeleteTopic(),
            options=_KEEP_GOING,
            expected=spark_refuses(
                "Spark's connector fails if a subscribed topic was deleted, although the option is "
                "`false`. Ours continues.",
                rows=6,
            ),
        ),
        _restarted("a recreated topic", *_RECREATED, options=_FAST, expected=_DATA_LOSS),
        _restarted("a recreated topic, failOnDataLoss=false", *_RECREATED, options=_KEEP_GOING),
        _restarted(
            "a truncated new partition",
            *_THIRD_PARTITION,
            DeleteRecords(before={2: 2}),
            expected=_DATA_LOSS,
        ),
        _restarted(
            "a truncated new partition, failOnDataLoss=false",
            *_THIRD_PARTITION,
            DeleteRecords(before={2: 2}),
            options=_KEEP_GOING,
        ),
        _restarted(
            "the files of the checkpoint",
            expected=different(
                "Spark's connector stores the start offsets of the first micro-batch in "
                "`sources/0/0`, which a Python data source cannot write or read.",
                sources=(["0/0"], []),
            ),
            also=("sources",),
        ),
    ),
    *about(
        "a DataFrame that is read again",
        _BATCH,
        *(
            case(
                f"{title}{', a new query' if is_new_query else ''}",
                own=_TWO_PARTITIONS,
                steps=(Run(), *between, ReadAgain(is_new_query=is_new_query)),
            )
            for is_new_query in (False, True)
            for title, between in (
                ("new records", (_MORE,)),
                ("deleted records", (DeleteRecords(before={0: 3}),)),
            )
        ),
        case(
            "an added partition",
            {},
            different(
                "If Spark has planned the DataFrame before the partition was added, Spark's "
                "connector does not read the partition. Ours reads it.",
                rows=(12, 16),
                tasks=([[2, 4], [2, 4]], [[2, 4], [4, 6]]),
            ),
            own=_TWO_PARTITIONS,
            steps=(Run(), *_THIRD_PARTITION, ReadAgain()),
        ),
        case(
            "an added partition, a new query",
            {},
            different(
                "Spark asks a Python data source only once for the tasks of a DataFrame. In later "
                "queries, one of these tasks also reads the added partition.",
                tasks=([[2, 4], [2, 4, 4]], [[2, 4], [4, 6]]),
            ),
            own=_TWO_PARTITIONS,
            steps=(Run(), *_THIRD_PARTITION, ReadAgain(is_new_query=True)),
        ),
        case(
            "a fixed end",
            {"endingOffsets": {OWN: {0: 4, 1: 2}}},
            own=_TWO_PARTITIONS,
            steps=(Run(), _MORE, ReadAgain()),
        ),
    ),
    *about(
        "query.lastProgress",
        _STREAM,
        case("offsets and rows", {"maxOffsetsPerTrigger": 7}, also=("progress",)),
        case(
            "metrics",
            {},
            different(
                "Only Spark's connector reports `minOffsetsBehindLatest`, `maxOffsetsBehindLatest` "
                "and `avgOffsetsBehindLatest`, because Python data sources cannot report metrics.",
                metrics=(3, 0),
            ),
            also=("metrics",),
        ),
    ),
    *about(
        "trigger",
        _STREAM,
        case("once", trigger={"once": True}),
        case("processing time", trigger={"processingTime": "0 seconds"}),
        case(
            "continuous",
            {},
            we_refuse(_CONTINUOUS, "Spark does not offer continuous processing to Python."),
            trigger={"continuous": "1 second"},
        ),
    ),
)
