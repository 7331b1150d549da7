"""Cases about where a query starts and ends: offsets and timestamps."""

from __future__ import annotations

from typing import Final

from integration.parity.case import (
    READS,
    SERVERS,
    Case,
    Kind,
    Value,
    about,
    both_refuse,
    case,
    spark_refuses,
    we_refuse,
)
from integration.parity.cases.reasons import empty_first_batch
from integration.parity.topics import EMPTY, GROUP, PLAIN, T0

_BATCH: Final = (Kind.BATCH_READ,)
_STREAM: Final = (Kind.STREAM_READ,)
_INVALID: Final = both_refuse("OptionError")
_LATEST_WITHOUT_MATCH: Final = {"startingOffsetsByTimestampStrategy": "latest"}


def _each(first: int, second: int, third: int) -> dict[str, dict[int, int]]:
    """Map the partitions of `PLAIN`, which contain 10, 5 and 1 records, to the numbers."""
    return {PLAIN.name: {0: first, 1: second, 2: third}}


def _at(seconds: int) -> int:
    """Return the timestamp of the record with this offset in every partition of `PLAIN`."""
    return T0 + 1_000 * seconds


_LATER: Final = _at(1_000_000)
_ONLY_TWO: Final = {PLAIN.name: {0: 0, 1: 0}}


def _starting(offsets: Value, **more: Value) -> dict[str, Value]:
    return {"startingOffsets": offsets, **more}


def _ending(offsets: Value, **more: Value) -> dict[str, Value]:
    return {"endingOffsets": offsets, **more}


