"""The `transactions` command, which shows and repairs exactly-once sinks.

    pyspark-kafka transactions --id ID --bootstrap-servers HOST:PORT

The command shows the state of a sink. With `--recover`, it also prints the actions that would
repair the sink. With `--recover --yes`, it executes these actions. Without `--yes`, it changes
nothing. The report and the actions are written to stdout.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

from pyspark_kafka.client.factory import open_transactional_client
from pyspark_kafka.client.transactional_port import TransactionalClient
from pyspark_kafka.commands.arguments import DONE, AddParser, add_client_arguments, given_options
from pyspark_kafka.errors import ExactlyOnceError
from pyspark_kafka.options.parse import parse_sink_options
from pyspark_kafka.options.values import ExactlyOnce, SinkOptions
from pyspark_kafka.sink.exactly_once.clock import wall_clock_ms
from pyspark_kafka.sink.exactly_once.operator_repair import (
    RepairRequest,
    check,
    planned_actions,
    repair,
    signs_of_life,
)
from pyspark_kafka.sink.exactly_once.operator_report import Report, examine
from pyspark_kafka.sink.exactly_once.operator_text import as_json, lines

ALIVE: Final = 3
LOST: Final = 4

_WATCHED_S: Final = 5
_NOTHING: Final = ("nothing: no repair is needed",)

_EPILOG: Final = """\
exit codes:
  0  the state was shown or the repair was done, and no rows are lost
  1  the command failed; stderr contains the reason and what to do
  2  the arguments are invalid
  3  --recover or --forget changed nothing, because the owner seems to be alive
  4  rows of a decided batch are lost or may be lost; see the line with LOST-ROWS
docs/exactly-once.md explains the output and when to use each flag.
"""


def _seconds(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 86_400:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds from 0 to 86400")
    return int(text)


def add_command(add_parser: AddParser) -> None:
    """Add this command's parser, with a default `run` function that returns the exit code."""
    parser = add_parser(
        "transactions",
        help="show, recover or forget the state of an exactly-once sink",
        description="Shows the commit decisions and the open transactions of an exactly-once sink, "
        "the owner of its transactionalId, and the partitions in which read_committed consumers "
        "wait for its transactions. Changes nothing without --yes.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--id", required=True, metavar="ID", help="the sink's transactionalId option"
    )
    add_client_arguments(parser, is_required=True, side="sink")
    parser.add_argument(
        "--commit-topic",
        metavar="TOPIC",
        help="the sink's commitTopic option [__spark_commits]",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    _add_repair_flags(parser)
    parser.set_defaults(run=partial(_run, parser))


def _add_repair_flags(parser: argparse.ArgumentParser) -> None:
    repairs = parser.add_mutually_exclusive_group()
    repairs.add_argument(
        "--recover",
        action="store_true",
        help="take over the id, commit the decided transactions and abort all others, as the next "
        "start of the query would do",
    )
    repairs.add_argument(
        "--forget",
        action="store_true",
        help="recover the sink and then remove its commit decisions; use this option for a query "
        "that will not run again, or whose batch ids restart at 0",
    )
    parser.add_argument(
        "--accept-loss",
        action="store_true",
        help="with --recover or --forget: also mark commit decisions as finished if their rows are "
        "lost or their outcome is unknown; no query will write these rows again",
    )
    parser.add_argument(
        "--yes", action="store_true", help="execute the actions; without it, only print them"
    )
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="execute the actions even if the owner seems to be alive; its current batch will "
        "fail, and none of the batch's rows will become visible",
    )
    parser.add_argument(
        "--quiet",
        type=_seconds,
        default=60,
        metavar="SECONDS",
        help="the number of seconds for which the owner must have been inactive [60]",
    )


def _run(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> int:
    is_repair = parsed.recover or parsed.forget
    for name in ("yes", "take_over", "accept_loss"):
        if getattr(parsed, name) and not is_repair:
            flag = name.replace("_", "-")
            parser.error(f"--{flag} requires --recover or --forget")
    options = _options(parsed)
    assert options.exactly_once is not None  # because `transactionalId` is set
    with open_transactional_client(options.client) as client:
        return _Command(client, options.exactly_once, parsed).run()


def _options(parsed: argparse.Namespace) -> SinkOptions:
    given = given_options(parsed)
    given["transactionalId"] = parsed.id
    if parsed.commit_topic is not None:
        given["commitTopic"] = parsed.commit_topic
    return parse_sink_options(given, streaming=False)


class _Command:
    """One run of the command. Prints lines immediately, or one JSON document at the end."""

    def __init__(
        self, client: TransactionalClient, options: ExactlyOnce, parsed: argparse.Namespace
    ) -> None:
        self._client = client
        self._options = options
        self._parsed = parsed
        self._document: dict[str, Any] = {}

    def run(self) -> int:
        report = self._examine()
        if report.is_unknown:
            raise ExactlyOnceError(
                f"The transactionalId '{report.sink_id}' is unknown: the commit topic "
                f"'{report.commit_topic}' contains no commit decision with this id, and the "
                "cluster has no transaction with this id.",
                advice="Check --id, --bootstrap-servers and --commit-topic (the sink's "
                "commitTopic option). If the query has never started a batch, no action is "
                "required.",
                topic=report.commit_topic,
                transactional_id=report.sink_id,
            )
        is_repair = self._parsed.recover or self._parsed.forget
        code = self._repair(report) if is_repair else self._show(report)
        if self._parsed.json:
            print(json.dumps({**self._document, "exit_code": code}, indent=2))
        return code

    def _examine(self) -> Report:
        return examine(
            self._client,
            self._options.transactional_id,
            self._options.commit_topic,
            now_ms=wall_clock_ms(),
        )

    def _show(self, report: Report) -> int:
        self._document["report"] = as_json(report)
        self._print(lines(report))
        return LOST if report.needs_operator else DONE

    def _repair(self, report: Report) -> int:
        request = RepairRequest(forget=self._parsed.forget, accept_loss=self._parsed.accept_loss)
        check(report, request)
        planned = planned_actions(report, request)
        signs = self._signs_of_life(report) if planned else ()
        if self._parsed.yes and not signs:
            return self._execute(report, request, planned)
        code = self._show(report)
        self._document |= {"would": planned, "signs_of_life": signs}
        self._print(f"would {text}" for text in planned or _NOTHING)
        self._print(f"alive {sign}" for sign in signs)
        if not signs:
            return code
        self._print(("refused the owner seems to be alive: stop it, or fence it with --take-over",))
        return ALIVE

    def _signs_of_life(self, report: Report) -> Sequence[str]:
        """Return the signs of life that a second report shows a few seconds later."""
        quiet_s = self._parsed.quiet
        if self._parsed.take_over or not quiet_s:
            return ()
        time.sleep(min(quiet_s, _WATCHED_S))
        return signs_of_life(report, self._examine(), quiet_ms=quiet_s * 1_000)

    def _execute(self, report: Report, request: RepairRequest, planned: Sequence[str]) -> int:
        done: list[str] = []

        def on_action(text: str) -> None:
            """Print the action immediately, because the next action may fail."""
            done.append(text)
            print(f"done {text}", flush=True, file=sys.stderr if self._parsed.json else None)

        self._document["done"] = done
        if planned:
            repair(self._client, report, request, on_action)
        else:
            self._print(f"done {text}" for text in _NOTHING)
        return self._show(self._examine())

    def _print(self, texts: Iterable[str]) -> None:
        if not self._parsed.json:
            for text in texts:
                print(text)
