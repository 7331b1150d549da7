"""The command line: `pyspark-kafka COMMAND`, or `python -m pyspark_kafka COMMAND`.

Each error is written to stderr as one line.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyspark_kafka.commands import compile_pyspark, offsets, transactions
from pyspark_kafka.commands.arguments import ARGUMENTS, FAILED, Parser
from pyspark_kafka.errors import PysparkKafkaError
from pyspark_kafka.version import VERSION

_SCRIPT: Final = "pyspark-kafka"


def _parser() -> Parser:
    is_script = Path(sys.argv[0]).stem == _SCRIPT
    parser = Parser(
        prog=_SCRIPT if is_script else "python -m pyspark_kafka",
        description="Tools for pyspark-kafka.",
        epilog="'%(prog)s COMMAND --help' describes a command.",
    )
    parser.add_argument("--version", action="version", version=f"{_SCRIPT} {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    offsets.add_command(commands.add_parser)
    transactions.add_command(commands.add_parser)
    compile_pyspark.add_command(commands.add_parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if parsed.command is None:
        parser.print_help(sys.stderr)
        return ARGUMENTS
    try:
        code: int = parsed.run(parsed)
    except PysparkKafkaError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted", file=sys.stderr)
        return FAILED
    except BrokenPipeError:
        # The process that reads stdout has closed the pipe, as `head` does. Suppress Python's error
        # message at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return code


def run() -> int:
    """Configure logging, run the command in `sys.argv`, and return the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    # The `transactions` command prints the events that the sink would log.
    logging.getLogger("pyspark_kafka.sink").setLevel(logging.CRITICAL)
    return main()


if __name__ == "__main__":
    sys.exit(run())