OFFSETS: Final[tuple[Case, ...]] = (
    *about(
        "startingOffsets",
        READS,
        case(
            "not set",
            {"subscribe": PLAIN.name, "kafka.bootstrap.servers": SERVERS},
            is_complete=True,
        ),
        case("earliest", _starting("earliest")),
        case("upper case and spaces", _starting(" EARLIEST ")),
        case("an offset for each partition", _starting(_each(7, 4, 0))),
        case("earliest for one partition", _starting(_each(-2, 4, 1))),
        case("the log end of each partition", _starting(_each(10, 5, 1))),
        case("latest", _starting("latest"), kinds=_STREAM),
        case("latest", _starting("latest"), _INVALID, kinds=_BATCH),
        case("latest for one partition", _starting(_each(8, -1, 0)), _INVALID, kinds=_BATCH),
        case(
            "latest for one partition",
            _starting(_each(8, -1, 0)),
            empty_first_batch(rows=3, tasks=[1, 2]),
            kinds=_STREAM,
        ),
        case("a partition is missing", _starting(_ONLY_TWO), _INVALID),
        case("an unknown partition", _starting({PLAIN.name: {0: 0, 1: 0, 2: 0, 3: 0}}), _INVALID),
        case("an unknown topic", _starting({**_each(0, 0, 0), "other": {0: 0}}), _INVALID),
        case("below -2", _starting(_each(-3, 0, 0)), _INVALID),
        case("not a number", _starting({PLAIN.name: {0: "one", 1: 0, 2: 0}}), _INVALID),
        case("an unknown name", _starting("newest"), _INVALID),
        case("invalid JSON", _starting("{"), _INVALID),
        case(
            "committed",
            {"startingOffsets": "committed", "kafka.group.id": GROUP},
            spark_refuses("Only ours can start at the committed offsets of a group.", rows=9),
        ),
    ),
    *about(
        "endingOffsets",
        _BATCH,
        case("latest", _ending("latest")),
        case("an offset for each partition", _ending(_each(3, 2, 1))),
        case("latest for one partition", _ending(_each(3, -1, 1))),
        case("with startingOffsets", _starting(_each(2, -2, 0), endingOffsets=_each(8, 2, -1))),
        case("equal to startingOffsets", _starting(_each(2, 1, 0), endingOffsets=_each(2, 5, 0))),
        case("0", _ending(_each(0, 0, 0))),
        case("earliest", _ending("earliest"), _INVALID),
        case("earliest for one partition", _ending(_each(-2, 1, 1)), _INVALID),
        case(
            "less than startingOffsets",
            _starting(_each(5, 0, 0), endingOffsets=_each(3, 5, 1)),
            _INVALID,
        ),
        case(
            "other partitions than startingOffsets",
            _starting(_each(0, 0, 0), endingOffsets=_ONLY_TWO),
            _INVALID,
        ),
        case("a partition is missing", _ending(_ONLY_TWO), _INVALID),
        case(
            "less than the offset of a timestamp",
            _ending(_each(2, -1, -1), startingTimestamp=_at(4), **_LATEST_WITHOUT_MATCH),
            _INVALID,
        ),
    ),
    *about("endingOffsets", _STREAM, case("set", _ending("latest"), _INVALID)),
    *about(
        "startingTimestamp",
        READS,
        case("the timestamp of a record", {"startingTimestamp": _at(0)}),
        case("0", {"startingTimestamp": 0}),
        case("with spaces", {"startingTimestamp": f" {_at(0)} "}),
        case(
            "takes precedence",
            {
                "startingTimestamp": _at(0),
                "startingOffsetsByTimestamp": _each(_at(9), _at(9), _at(9)),
                "startingOffsets": _each(10, 5, 1),
            },
        ),
        case("no record in one partition", {"startingTimestamp": _at(1)}, _INVALID),
        case("no records", {"subscribe": EMPTY.name, "startingTimestamp": _at(0)}, _INVALID),
        case("negative", {"startingTimestamp": -5}, _INVALID),
        case("not a number", {"startingTimestamp": "yesterday"}, _INVALID),
    ),
    *about(
        "startingOffsetsByTimestamp",
        READS,
        case(
            "a timestamp for each partition",
            {"startingOffsetsByTimestamp": _each(_at(9), _at(2), _at(0))},
        ),
        case(
            "takes precedence",
            {
                "startingOffsetsByTimestamp": _each(_at(9), _at(2) + 1, _at(0)),
                "startingOffsets": "earliest",
            },
        ),
        case(
            "no record in one partition",
            {"startingOffsetsByTimestamp": _each(_at(9), _at(2), _LATER)},
            _INVALID,
        ),
        case("a partition is missing", {"startingOffsetsByTimestamp": _ONLY_TWO}, _INVALID),
        case("invalid JSON", {"startingOffsetsByTimestamp": "{"}, _INVALID),
    ),
    *about(
        "startingOffsetsByTimestampStrategy",
        READS,
        case("upper case", {"startingTimestamp": 0, "startingOffsetsByTimestampStrategy": "ERROR"}),
        case("without a timestamp", _LATEST_WITHOUT_MATCH),
        case(
            "latest, no record",
            {"startingTimestamp": _LATER, **_LATEST_WITHOUT_MATCH},
        ),
        case("latest", {"startingTimestamp": _at(4), **_LATEST_WITHOUT_MATCH}, kinds=_BATCH),
        case(
            "latest",
            {"startingTimestamp": _at(4), **_LATEST_WITHOUT_MATCH},
            empty_first_batch(rows=7, tasks=[1, 6]),
            kinds=_STREAM,
        ),
        case(
            "latest, by partition",
            {"startingOffsetsByTimestamp": _each(_at(9), _LATER, _LATER), **_LATEST_WITHOUT_MATCH},
            kinds=_BATCH,
        ),
        case(
            "latest, by partition",
            {"startingOffsetsByTimestamp": _each(_at(9), _LATER, _LATER), **_LATEST_WITHOUT_MATCH},
            empty_first_batch(rows=1, tasks=[1]),
            kinds=_STREAM,
        ),
        case(
            "error",
            {"startingTimestamp": _at(1), "startingOffsetsByTimestampStrategy": "error"},
            _INVALID,
        ),
        case(
            "invalid",
            {"startingTimestamp": _at(0), "startingOffsetsByTimestampStrategy": "skip"},
            _INVALID,
        ),
    ),
    *about(
        "endingTimestamp",
        _BATCH,
        case("the timestamp of a record", {"endingTimestamp": _at(3)}),
        case("between two records", {"endingTimestamp": _at(3) + 1}),
        case("with startingTimestamp", {"startingTimestamp": _at(0), "endingTimestamp": _at(1)}),
        case("after all records", {"endingTimestamp": _LATER}),
        case("before all records", {"endingTimestamp": 0}),
        case(
            "takes precedence",
            {
                "endingTimestamp": _at(3),
                "endingOffsetsByTimestamp": _each(_at(1), _at(1), _at(1)),
                "endingOffsets": _each(1, 1, 1),
            },
        ),
        case(
            "less than startingTimestamp",
            {"startingTimestamp": _at(4), "endingTimestamp": _at(2), **_LATEST_WITHOUT_MATCH},
            _INVALID,
        ),
        case("not a number", {"endingTimestamp": "now"}, _INVALID),
    ),
    *about(
        "endingTimestamp",
        _STREAM,
        case(
            "set",
            {"endingTimestamp": _at(3)},
            we_refuse(
                "OptionError",
                "Spark's connector ignores the option in a streaming read. Ours rejects it, like "
                "`endingOffsets`.",
            ),
        ),
    ),
    *about(
        "endingOffsetsByTimestamp",
        _BATCH,
        case(
            "a timestamp for each partition",
            {"endingOffsetsByTimestamp": _each(_at(9), _at(2), _at(0))},
        ),
        case(
            "after all records of one partition",
            {"endingOffsetsByTimestamp": _each(_at(3), _LATER, _at(0))},
        ),
        case(
            "with startingOffsetsByTimestamp",
            {
                "startingOffsetsByTimestamp": _each(_at(2), _at(2), _at(0)),
                "endingOffsetsByTimestamp": _each(_at(5), _at(3), _LATER),
            },
        ),
        case(
            "takes precedence",
            {
                "endingOffsetsByTimestamp": _each(_at(3), _at(2), _at(0)),
                "endingOffsets": _each(1, 1, 1),
            },
        ),
        case(
            "less than startingOffsetsByTimestamp",
            {
                "startingOffsetsByTimestamp": _each(_at(5), _at(2), _at(0)),
                "endingOffsetsByTimestamp": _each(_at(2), _at(3), _LATER),
            },
            _INVALID,
        ),
        case("a partition is missing", {"endingOffsetsByTimestamp": _ONLY_TWO}, _INVALID),
    ),
    *about(
        "endingOffsetsByTimestamp",
        _STREAM,
        case("set", {"endingOffsetsByTimestamp": _each(1, 1, 1)}, _INVALID),
    ),
)
