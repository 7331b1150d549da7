"""`python -m pyspark_kafka transactions`: the operator's command for sinks with `transactionalId`.

    python -m pyspark_kafka transactions --id ID --bootstrap-servers HOST:PORT            shows
    python -m pyspark_kafka transactions --id ID --bootstrap-servers ... --recover        would do
    python -m pyspark_kafka transactions --id ID --bootstrap-servers ... --recover --yes  does

Purpose: parse the arguments, show or repair a sink, and print every error as one line. Invariant:
without `--yes` nothing is changed; stdout contains the report and the actions, stderr the errors.
Must not know: Spark, and what the protocol does.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, NoReturn

from pyspark_kafka.client.factory import open_transactional
from pyspark_kafka.client.transactional_port import TransactionalClient
from pyspark_kafka.errors import ExactlyOnceError, PysparkKafkaError
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

DONE: Final = 0
FAILED: Final = 1
ARGUMENTS: Final = 2
ALIVE: Final = 3
LOST: Final = 4

_WATCHED_S: Final = 5
_NOTHING: Final = ("nothing: no repair is needed",)

_EPILOG: Final = """\
exit codes:
  0  the state is shown, or the repair is done; no rows are lost
  1  it failed; the line on stderr contains the reason and what to do
  2  the arguments are wrong
  3  with --recover or --forget: nothing was done, because the owner seems to be alive
  4  rows of a decided batch are lost, or may be: see LOST-ROWS
docs/exactly-once.md explains the lines and when to use which flag.
"""


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(ARGUMENTS, f"{self.prog}: {message} (see --help)\n")


def _option(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name.strip() or not separator:
        raise argparse.ArgumentTypeError(f"'{text}' does not have the form NAME=VALUE")
    return name.strip(), value.strip()


def _seconds(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 86_400:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds: 0 to 86400")
    return int(text)


def _parser() -> _Parser:
    parser = _Parser(prog="python -m pyspark_kafka", description="Tools of pyspark-kafka.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    transactions = commands.add_parser(
        "transactions",
        help="show the state of a transactionalId; recover it, or forget it",
        description="Shows the decisions of an exactly-once sink, its open transactions, the owner "
        "of its transactionalId and the read_committed readers that wait for it. Changes nothing "
        "without --yes.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    transactions.add_argument(
        "--id", required=True, metavar="ID", help="the sink's option transactionalId"
    )
    transactions.add_argument(
        "--bootstrap-servers",
        required=True,
        metavar="HOST:PORT[,...]",
        help="brokers to connect to",
    )
    transactions.add_argument(
        "--commit-topic",
        metavar="TOPIC",
        help="the sink's option commitTopic [__spark_commits]",
    )
    transactions.add_argument(
        "--option",
        type=_option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the sink, such as kafka.default.api.timeout.ms=120000; may be repeated",
    )
    transactions.add_argument("--json", action="store_true", help="print one JSON document")
    _add_repair_flags(transactions)
    return parser


def _add_repair_flags(parser: argparse.ArgumentParser) -> None:
    repairs = parser.add_mutually_exclusive_group()
    repairs.add_argument(
        "--recover",
        action="store_true",
        help="take over the id, commit what is decided, and abort the rest, as the next start of "
        "the query would do",
    )
    repairs.add_argument(
        "--forget",
        action="store_true",
        help="--recover, and then remove the decisions: for a query that is stopped for good, or "
        "one whose batch ids start again",
    )
    parser.add_argument(
        "--accept-loss",
        action="store_true",
        help="with --recover or --forget: mark decisions as finished whose rows are lost or "
        "unknown; no query will write these rows again",
    )
    parser.add_argument(
        "--yes", action="store_true", help="do it; without this flag only print what would be done"
    )
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="do it even if the owner seems to be alive; its batch fails, and none of its rows "
        "will be visible",
    )
    parser.add_argument(
        "--quiet",
        type=_seconds,
        default=60,
        metavar="SECONDS",
        help="how long the owner must have been inactive [60]",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    is_repair = parsed.recover or parsed.forget
    for name in ("yes", "take_over", "accept_loss"):
        if getattr(parsed, name) and not is_repair:
            flag = name.replace("_", "-")
            parser.error(f"--{flag} needs --recover or --forget")
    try:
        return _transactions(parsed)
    except PysparkKafkaError as error:
        print(f"python -m pyspark_kafka: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("python -m pyspark_kafka: interrupted", file=sys.stderr)
        return FAILED
    except BrokenPipeError:
        # The reader of stdout has closed it, as `head` does; suppress Python's error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _options(parsed: argparse.Namespace) -> SinkOptions:
    given = dict(parsed.option)
    given["kafka.bootstrap.servers"] = parsed.bootstrap_servers
    given["transactionalId"] = parsed.id
    if parsed.commit_topic is not None:
        given["commitTopic"] = parsed.commit_topic
    return parse_sink_options(given, streaming=False)


def _transactions(parsed: argparse.Namespace) -> int:
    options = _options(parsed)
    assert options.exactly_once is not None  # because `transactionalId` is set
    with open_transactional(options.client) as client:
        command = _Command(client, options.exactly_once, parsed)
        return command.run()


class _Command:
    """One run of the command. Prints lines as they come, or one JSON document at the end."""

    def __init__(
        self, client: TransactionalClient, options: ExactlyOnce, parsed: argparse.Namespace
    ) -> None:
        self._client = client
        self._options = options
        self._parsed = parsed
        self._document: dict[str, Any] = {}

    def run(self) -> int:
        report = self._look()
        if report.is_unknown:
            raise ExactlyOnceError(
                f"The cluster has no trace of transactionalId '{report.sink_id}': no decision in "
                f"topic '{report.commit_topic}', and no transaction.",
                advice="Check --id, --bootstrap-servers and --commit-topic (the sink's option "
                "commitTopic). If the query has never started a batch, there is nothing to do.",
                topic=report.commit_topic,
                transactional_id=report.sink_id,
            )
        is_repair = self._parsed.recover or self._parsed.forget
        code = self._repair(report) if is_repair else self._show(report)
        if self._parsed.json:
            print(json.dumps({**self._document, "exit_code": code}, indent=2))
        return code

    def _look(self) -> Report:
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
        check(report, request, names_topic=self._parsed.commit_topic is not None)
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
        self._print(
            ("refused the owner seems to be alive: stop it, or use --take-over to fail its batch",)
        )
        return ALIVE

    def _signs_of_life(self, report: Report) -> Sequence[str]:
        """Compare the report with a second one some seconds later."""
        quiet_s = self._parsed.quiet
        if self._parsed.take_over or not quiet_s:
            return ()
        time.sleep(min(quiet_s, _WATCHED_S))
        return signs_of_life(report, self._look(), quiet_ms=quiet_s * 1_000)

    def _execute(self, report: Report, request: RepairRequest, planned: Sequence[str]) -> int:
        done: list[str] = []

        def on_action(text: str) -> None:
            """Print the action at once, so that it is known even if the next one fails."""
            done.append(text)
            print(f"done {text}", flush=True, file=sys.stderr if self._parsed.json else None)

        self._document["done"] = done
        if planned:
            repair(self._client, report, request, on_action)
        else:
            self._print(f"done {text}" for text in _NOTHING)
        return self._show(self._look())

    def _print(self, texts: Iterable[str]) -> None:
        if not self._parsed.json:
            for text in texts:
                print(text)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    # The command itself prints what the sink would log.
    logging.getLogger("pyspark_kafka.sink").setLevel(logging.CRITICAL)
    sys.exit(main())
