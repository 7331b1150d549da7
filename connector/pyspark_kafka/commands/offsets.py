"""The `offsets` command, which shows, resets and copies the offsets of a streaming query.

    pyspark-kafka offsets --checkpoint DIR --bootstrap-servers HOST:PORT

The command shows the offsets and the lag of a query. A reset option such as `--to-datetime` changes
the offsets in the checkpoint, and `--to-group` commits the offsets to a consumer group. Without
`--execute`, the command changes nothing. The options have the same names as in Kafka's
`kafka-consumer-groups.sh`.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from pyspark_kafka.checkpoint.files import CheckpointFiles, open_files, unsupported_scheme
from pyspark_kafka.checkpoint.offset_log import SourcePartition
from pyspark_kafka.checkpoint.progress import Batch, Progress, read_progress
from pyspark_kafka.client.factory import open_client
from pyspark_kafka.commands.arguments import DONE, AddParser, add_client_arguments, given_options
from pyspark_kafka.commands.offset_arguments import (
    Change,
    Scope,
    ToGroup,
    add_offset_arguments,
    check_offset_arguments,
)
from pyspark_kafka.commands.offset_reset import check_reset, edited_batches, plan_reset
from pyspark_kafka.commands.offset_targets import (
    log_ranges,
    missing_partitions,
    require_partitions,
    target_of,
)
from pyspark_kafka.errors import CheckpointError, OptionError, PysparkKafkaError
from pyspark_kafka.kafka.offsets import IsolationLevel
from pyspark_kafka.kafka.topics import TopicPartition, format_partitions
from pyspark_kafka.options.parse import parse_connection_options
from pyspark_kafka.options.values import ClientOptions

_CHECKPOINT: Final = "--checkpoint"
_FILE_ERRORS: Final = (OSError, ValueError, NotImplementedError)
_EPOCH: Final = datetime.fromtimestamp(0, UTC)

_EPILOG: Final = """\
exit codes:
  0  the offsets were shown, or the change was done
  1  the command failed or was refused; stderr contains the reason and what to do
  2  the arguments are invalid
Stop the query before you change its offsets. docs/guide.md explains what a reset does.
"""


def add_command(add_parser: AddParser) -> None:
    """Add this command's parser, with a default `run` function that returns the exit code."""
    parser = add_parser(
        "offsets",
        help="show, reset or copy the offsets of a streaming query",
        description="Shows the offsets and the lag of a streaming query, resets the offsets in its "
        "checkpoint, or copies them from or to a consumer group. Works with the checkpoints of "
        "this connector and of Spark's own connector. Changes nothing without --execute.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        _CHECKPOINT,
        required=True,
        metavar="DIR",
        help="the query's checkpointLocation: a local path, or a URI with s3:, gs:, abfs: or hdfs:",
    )
    add_client_arguments(parser, is_required=False, side="source")
    add_offset_arguments(parser)
    parser.set_defaults(run=partial(_run, parser))


