"""The arguments of the `offsets` command. Their names follow `kafka-consumer-groups.sh`."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark_kafka.kafka.offsets import AtTimestamp
from pyspark_kafka.kafka.topics import is_topic_name
from pyspark_kafka.options.values import OffsetLimitName


@dataclass(frozen=True, slots=True)
class ToOffset:
    """A reset of every partition to the same offset."""

    offset: int


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """A reset that shifts the offset of every partition by the same number."""

    offsets: int


@dataclass(frozen=True, slots=True)
class FromGroup:
    """A reset to the committed offsets of a consumer group."""

    group_id: str


@dataclass(frozen=True, slots=True)
class ToGroup:
    """A commit of the query's offsets to a consumer group."""

    group_id: str


_DURATION: Final = re.compile(
    r"P(?=.)(?:(\d{1,9})D)?(?:T(?=.)(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9}(?:\.\d+)?)S)?)?",
    re.ASCII,
)
_TO_DATETIME: Final = (
    "reset to the first record at or after this time: 2026-11-26T09:00:00 (in UTC) or "
    "2026-11-26T09:00:00+01:00"
)

Change = OffsetLimitName | ToOffset | ShiftBy | AtTimestamp | FromGroup
"""A change of the offsets in the checkpoint."""

Scope = tuple[str, frozenset[int] | None]
"""A topic and the numbers of its partitions, or None for all of its partitions."""


def add_offset_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--topic`, `--source`, and the options that select or confirm a change of the offsets."""
    parser.add_argument(
        "--topic",
        type=_scope,
        action="append",
        default=[],
        metavar="TOPIC[:P,...]",
        help="only this topic, or only these partitions of it; can be specified multiple times "
        "[all partitions in the checkpoint]",
    )
    parser.add_argument(
        "--source",
        metavar="NAME-OR-NUMBER",
        help="only this source, as shown in the column SOURCE; required for a change if several "
        "sources read a selected partition [all sources]",
    )
    changes = parser.add_mutually_exclusive_group()
    for name, limit in (("earliest", OffsetLimitName.EARLIEST), ("latest", OffsetLimitName.LATEST)):
        changes.add_argument(
            f"--to-{name}",
            dest="change",
            action="store_const",
            const=limit,
            help=f"reset to the {name} offsets",
        )
    values: tuple[tuple[str, Callable[[str], object], str, str], ...] = (
        ("--to-offset", _to_offset, "N", "reset to offset N"),
        ("--to-datetime", _to_datetime, "TIME", _TO_DATETIME),
        (
            "--by-duration",
            _by_duration,
            "DURATION",
            "reset to the first record of this time span, which ends now: PT1H or P1DT12H30M",
        ),
        ("--shift-by", _shift_by, "N", "move by N offsets, or back if N is negative"),
        (
            "--from-group",
            _from_group,
            "GROUP",
            "reset to the committed offsets of a consumer group",
        ),
        ("--to-group", _to_group, "GROUP", "commit the query's offsets to a consumer group"),
    )
    for name, parse, metavar, text in values:
        changes.add_argument(name, dest="change", type=parse, metavar=metavar, help=text)
    runs = parser.add_mutually_exclusive_group()
    runs.add_argument("--dry-run", action="store_true", help="only show the change (the default)")
    runs.add_argument("--execute", action="store_true", help="make the change")
    parser.add_argument(
        "--discard-planned-batch",
        action="store_true",
        help="reset even if a micro-batch is planned and not committed; it will read nothing from "
        "the partitions that are reset",
    )
    parser.add_argument(
        "--keep-state",
        action="store_true",
        help="rewind even if the query has stateful operators; their state does not change",
    )


def check_offset_arguments(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> None:
    """Exit with an error if an argument requires another argument that is not set."""
    change = parsed.change
    is_reset = change is not None and not isinstance(change, ToGroup)
    for name, is_allowed in (
        ("dry_run", change is not None),
        ("execute", change is not None),
        ("discard_planned_batch", is_reset),
        ("keep_state", is_reset),
    ):
        if getattr(parsed, name) and not is_allowed:
            parser.error(f"--{name.replace('_', '-')} requires an option such as --to-datetime")


def _scope(text: str) -> Scope:
    topic, colon, numbers = text.partition(":")
    if not is_topic_name(topic):
        raise argparse.ArgumentTypeError(f"'{topic}' is not a valid topic name")
    if not colon:
        return topic, None
    if not all(number.isascii() and number.isdigit() for number in numbers.split(",")):
        raise argparse.ArgumentTypeError(f"'{text}' does not have the form TOPIC:PARTITION[,...]")
    return topic, frozenset(map(int, numbers.split(",")))


def _to_offset(text: str) -> ToOffset:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is not an offset")
    return ToOffset(int(text))


def _shift_by(text: str) -> ShiftBy:
    try:
        return ShiftBy(int(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not an integer") from None


def _from_group(text: str) -> FromGroup:
    return FromGroup(_group_id(text))


def _to_group(text: str) -> ToGroup:
    return ToGroup(_group_id(text))


def _group_id(text: str) -> str:
    if not text.strip():  # Brokers accept commits of the empty group.
        raise argparse.ArgumentTypeError("the group is empty")
    return text


def _to_datetime(text: str) -> AtTimestamp:
    """Parse a time.

    As in `kafka-consumer-groups.sh`, a time without a UTC offset is interpreted as UTC.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a valid time (example: 2026-11-26T09:00:00)"
        ) from None
    found = found.replace(tzinfo=UTC) if found.tzinfo is None else found
    return _at(text, (found - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1))


def _by_duration(text: str) -> AtTimestamp:
    """Parse an ISO 8601 duration, and subtract it from the current time.

    Only days, hours, minutes and seconds are supported.
    """
    found = _DURATION.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a valid duration (examples: PT1H, P1DT12H30M)"
        )
    days, hours, minutes, seconds = (float(number or 0) for number in found.groups())
    duration_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return _at(text, round((time.time() - duration_s) * 1000))


def _at(text: str, timestamp_ms: int) -> AtTimestamp:
    if timestamp_ms < 0:  # ListOffsets uses negative timestamps for earliest and latest.
        raise argparse.ArgumentTypeError(f"'{text}' is before 1970")
    return AtTimestamp(timestamp_ms=timestamp_ms)
