"""`python -m broker_ref`: run the reference broker from the command line.

Purpose: parse the arguments, start, print one line with the bootstrap servers once it serves, stop
in good order on SIGINT or SIGTERM. Invariant: stdout carries that line and nothing else; whatever
is wrong is one line on stderr, with exit code 2 for the arguments and 1 for all else. Must not
know: anything that a Python test could not do as well through `broker_ref.Cluster`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import resource
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from broker_ref.io.broker import Broker, BrokerSettings, BrokerStartError
from broker_ref.io.cluster import broker_directory
from broker_ref.log.errors import LogError
from broker_ref.log.storage import StorageError

_BROKER_ID = 1
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see --help)\n")


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 65_535:
        raise argparse.ArgumentTypeError(f"'{text}' is not a port: 0 (a free one) to 65535")
    return int(text)


def _brokers(text: str) -> int:
    if text != "1":
        raise argparse.ArgumentTypeError(f"this version runs one broker, not '{text}'")
    return 1


def _config(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(f"'{text}' is not of the form name=value")
    return name.strip(), value.strip()


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="python -m broker_ref",
        description="A reference Kafka broker in Python. Prints its bootstrap servers when ready; "
        "SIGINT or SIGTERM stops it.",
    )
    parser.add_argument("--brokers", type=_brokers, default=1, help="how many brokers (now: 1)")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="where to keep topics; without it in a temporary directory, removed at the end",
    )
    parser.add_argument(
        "--port", type=_port, default=9092, help="port to listen on, 0 for a free one [9092]"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on [127.0.0.1]")
    parser.add_argument(
        "--advertised-host",
        metavar="NAME",
        help="host that clients are told to connect to [that of --host]",
    )
    parser.add_argument(
        "--config",
        type=_config,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a broker config by Kafka's name, such as num.partitions=3; may be repeated",
    )
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="what to log on stderr [info]",
    )
    return parser.parse_args(arguments)


def _raise_open_files_limit() -> None:
    """Let the process have as many files and connections as the system allows it (the hard limit).

    The usual soft limit of 1,024 is there for programs that use select(2).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(
            OSError, ValueError
        ):  # Some systems have a lower one of their own.
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(settings: BrokerSettings) -> None:
    """Run one broker until a signal; a second signal ends the process at once."""
    stop_asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop_asked.set)
    broker = await Broker.start(settings)
    try:
        print(broker.address, flush=True)
        await stop_asked.wait()
    finally:
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        await broker.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(
        stream=sys.stderr,
        level=options.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    _raise_open_files_limit()
    with contextlib.ExitStack() as stack:
        try:
            data = options.data
            if data is None:
                directory = tempfile.TemporaryDirectory(prefix="broker_ref-")
                data = Path(stack.enter_context(directory))
            settings = BrokerSettings(
                node_id=_BROKER_ID,
                data=broker_directory(data, _BROKER_ID),
                host=options.host,
                port=options.port,
                advertised_host=options.advertised_host,
                configs=dict(options.config),
            )
            asyncio.run(_serve(settings))
        except (BrokerStartError, LogError, StorageError, OSError) as error:
            print(f"python -m broker_ref: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
