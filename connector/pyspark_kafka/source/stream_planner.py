"""Planning of a streaming read: where a query starts, how far it may go, and what tasks read.

Purpose: the state and the decisions of a running query's driver (KafkaMicroBatchStream in
Spark's connector), without Spark. Invariants: offsets handed out cover the partitions that exist;
under `Trigger.AvailableNow` they never pass the target; planning the same batch again gives the
same tasks, as long as the topics are the same. What it must not know: Spark, JSON.

The start of a new query. Spark writes the end of a micro-batch into the checkpoint before it runs,
but not where the first one started: it asks for that several times, and again after a crash. Within
a process the answer is remembered. Where it may be another one in the next process (`latest`,
`committed`, a timestamp that no record has reached), the first micro-batch is made empty: its end,
which is in the checkpoint, is the start. So a first micro-batch that an earlier process planned is
known to be empty, and nothing between start and end is lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Set

from pyspark_kafka.errors import CheckpointError, OffsetError, UnknownTopicOrPartitionError
from pyspark_kafka.kafka.offsets import LATEST, FetchRange, IsolationLevel, PartitionOffsets
from pyspark_kafka.kafka.topics import TopicPartition, format_partitions
from pyspark_kafka.options.values import Limit, SourceOptions, SpecificOffsets
from pyspark_kafka.source.data_loss import DataLossPolicy
from pyspark_kafka.source.offset_reader import Assignment, OffsetReader
from pyspark_kafka.source.planner import planned
from pyspark_kafka.source.range_check import readable
from pyspark_kafka.source.ranges import PlannedRange, backlog, rate_limit

log = logging.getLogger(__name__)

Offsets = dict[TopicPartition, int]


class StreamPlanner:
    """One streaming query's driver; lives as long as the query runs."""

    def __init__(
        self,
        reader: OffsetReader,
        options: SourceOptions,
        *,
        now_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
    ) -> None:
        self._reader = reader
        self._options = options
        self._on_loss = DataLossPolicy(fail=options.fail_on_data_loss)
        self._now_ms = now_ms
        self._topic_ids: dict[str, str] = {}
        self._recreated: set[str] = set()
        self._seen: set[str] = set()
        self._assignment: Assignment | None = None
        self._latest: Offsets = {}
        self._initial: Offsets | None = None
        self._has_planned_an_end = False
        self._position: PartitionOffsets = {}
        self._reached: Offsets = {}
        self._available_now = False
        self._target: Offsets | None = None
        self._last_trigger_ms: float | None = None
        self._last_plan: tuple[PartitionOffsets, PartitionOffsets, list[PlannedRange]] | None = None

    @property
    def latest_known(self) -> PartitionOffsets:
        """The offsets that exist as of the last look, however far the query has read."""
        return self._latest

    def is_initial(self, offsets: PartitionOffsets) -> bool:
        """Whether these are where a query starts, as far as this run was asked for it."""
        return offsets == self._initial

    def initial_offsets(self) -> Offsets:
        """Where a new query starts; the same at every call."""
        if self._initial is None:
            assignment = self._reader.complete_assignment()
            self._remember(assignment)
            starting = self._options.starting
            initial = self._reader.resolve(starting, assignment.partitions, "starting")
            if isinstance(starting, SpecificOffsets):
                initial = self._within_log(initial)
            self._initial = initial
            self._position = initial
        return dict(self._initial)

    def prepare_available_now(self) -> None:
        """What exists when the first new micro-batch is planned is all that this run will read."""
        self._available_now = True

    def latest_offsets(
        self, start: PartitionOffsets | None, *, max_rows: int | None = None, delay: bool = False
    ) -> Offsets:
        """The end of the next micro-batch that starts at `start`; `start` itself to wait.

        `start` is None where Spark does not tell (before 4.2); the last offsets that it told of
        stand in. `max_rows` limits the micro-batch, `delay` applies `minOffsetsPerTrigger`.
        """
        is_first, self._has_planned_an_end = not self._has_planned_an_end, True
        is_new_query = is_first and self._last_plan is None and start in (None, self._initial)
        if is_new_query:
            self.initial_offsets()
        position = self._position if start is None else start
        latest = self._fetch_latest(position) if self._target is None else self._target
        if self._available_now:
            self._target = latest
        if is_new_query and _is_moving(self._options):
            return self.initial_offsets()
        if start is None:
            return dict(latest)
        known = self._known_start(start, latest)
        if delay and not self._available_now and not self._is_due(backlog(known, latest)):
            return dict(start)
        return dict(latest) if max_rows is None else rate_limit(max_rows, known, latest)

    def plan(self, start: PartitionOffsets, end: PartitionOffsets) -> list[PlannedRange]:
        """The tasks that read from `start` to `end`, which may come from a checkpoint.

        Raises `CheckpointError` for offsets of another query, `DataLossError` for what is gone.
        """
        if self._last_plan is not None and self._last_plan[:2] == (start, end):
            return self._last_plan[2]
        if start == self._initial and not self._has_planned_an_end:
            start = self._start_of_replayed_first(start, end)
        assignment, self._assignment = self._assignment, None
        if assignment is None or not end.keys() <= assignment.partitions:
            assignment = self._reader.assignment(expected=start.keys() | end.keys())
            self._notice(assignment, start.keys() | end.keys())
        selected = self._selected(start.keys() | end.keys())
        readable_end = {p: offset for p, offset in end.items() if p in assignment.partitions}
        gone = selected - readable_end.keys()
        if gone:
            self._on_loss.report(
                f"{format_partitions(gone)}: deleted, while the query was reading it"
            )
        known = self._known_start(start, readable_end, report=True)
        ranges = self._forwards(known, readable_end)
        found = readable(ranges, self._reader, self._on_loss, known_latest=self._latest)
        plan = planned(found, assignment, self._options)
        self._recreated.clear()
        self._last_plan = (start, end, plan)
        self._position = end
        self._reached |= {**start, **end}
        return plan

    def _start_of_replayed_first(
        self, start: PartitionOffsets, end: PartitionOffsets
    ) -> PartitionOffsets:
        """The start of a first micro-batch that an earlier process planned."""
        if _is_moving(self._options):
            return end
        log.warning(
            "the first micro-batch is run again; where it starts has been looked up anew by "
            "'startingOffsets': %s",
            format_partitions(start),
        )
        return start

    def _within_log(self, offsets: Offsets) -> Offsets:
        log_end = self._reader.latest(offsets, isolation_level=IsolationLevel.READ_UNCOMMITTED)
        for partition in sorted(offsets):
            if offsets[partition] > log_end[partition]:
                self._on_loss.report(
                    f"{partition}: option 'startingOffsets' names offset {offsets[partition]}, and "
                    f"its log ends at {log_end[partition]}"
                )
        return {p: min(offset, log_end[p]) for p, offset in offsets.items()}

    def _fetch_latest(self, position: PartitionOffsets) -> Offsets:
        try:
            return self._look(position)
        except UnknownTopicOrPartitionError:
            # Deleted between the question for partitions and that for offsets, or never there:
            # the second look tells.
            return self._look(position)

    def _look(self, position: PartitionOffsets) -> Offsets:
        assignment = self._reader.assignment(expected=position.keys())
        self._notice(assignment, position.keys())
        expected = {
            p: offset
            for p, offset in position.items()
            if p in assignment.partitions and p.topic not in self._recreated
        }
        latest = self._reader.latest(assignment.partitions)
        behind = {p: offset for p, offset in expected.items() if latest[p] < offset}
        self._latest = {**latest, **self._caught_up(behind, latest)}
        self._assignment = assignment
        return self._latest

    def _caught_up(self, behind: PartitionOffsets, latest: PartitionOffsets) -> Offsets:
        """Latest offsets of partitions where they lie behind what the query has read.

        Where the log end does not, the query waits: it has read past the last stable offset, under
        another isolation level. What is left went backwards.
        """
        log_end = self._reader.latest(
            behind, expected=behind, isolation_level=IsolationLevel.READ_UNCOMMITTED
        )
        if self._options.isolation_level is IsolationLevel.READ_UNCOMMITTED:
            return log_end
        return {p: o if log_end[p] >= o else latest[p] for p, o in behind.items()}

    def _notice(self, assignment: Assignment, known: Set[TopicPartition]) -> None:
        """Tell topics that are gone or recreated from topics that never were."""
        read_before = self._seen | {partition.topic for partition in known}
        self._reader.require_topics(assignment.missing_topics - read_before)
        for topic, topic_id in assignment.topic_ids.items():
            remembered = self._topic_ids.get(topic)
            if remembered is not None and topic_id is not None and topic_id != remembered:
                self._on_loss.report(
                    f"topic '{topic}' was deleted and created again while the query was reading "
                    f"it (its id was {remembered} and is {topic_id})"
                )
                self._recreated.add(topic)
                self._latest = {p: o for p, o in self._latest.items() if p.topic != topic}
                self._reached = {p: o for p, o in self._reached.items() if p.topic != topic}
        self._remember(assignment)

    def _remember(self, assignment: Assignment) -> None:
        for topic, topic_id in assignment.topic_ids.items():
            self._seen.add(topic)
            if topic_id is not None:
                self._topic_ids[topic] = topic_id

    def _selected(self, partitions: Set[TopicPartition]) -> set[TopicPartition]:
        """Those that the options select; others are in the checkpoint of another query."""
        selected = {p for p in partitions if self._options.selection.selects(p)}
        foreign = partitions - selected
        if foreign:
            what = (
                f"the checkpoint has offsets of {format_partitions(foreign)}, which this query does not "
                f"read ({self._options.selection})"
            )
            if self._options.fail_on_data_loss:
                raise CheckpointError(
                    f"{what}: it belongs to a query with other topics. Give the query the topics "
                    "it had or a new checkpointLocation, or set 'failOnDataLoss' to 'false' to go "
                    "on without these partitions"
                )
            log.warning("%s; going on without them, since failOnDataLoss is false", what)
        return selected

    def _known_start(
        self, start: PartitionOffsets, end: PartitionOffsets, *, report: bool = False
    ) -> Offsets:
        """A start for every partition of `end`: one that is new, or new again, at its earliest.

        One that was out of sight for a while goes on where it was.
        """
        reached = {**self._reached, **start}
        kept = {p: reached[p] for p in end if p in reached and p.topic not in self._recreated}
        new = end.keys() - kept.keys()
        earliest = self._reader.earliest(new) if new else {}
        for partition in sorted(new):
            if report and earliest[partition] > 0 and partition not in start:
                self._on_loss.report(
                    f"{partition}: found while the query was running, and its log starts at "
                    f"{earliest[partition]} instead of 0"
                )
        return {**kept, **earliest}

    def _forwards(self, start: Offsets, end: PartitionOffsets) -> list[FetchRange]:
        committed = self._options.isolation_level is IsolationLevel.READ_COMMITTED
        backwards = {p: start[p] for p in end if end[p] < start[p]}
        log_end = self._reader.latest(backwards, isolation_level=IsolationLevel.READ_UNCOMMITTED)
        for partition in sorted(backwards):
            if committed and log_end[partition] >= start[partition]:
                raise OffsetError(
                    f"{partition}: the query stands at {start[partition]} and would go back "
                    f"to {end[partition]}, the last stable offset when this micro-batch was "
                    "planned: it was read with kafka.isolation.level=read_uncommitted before. "
                    "Remove the newest file of the checkpoint's 'offsets', which has none beside "
                    "it in 'commits', and go on with that level or when no transaction is open"
                )
            self._on_loss.report(
                f"{partition}: its log ends at {log_end[partition]}, and the query stands at "
                f"{start[partition]}"
            )
        return [
            FetchRange(topic_partition=p, start_offset=start[p], end_offset=end[p])
            for p in sorted(end.keys() - backwards.keys())
        ]

    def _is_due(self, available: int) -> bool:
        minimum = self._options.min_offsets_per_trigger
        now_ms = self._now_ms()
        due = (
            minimum is None
            or available >= minimum
            or self._last_trigger_ms is None
            or now_ms - self._last_trigger_ms >= self._options.max_trigger_delay_ms
        )
        if due:
            self._last_trigger_ms = now_ms
        return due


def _is_moving(options: SourceOptions) -> bool:
    """Whether `startingOffsets` may be resolved to later offsets the next time."""
    match options.starting:
        case Limit.LATEST | Limit.COMMITTED:
            return True
        case SpecificOffsets(offsets=offsets):
            return LATEST in offsets.values()
        case Limit.EARLIEST:
            return False  # but for retention, which then is the same for a query started anew
        case _:
            return options.latest_without_match