def _run(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> int:
    check_offset_arguments(parser, parsed)
    given = given_options(parsed)
    connection = parse_connection_options(given) if given else None
    if parsed.change is not None and connection is None:
        parser.error("a change requires --bootstrap-servers")
    scheme = unsupported_scheme(parsed.checkpoint)
    if scheme is not None:
        raise OptionError(
            f"{_CHECKPOINT} is '{parsed.checkpoint}', but the URI scheme '{scheme}:' is not "
            "supported.",
            advice="Use a local path, a mounted directory, or a URI with file:, s3:, gs:, abfs: or "
            "hdfs:.",
            option=_CHECKPOINT,
        )
    with _errors_of_files(parsed.checkpoint):
        files = open_files(parsed.checkpoint)
        progress = read_progress(files)
    command = _Command(files, progress, parsed)
    if parsed.change is None:
        command.show(None if connection is None else connection[0])
        return DONE
    assert connection is not None  # because the parser requires it for a change
    client_options, isolation_level = connection
    if isinstance(parsed.change, ToGroup):
        command.copy_to_group(parsed.change.group_id, client_options)
    else:
        command.reset(parsed.change, client_options, isolation_level)
    return DONE


@contextmanager
def _errors_of_files(location: str) -> Iterator[None]:
    """Convert errors from `CheckpointFiles` to `CheckpointError`."""
    try:
        yield
    except PysparkKafkaError:
        raise
    except _FILE_ERRORS as error:
        raise CheckpointError(
            f"A file in the checkpoint '{location}' cannot be read or written: {_reason(error)}.",
            advice="Check that this host can access the checkpoint, and that the user has the "
            "required permissions.",
        ) from None


def _reason(error: Exception) -> str:
    """Return the first line of an error message. Arrow's messages can have several lines."""
    return (str(error).splitlines() or [type(error).__name__])[0]


class _Command:
    """One run of the command for one checkpoint."""

    def __init__(
        self, files: CheckpointFiles, progress: Progress, parsed: argparse.Namespace
    ) -> None:
        self._files = files
        self._progress = progress
        self._parsed = parsed

    def show(self, client_options: ClientOptions | None) -> None:
        """Print the offsets and, if the brokers are known, the lag."""
        self._print_progress()
        committed = self._offsets(self._progress.committed)
        planned = self._offsets(self._progress.planned)
        shown = dict.fromkeys([*committed, *planned])
        partitions = {partition for _, partition in shown}
        self._check_selection(partitions, self._progress.committed, self._progress.planned)
        ends = _log_ends(client_options, partitions) if partitions and client_options else {}
        rows = []
        for source, partition in shown:
            current = committed.get((source, partition))
            end = ends.get(partition)
            rows.append(
                {
                    "SOURCE": source,
                    "TOPIC": partition.topic,
                    "PARTITION": partition.partition,
                    "CURRENT-OFFSET": current,
                    "PLANNED-OFFSET": planned.get((source, partition)),
                    "LOG-END-OFFSET": end,
                    "LAG": None if end is None or current is None else max(end - current, 0),
                }
            )
        _print_table(rows, hidden=() if planned else ("PLANNED-OFFSET",))

    def reset(
        self, change: Change, client_options: ClientOptions, isolation_level: IsolationLevel
    ) -> None:
        """Change the offsets in the checkpoint. Without `--execute`, only show the change."""
        offsets = self._offsets_to_change()
        partitions = {partition for _, partition in offsets}
        if not offsets:
            self._print_nothing_to_change()
            return
        with open_client(client_options) as client:
            require_partitions(client, partitions)
            target = target_of(change, client, partitions, isolation_level, warn=_warn)
            # A target can be above a log end offset that was requested before the target.
            log = log_ranges(client, partitions)
        resets = plan_reset(offsets, target, log)
        self._print_progress()
        rows = []
        for each in resets:
            source, partition = each.partition
            found = log[partition]
            if each.new != each.requested:
                _warn(
                    f"offset {each.requested} of {partition} is outside the log, which starts at "
                    f"offset {found.start} and ends at offset {found.end}: {each.new} is used"
                )
            rows.append(
                {
                    "SOURCE": source,
                    "TOPIC": partition.topic,
                    "PARTITION": partition.partition,
                    "CURRENT-OFFSET": each.current,
                    "NEW-OFFSET": each.new,
                    "LOG-END-OFFSET": found.end,
                }
            )
        _print_table(rows)
        discards, keeps = self._parsed.discard_planned_batch, self._parsed.keep_state
        check_reset(self._progress, resets, discards_planned=discards, keeps_state=keeps)
        edited = edited_batches(self._progress, resets)
        if not edited:
            print("There is nothing to change.")
        elif not self._parsed.execute:
            print("Nothing was changed. Stop the query, and run the command again with --execute.")
        else:
            with _errors_of_files(self._files.location):
                self._write(edited)

    def copy_to_group(self, group_id: str, client_options: ClientOptions) -> None:
        """Commit the query's offsets to a group. Without `--execute`, only show the offsets."""
        offsets = {p: offset for (_, p), offset in self._offsets_to_change().items()}
        if not offsets:
            self._print_nothing_to_change()
            return
        with open_client(client_options) as client:
            require_partitions(client, offsets.keys())
            before = client.committed_offsets(group_id, offsets.keys())
            self._print_progress()
            _print_table(
                [
                    {
                        "GROUP": group_id,
                        "TOPIC": partition.topic,
                        "PARTITION": partition.partition,
                        "CURRENT-OFFSET": before[partition],
                        "NEW-OFFSET": offset,
                    }
                    for partition, offset in offsets.items()
                ]
            )
            if self._parsed.execute:
                client.commit_offsets(group_id, offsets)
                print(f"The offsets are committed to group '{group_id}'.")
            else:
                print("Nothing was changed. Run the command again with --execute.")

    def _committed(self) -> Batch:
        batch = self._progress.committed
        if batch is None:
            raise CheckpointError(
                "The query has not committed a micro-batch yet, so its checkpoint contains no "
                "offsets to reset or to copy.",
                advice="Start the query with an empty 'checkpointLocation' and set the option "
                "'startingOffsets' or 'startingTimestamp'.",
            )
        return batch

    def _offsets_to_change(self) -> dict[SourcePartition, int]:
        """Return the selected offsets of the committed micro-batch, at most one per partition.

        Several sources can read the same partition, or partitions with the same name in different
        clusters. If such a partition is selected for several sources, the command raises
        `OptionError`, because it is connected to one cluster and a group has one offset for each
        partition.
        """
        batch = self._committed()
        offsets = self._offsets(batch)
        counts = Counter(partition for _, partition in offsets)
        self._check_selection(counts.keys(), batch)
        repeated = [partition for partition, count in counts.items() if count > 1]
        if repeated:
            raise OptionError(
                f"Several sources of the query read {format_partitions(repeated)}, possibly from "
                "different clusters.",
                advice="Select one of the sources with --source.",
                option="--source",
                topic=min(repeated).topic,
                partition=min(repeated).partition,
            )
        return offsets

    def _offsets(self, batch: Batch | None) -> dict[SourcePartition, int]:
        """Return the offsets that `--topic` and `--source` select."""
        offsets = {} if batch is None else batch.entry.offsets
        return {key: offset for key, offset in offsets.items() if self._is_selected(*key)}

    def _is_selected(self, source: str, partition: TopicPartition) -> bool:
        if self._parsed.source not in (None, source):
            return False
        scopes: Sequence[Scope] = self._parsed.topic
        return not scopes or any(
            partition.topic == topic and (numbers is None or partition.partition in numbers)
            for topic, numbers in scopes
        )

    def _check_selection(
        self, partitions: Collection[TopicPartition], *batches: Batch | None
    ) -> None:
        """Raise an error if `--topic` or `--source` matches no offsets in the micro-batches."""
        sources = [source for batch in batches if batch for source in batch.entry.sources]
        names = {source.name for source in sources if source.offsets is not None}
        if self._progress.committed is not None and not names:
            raise CheckpointError(
                "The checkpoint contains no offsets of a Kafka source.",
                advice="Pass the checkpoint of a query that reads from Kafka.",
            )
        if self._parsed.source is not None and self._parsed.source not in names:
            raise OptionError(
                f"--source is '{self._parsed.source}', but the checkpoint contains no offsets of a "
                "Kafka source with this name.",
                advice=f"Select one of the Kafka sources: {', '.join(sorted(names)) or 'none'}.",
                option="--source",
            )
        topics = {partition.topic for partition in partitions}
        for topic, numbers in self._parsed.topic:
            missing = {TopicPartition(topic, number) for number in numbers or ()} - set(partitions)
            if topic not in topics or missing:
                raise OptionError(
                    f"--topic selects {format_partitions(missing) or topic}, but the checkpoint "
                    "contains no offset for this selection.",
                    advice="Select partitions that the query has read. A query reads new "
                    "partitions from their earliest offsets.",
                    option="--topic",
                    topic=topic,
                )

    def _print_progress(self) -> None:
        committed, query_id = self._progress.committed, self._progress.query_id
        query = "The query" if query_id is None else f"Query {query_id}"
        batch = "no micro-batch" if committed is None else f"micro-batch {_planned_at(committed)}"
        print(f"{query} has committed {batch}.")
        planned = self._progress.planned
        if planned is not None:
            print(f"Micro-batch {_planned_at(planned)} is not committed.")
        last = planned or committed
        for source in () if last is None else last.entry.sources:
            if source.offsets is None:
                print(f"Source {source.name} is not a Kafka source, or has no offset yet.")

    def _print_nothing_to_change(self) -> None:
        """Report that the query reads no partitions, because its pattern matches no topic yet."""
        self._print_progress()
        print("There is nothing to change.")

    def _write(self, edited: Sequence[tuple[Batch, bytes]]) -> None:
        """Back up and replace files of the checkpoint.

        Spark ignores backups because of their names. The names contain no colon, because Hadoop
        rejects colons.
        """
        if read_progress(self._files) != self._progress:
            raise CheckpointError(
                "The checkpoint changed while this command was reading it, so the query is "
                "still running. The command did not change any file.",
                advice="Stop the query, and run the command again.",
            )
        suffix = datetime.now(UTC).strftime("backup-%Y%m%dT%H%M%S.%fZ")
        paths = [f"{self._files.location}/{batch.path}" for batch, _ in edited]
        for (batch, _), path in zip(edited, paths, strict=True):
            self._files.write(f"{batch.path}.{suffix}", self._files.read(batch.path))
            print(f"Backup of {path}: {path}.{suffix}")
        for number, (batch, content) in enumerate(edited):
            try:
                self._files.write(batch.path, content)
            except _FILE_ERRORS as error:
                states = ["was changed"] * number + ["may be changed, incomplete or missing"]
                states += ["was not changed"] * (len(edited) - len(states))
                named = (
                    f"{path} {state} (backup: {path}.{suffix})."
                    for path, state in zip(paths, states, strict=True)
                )
                raise CheckpointError(
                    f"The file {paths[number]} cannot be replaced: {_reason(error)}. "
                    f"{' '.join(named)}",
                    advice="Replace each file with its backup before you start the query or run "
                    "the command again.",
                ) from None
            print(f"Changed {paths[number]}")
        print("To undo this before the query starts, replace each file with its backup.")


def _log_ends(
    client_options: ClientOptions, partitions: Collection[TopicPartition]
) -> Mapping[TopicPartition, int]:
    """Return the log end offsets of the partitions that exist."""
    with open_client(client_options) as client:
        existing = set(partitions) - missing_partitions(client, partitions)
        return {p: found.end for p, found in log_ranges(client, existing).items()}


def _planned_at(batch: Batch) -> str:
    planned_ms = batch.entry.planned_ms
    if planned_ms is None:
        return str(batch.batch_id)
    time = _EPOCH + timedelta(milliseconds=planned_ms)
    return f"{batch.batch_id} (planned at {time:%Y-%m-%dT%H:%M:%SZ})"


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def _print_table(rows: Sequence[Mapping[str, object]], hidden: Collection[str] = ()) -> None:
    """Print a table in the format of Kafka's tools. None is printed as `-`.

    The SOURCE column is omitted if all rows have the same source.
    """
    if not rows:
        return
    if len({row.get("SOURCE") for row in rows}) == 1:
        hidden = {*hidden, "SOURCE"}
    columns = [name for name in rows[0] if name not in hidden]
    lines = [columns] + [["-" if row[c] is None else str(row[c]) for c in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print()
    for line in lines:
        print("  ".join(map(str.ljust, line, widths)).rstrip())
    print()
