"""Plans a streaming read on the driver.

The planner determines the offsets and the tasks of micro-batches. It keeps the state of a running
query (`KafkaMicroBatchStream` in Spark's connector). Invariants: returned offsets contain all
partitions that exist. With `Trigger.AvailableNow`, returned offsets do not exceed the latest
offsets at the start of the run. If a micro-batch is planned again, it has the same tasks, unless
its topics have changed.

Start of a new query: Spark writes the end offsets of a micro-batch to the checkpoint before it runs
the micro-batch, but it does not write the start offsets of the first micro-batch. Spark requests
these start offsets several times, and again after a crash. Within one process, the planner always
returns the same start offsets. The next process may get different start offsets (`latest`,
`committed`, or a timestamp for which no record exists yet). In this case, the planner makes the
first micro-batch empty: its end offsets, which Spark writes to the checkpoint, equal the start
offsets. If a later process replays the first micro-batch, the planner knows that the micro-batch is
empty, and no records are lost.

Before version 4.2, Spark requests end offsets without passing the start offsets. The planner infers
the start offsets from earlier calls. Spark plans each micro-batch before it requests the next end
offsets. Before a restarted query requests end offsets, Spark plans an empty range at the end of the
newest micro-batch (`AcceptsLatestSeenOffset`). If end offsets are requested first, the query is
new.
`AvailableNowMicroBatchStreamWrapper` is the exception: it requests the end offsets of its only
micro-batch first, and again before it plans a micro-batch. The planner rejects this call order if
the end offsets that it has returned are valid only for a new query.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Set
from typing import Final, Literal

from pyspark_kafka.errors import (
    CheckpointError,
    OffsetError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from pyspark_kafka.kafka.offsets import LATEST, FetchRange, IsolationLevel, PartitionOffsets
from pyspark_kafka.kafka.topics import TopicPartition, format_partitions
from pyspark_kafka.options.values import (
    GlobalTimestamp,
    OffsetLimitName,
    PartitionTimestamps,
    SourceOptions,
    SpecificOffsets,
)
from pyspark_kafka.source.batch_planner import plan_ranges
from pyspark_kafka.source.data_loss import DataLossPolicy
from pyspark_kafka.source.offset_reader import Assignment, OffsetReader, option_name
from pyspark_kafka.source.range_check import readable_ranges
from pyspark_kafka.source.ranges import PlannedRange, backlog, rate_limit
from pyspark_kafka.source.record_sizes import RecordSizes

log = logging.getLogger(__name__)

Offsets = dict[TopicPartition, int]

_ONE_LIMITED_BATCH: Final = (
    "Option '%s' limits the first micro-batch. With the trigger availableNow or "
    "once, Spark before 4.2 runs no other micro-batch: start the query again to read more records."
)


class StreamPlanner:
    """Plans the micro-batches of one run of a streaming query."""

    def __init__(
        self,
        reader: OffsetReader,
        options: SourceOptions,
        sizes: RecordSizes,
        *,
        now_ms: Callable[[], float] = lambda: time.monotonic() * 1000,
    ) -> None:
        self._reader = reader
        self._options = options
        self._sizes = sizes
        self._on_loss = DataLossPolicy(fail=options.fail_on_data_loss)
        self._now_ms = now_ms
        self._topic_ids: dict[str, str] = {}
        self._recreated: set[str] = set()
        self._known_topics: set[str] = set()
        self._assignment: Assignment | None = None
        self._latest: Offsets = {}
        self._initial: Offsets | None = None
        self._has_planned_an_end = False
        self._position: PartitionOffsets = {}
        self._expected_call: Literal["initial_offsets", "plan"] | None = None
        self._last_offsets: Offsets = {}
        self._available_now = False
        self._target: Offsets | None = None
        self._last_trigger_ms: float | None = None
        self._last_plan: tuple[PartitionOffsets, PartitionOffsets, list[PlannedRange]] | None = None

    @property
    def latest_known(self) -> PartitionOffsets:
        """Return the latest offsets from the last request, regardless of the query's position."""
        return self._latest

    def is_unplanned_start(self, offsets: PartitionOffsets) -> bool:
        """Return whether a new query starts at `offsets` and has not planned a micro-batch yet."""
        is_new_query = self._last_plan is None and not self._has_planned_an_end
        return offsets == self._initial and is_new_query

    def initial_offsets(self) -> Offsets:
        """Return the start offsets of a new query. Every call returns the same offsets."""
        if self._expected_call == "initial_offsets":
            self._expected_call = "plan"
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
        """Limit this run to the offsets that exist when its first micro-batch is planned.

        Spark calls this method for `Trigger.AvailableNow`.
        """
        self._available_now = True

    def latest_offsets(self, start: PartitionOffsets | None, *, limited: bool = False) -> Offsets:
        """Return the end offsets of the micro-batch that starts at `start`.

        Spark versions before 4.2 do not pass `start`. The micro-batch then starts at the end of the
        previous micro-batch. `limited` applies the options `maxOffsetsPerTrigger`,
        `maxBytesPerTrigger` and `minOffsetsPerTrigger`. The result is `start` if the query should
        wait for more records.
        """
        if self._expected_call is not None:
            raise _wrapper_error(self._options)
        is_first, self._has_planned_an_end = not self._has_planned_an_end, True
        is_new_query = is_first and self._last_plan is None and start in (None, self._initial)
        if is_new_query:
            self.initial_offsets()
        position = self._position if start is None else start
        try:
            latest, end = self._latest_and_end(position, is_new=is_new_query, limited=limited)
        except UnknownTopicOrPartitionError:
            # The topic may have been deleted between two requests.
            latest, end = self._latest_and_end(position, is_new=is_new_query, limited=limited)
        if self._available_now:
            self._target = latest
        if start is None:
            # Spark runs this micro-batch before it requests the next end offsets.
            self._position = end
            if is_new_query and self._requires_new_query(end, latest):
                self._expected_call = "initial_offsets"
            if is_first and position != end != latest:
                log.warning(_ONE_LIMITED_BATCH, self._options.limiting_option)
        return end

    def _latest_and_end(
        self, position: PartitionOffsets, *, is_new: bool, limited: bool
    ) -> tuple[Offsets, Offsets]:
        """Return the latest offsets, and the end offsets of the micro-batch.

        With `Trigger.AvailableNow`, the latest offsets at the start of the run are returned instead
        of the current ones.
        """
        latest = self._request_latest(position) if self._target is None else self._target
        if is_new and _may_resolve_later(self._options):
            return latest, self.initial_offsets()
        end = self._limit(position, latest) if limited else dict(latest)
        return latest, {**end, **self._starts_of_recreated(position)}

    def _starts_of_recreated(self, position: PartitionOffsets) -> Offsets:
        """Return the log start offsets of recreated partitions.

        The result omits a partition if its log start offset equals `position`. The planner uses
        the result as end offsets, so the micro-batch is empty for the returned partitions. The
        checkpoint then contains the position in the new log, and the next micro-batch reads the
        new log, even if the new log has the same offsets as the old log.
        """
        recreated = {p for p in position if p.topic in self._recreated and p in self._latest}
        earliest = self._reader.earliest(recreated) if recreated else {}
        return {p: offset for p, offset in earliest.items() if offset != position[p]}

    def _limit(self, start: PartitionOffsets, latest: Offsets) -> Offsets:
        known = self._known_start(start, latest)
        available = backlog(known, latest)
        if not self._available_now and not self._is_due(available):
            return dict(start)
        maximum = self._options.max_offsets_per_trigger
        bytes_max = self._options.max_bytes_per_trigger
        if bytes_max is not None and available:
            size = self._sizes.total(
                FetchRange(topic_partition=p, start_offset=known[p], end_offset=end)
                for p, end in latest.items()
            )
            in_bytes_max = max(int(available * bytes_max / size), 1)
            maximum = in_bytes_max if maximum is None else min(maximum, in_bytes_max)
        return dict(latest) if maximum is None else rate_limit(maximum, known, latest)

    def _requires_new_query(self, end: Offsets, latest: Offsets) -> bool:
        """Return whether the end offsets are valid only for the first micro-batch of a new query.

        In a restarted query, these offsets could be lower than the query's position, or far beyond
        its rate limit.
        """
        if _may_resolve_later(self._options):
            is_latest = self._options.starting is OffsetLimitName.LATEST
            return not is_latest or self._options.limiting_option is not None
        return end != latest

    def plan(self, start: PartitionOffsets, end: PartitionOffsets) -> list[PlannedRange]:
        """Return the tasks that read from `start` to `end`. Both offsets may be from a checkpoint.

        Raises `OffsetError`, `DataLossError`, and `CheckpointError` if the offsets belong to
        another query.
        """
        if self._expected_call == "initial_offsets":
            raise _wrapper_error(self._options)
        self._expected_call = None
        if self._last_plan is not None and self._last_plan[:2] == (start, end):
            return self._last_plan[2]
        if start == self._initial and not self._has_planned_an_end:
            start = self._start_of_replayed_first_batch(start, end)
        assignment, self._assignment = self._assignment, None
        try:
            plan = self._plan_tasks(start, end, assignment)
        except UnknownTopicOrPartitionError:
            # A topic may have been deleted since the partitions were requested.
            plan = self._plan_tasks(start, end, None)
        self._recreated.clear()
        self._last_plan = (start, end, plan)
        self._position = end
        if start != end:  # Before a replay, Spark 4.0 and 4.1 plan an empty range at `end`.
            # During a replay, a partition that is missing from `end` may belong to a deleted topic.
            # If the topic is recreated, a read from the earlier offset would skip records.
            self._last_offsets |= {**start, **end} if self._has_planned_an_end else end
        return plan

    def _plan_tasks(
        self, start: PartitionOffsets, end: PartitionOffsets, assignment: Assignment | None
    ) -> list[PlannedRange]:
        if assignment is None or not end.keys() <= assignment.partitions:
            assignment = self._reader.assignment(expected=start.keys() | end.keys())
            self._detect_changed_topics(assignment, start.keys() | end.keys())
        selected = self._selected(start.keys() | end.keys())
        readable_end = {p: offset for p, offset in end.items() if p in assignment.partitions}
        deleted = selected - readable_end.keys()
        if deleted:
            self._on_loss.report(
                f"The partitions {format_partitions(deleted)}, which the query reads, no longer "
                "exist."
                if len(deleted) > 1
                else f"Partition {min(deleted)}, which the query reads, no longer exists.",
                min(deleted),
            )
        known = self._known_start(start, readable_end, report=True)
        ranges = self._check_direction(known, readable_end)
        found = readable_ranges(ranges, self._reader, self._on_loss, known_latest=self._latest)
        return plan_ranges(found, assignment, self._options)

    def _start_of_replayed_first_batch(
        self, start: PartitionOffsets, end: PartitionOffsets
    ) -> PartitionOffsets:
        """Return the start offsets of the first micro-batch, which an earlier process planned.

        The start option of the query (such as `startingOffsets`) may now resolve to a later offset
        than `end`. For options such as `latest`, this is expected, and the micro-batch was empty
        (see `_may_resolve_later`). With any other option, the records of the micro-batch are lost.
        Partitions that are not in `end` were added later. The next micro-batch reads them from
        their log start offset.
        """
        starting = self._options.starting
        option = option_name(starting, "starting")
        if not _may_resolve_later(self._options):
            lost = {p for p in start.keys() & end.keys() if start[p] > end[p]}
            if isinstance(starting, GlobalTimestamp | PartitionTimestamps):
                # After a compaction, a timestamp can resolve to a later offset without a loss.
                log_starts = self._reader.earliest(lost)
                lost = {p for p in lost if log_starts[p] > end[p]}
            for partition in sorted(lost):
                self._on_loss.report(
                    f"The first micro-batch reads {partition} up to offset {end[partition]}, but "
                    f"option '{option}' now resolves to offset {start[partition]}. Either the "
                    "records were deleted, or the option was changed.",
                    partition,
                    offset=end[partition],
                )
        elif isinstance(starting, OffsetLimitName):
            log.warning(
                "The first micro-batch is being replayed without records, because option "
                "'startingOffsets' is '%s'. If the query originally started with another value, "
                "reset the offsets of the query with 'pyspark-kafka offsets'.",
                starting.name.lower(),
            )
            return end
        start = {p: min(offset, end[p]) for p, offset in start.items() if p in end}
        log.warning(
            "The first micro-batch is being replayed. Option '%s' was resolved again to determine "
            "the start offsets for %s.",
            option,
            format_partitions(start),
        )
        return start

    def _within_log(self, offsets: Offsets) -> Offsets:
        high_watermarks = self._reader.latest(
            offsets, isolation_level=IsolationLevel.READ_UNCOMMITTED
        )
        for partition in sorted(offsets):
            if offsets[partition] > high_watermarks[partition]:
                self._on_loss.report(
                    f"Option 'startingOffsets' has offset {offsets[partition]} for {partition}, "
                    f"but the log ends at offset {high_watermarks[partition]}.",
                    partition,
                    offset=offsets[partition],
                )
        return {p: min(offset, high_watermarks[p]) for p, offset in offsets.items()}

    def _request_latest(self, position: PartitionOffsets) -> Offsets:
        assignment = self._reader.assignment(expected=position.keys())
        self._detect_changed_topics(assignment, position.keys())
        expected = {
            p: offset
            for p, offset in position.items()
            if p in assignment.partitions and p.topic not in self._recreated
        }
        latest = self._reader.latest(assignment.partitions)
        backwards = {p: offset for p, offset in expected.items() if latest[p] < offset}
        self._latest = {**latest, **self._latest_of_backwards(backwards, latest)}
        self._assignment = assignment
        return self._latest

    def _latest_of_backwards(
        self, backwards: PartitionOffsets, latest: PartitionOffsets
    ) -> Offsets:
        """Return the end offsets for partitions whose latest offset is lower than their position.

        If the log end offset is not lower than the position, an earlier run with read_uncommitted
        has read beyond the last stable offset. The query then waits at its position. Otherwise the
        log was truncated or recreated, and its actual latest offset is returned.
        """
        high_watermarks = self._reader.latest(
            backwards, expected=backwards, isolation_level=IsolationLevel.READ_UNCOMMITTED
        )
        if self._options.isolation_level is IsolationLevel.READ_UNCOMMITTED:
            return high_watermarks
        return {p: o if high_watermarks[p] >= o else latest[p] for p, o in backwards.items()}

    def _detect_changed_topics(self, assignment: Assignment, known: Set[TopicPartition]) -> None:
        """Report recreated topics as data loss.

        Raises an error if a topic that the query has not read before is missing.
        """
        read_before = self._known_topics | {partition.topic for partition in known}
        self._reader.require_topics(assignment.missing_topics - read_before)
        for topic, topic_id in assignment.topic_ids.items():
            remembered = self._topic_ids.get(topic)
            if remembered is not None and topic_id is not None and topic_id != remembered:
                self._on_loss.report(
                    f"Topic '{topic}' was deleted and recreated while the query was reading it "
                    f"(its topic id changed from {remembered} to {topic_id}).",
                    topic=topic,
                    advice="A restarted query does not know the earlier topic and continues at its "
                    "old offsets. Reset them to the earliest offsets with 'pyspark-kafka offsets', "
                    "or start the query with a new checkpointLocation.",
                )
                self._recreated.add(topic)
                self._latest = {p: o for p, o in self._latest.items() if p.topic != topic}
                self._last_offsets = {
                    p: o for p, o in self._last_offsets.items() if p.topic != topic
                }
        self._remember(assignment)

    def _remember(self, assignment: Assignment) -> None:
        for topic, topic_id in assignment.topic_ids.items():
            self._known_topics.add(topic)
            if topic_id is not None:
                self._topic_ids[topic] = topic_id

    def _selected(self, partitions: Set[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions that the options select.

        Raises `CheckpointError` for partitions from another query. With `failOnDataLoss=false`,
        such partitions are ignored.
        """
        selected = {p for p in partitions if self._options.selection.selects(p)}
        foreign = partitions - selected
        if foreign:
            what = (
                f"The checkpoint contains offsets of {format_partitions(foreign)}, which this "
                f"query does not read ({self._options.selection})."
            )
            if self._options.fail_on_data_loss:
                raise CheckpointError(
                    what,
                    advice="Read the same topics as before, use a new checkpointLocation, or set "
                    "'failOnDataLoss' to 'false' to ignore the offsets of these partitions.",
                    topic=min(foreign).topic,
                    partition=min(foreign).partition,
                )
            log.warning("%s These offsets are ignored, because 'failOnDataLoss' is 'false'.", what)
        return selected

    def _known_start(
        self, start: PartitionOffsets, end: PartitionOffsets, *, report: bool = False
    ) -> Offsets:
        """Return a start offset for every partition of `end`.

        New partitions and partitions of recreated topics start at the log start offset. A partition
        that was temporarily missing continues at its last offset.
        """
        last_offsets = {**self._last_offsets, **start}
        kept = {
            p: last_offsets[p] for p in end if p in last_offsets and p.topic not in self._recreated
        }
        new = end.keys() - kept.keys()
        earliest = self._reader.earliest(new) if new else {}
        for partition in sorted(new):
            if report and earliest[partition] > 0 and partition not in start:
                self._on_loss.report(
                    f"{partition} was discovered while the query was running, but its log starts "
                    f"at offset {earliest[partition]} instead of 0.",
                    partition,
                    offset=0,
                )
        return {**kept, **earliest}

    def _check_direction(self, start: Offsets, end: PartitionOffsets) -> list[FetchRange]:
        """Return the ranges to read, and report end offsets that are lower than the start offsets.

        An end offset can be lower because an earlier run used another isolation level. If this
        cause is possible and `failOnDataLoss` is `true`, raises `OffsetError`. Otherwise, reports
        data loss.
        """
        committed = self._options.isolation_level is IsolationLevel.READ_COMMITTED
        backwards = {p: start[p] for p in end if end[p] < start[p]}
        high_watermarks = self._reader.latest(
            backwards, isolation_level=IsolationLevel.READ_UNCOMMITTED
        )
        for partition in sorted(backwards):
            is_grown = high_watermarks[partition] >= start[partition]
            if committed and is_grown and self._options.fail_on_data_loss:
                raise OffsetError(
                    f"The query has read {partition} up to offset {start[partition]}, but this "
                    f"micro-batch was planned up to offset {end[partition]}. Either an earlier "
                    "run of the query set 'kafka.isolation.level' to read_uncommitted, or the log "
                    "was truncated or recreated and has grown since.",
                    advice="If the log was truncated or recreated, set 'failOnDataLoss' to "
                    "'false'. Otherwise find the newest file in the checkpoint's 'offsets' "
                    "directory. If the 'commits' directory has no file with the same name, remove "
                    "the file from 'offsets'. Then restart the query with read_uncommitted, or "
                    "wait until the open transactions on the partition have ended.",
                    option="kafka.isolation.level",
                    topic=partition.topic,
                    partition=partition.partition,
                    offset=end[partition],
                )
            self._on_loss.report(
                f"The query has read {partition} up to offset {start[partition]}, but this "
                f"micro-batch was planned up to offset {end[partition]}. The next micro-batch "
                "starts there."
                if is_grown
                else f"The query has read {partition} up to offset {start[partition]}, but the log "
                f"now ends at offset {high_watermarks[partition]}.",
                partition,
                offset=start[partition],
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


def _may_resolve_later(options: SourceOptions) -> bool:
    """Return whether a restarted query may resolve the starting option to higher offsets."""
    match options.starting:
        case OffsetLimitName.LATEST | OffsetLimitName.COMMITTED:
            return True
        case SpecificOffsets(offsets=offsets):
            return LATEST in offsets.values()
        case OffsetLimitName.EARLIEST:
            return False  # Retention may advance the log start offset, as for any new query.
        case _:
            return options.latest_without_match


def _wrapper_error(options: SourceOptions) -> OptionError:
    """Return the error for a query that Spark runs with `AvailableNowMicroBatchStreamWrapper`."""
    setting = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
    option, alternative = options.limiting_option, "remove the option"
    if option is None:
        option = option_name(options.starting, "starting")
        alternative = "run the first micro-batch with another trigger. Later starts ignore the "
        alternative += "option. For these starts, set 'startingOffsets' to 'earliest' instead"
    return OptionError(
        f"Option '{option}' does not work with the trigger availableNow while '{setting}' is true, "
        "because Spark versions before 4.2 then request the end offsets of the only micro-batch "
        "before they pass its start offsets.",
        advice=f"Set '{setting}' to false, so that each start of the query runs one micro-batch, "
        f"or {alternative}.",
        option=option,
    )
