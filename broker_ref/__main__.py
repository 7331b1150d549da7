"""`python -m broker_ref`: run a reference cluster, or one node of one, from the command line.

    python -m broker_ref --brokers 3 --data DIR              a cluster in this process
    python -m broker_ref --brokers 3 --data DIR --processes  a process for each broker
    python -m broker_ref controller --data DIR --port 9093   one controller
    python -m broker_ref node --id 1 --controller HOST:PORT --data DIR --port 9092

Purpose: parse the arguments, start, print one line with the addresses once it serves, stop in good
order on SIGINT or SIGTERM. Invariant: stdout carries that line and nothing else; whatever is wrong
is one line on stderr, with exit code 2 for the arguments and 1 for all else. Must not know:
anything that a Python test could not do as well through `broker_ref.Cluster`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from broker_ref.controller.features import check_is_supported
from broker_ref.io.broker import Broker
from broker_ref.io.cluster import (
    broker_directory,
    cluster_configs,
    controller_directory,
    start_all,
    stop_all,
)
from broker_ref.io.controller import ControllerServer
from broker_ref.io.processes import ProcessesSettings, run
from broker_ref.io.running import until_asked_or_ended
from broker_ref.io.settings import BrokerSettings, BrokerStartError, ControllerSettings, check_host
from broker_ref.log.errors import LogError
from broker_ref.log.storage import StorageError
from broker_ref.protocol.errors import ApiError

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_BROKERS_MAX = 100


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see --help)\n")


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 65_535:
        raise argparse.ArgumentTypeError(f"'{text}' is not a port: 0 (a free one) to 65535")
    return int(text)


def _brokers(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _BROKERS_MAX:
        raise argparse.ArgumentTypeError(f"'{text}' is not a count: 1 to {_BROKERS_MAX}")
    return int(text)


def _node_id(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**31:
        raise argparse.ArgumentTypeError(f"'{text}' is not the id of a broker")
    return int(text)


def _address(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not host or not separator or _port(port) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not of the form HOST:PORT")
    return host.strip("[]"), int(port)


def _config(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(f"'{text}' is not of the form name=value")
    return name.strip(), value.strip()


def _feature(text: str) -> tuple[str, int]:
    name, separator, version = text.partition("=")
    if not name or not separator or not version.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is not of the form feature=version")
    try:
        check_is_supported(name, int(version))
    except ApiError as error:
        raise argparse.ArgumentTypeError(error.message) from None
    return name, int(version)


def _add_features(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--feature",
        type=_feature,
        action="append",
        default=[],
        metavar="NAME=VERSION",
        help="a feature that a new cluster finalizes at another version than Kafka's default, such "
        "as transaction.version=1; may be repeated",
    )


def _add_common(parser: argparse.ArgumentParser, *, port: int) -> None:
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="where to keep topics; without it in a temporary directory, removed at the end",
    )
    parser.add_argument(
        "--port", type=_port, default=port, help=f"port to listen on, 0 for a free one [{port}]"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on [127.0.0.1]")
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


def _add_advertised(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--advertised-host",
        metavar="NAME",
        help="host that clients are told to connect to [that of --host]",
    )


def _cluster_parser() -> _Parser:
    parser = _Parser(
        prog="python -m broker_ref",
        description="A reference Kafka cluster in Python. Prints its bootstrap servers when ready; "
        "SIGINT or SIGTERM stops it.",
        epilog="`controller --help` and `node --help` tell how to run one node.",
    )
    parser.add_argument("--brokers", type=_brokers, default=1, help="how many brokers [1]")
    parser.add_argument(
        "--processes", action="store_true", help="one operating-system process for each broker"
    )
    _add_common(parser, port=9092)
    _add_advertised(parser)
    _add_features(parser)
    return parser


def _controller_parser() -> _Parser:
    parser = _Parser(
        prog="python -m broker_ref controller",
        description="The controller of a cluster. Prints its address when ready.",
    )
    _add_common(parser, port=9093)
    _add_features(parser)
    return parser


def _node_parser() -> _Parser:
    parser = _Parser(
        prog="python -m broker_ref node",
        description="One broker of a cluster. Prints its address when the controller has let it in.",
    )
    parser.add_argument("--id", type=_node_id, required=True, help="the broker's node id")
    parser.add_argument(
        "--controller", type=_address, required=True, metavar="HOST:PORT", help="the controller"
    )
    parser.add_argument("--rack", help="the broker's rack (broker.rack)")
    parser.add_argument(
        "--advertised-port", type=_port, help="port that clients are told to connect to"
    )
    parser.add_argument(
        "--stop-at-end-of-stdin",
        action="store_true",
        help="stop as on SIGTERM when stdin is closed, as it is when who started this has ended",
    )
    _add_common(parser, port=9092)
    _add_advertised(parser)
    return parser


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


@contextlib.contextmanager
def _stop_signals() -> Iterator[asyncio.Event]:
    """An event that a signal sets; a second signal ends the process at once."""
    stop_asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def release() -> None:
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    def asked() -> None:
        stop_asked.set()
        release()

    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, asked)
    try:
        yield stop_asked
    finally:
        release()


def _print_ready(line: str) -> None:
    print(line, flush=True)


async def _serve_cluster(options: argparse.Namespace, data: Path) -> None:
    configs = cluster_configs(options.brokers, dict(options.config))
    check_host(options.host, options.advertised_host)
    with _stop_signals() as stop_asked:
        if options.processes:
            node_arguments = ["--log-level", options.log_level]
            if options.advertised_host is not None:
                node_arguments += ["--advertised-host", options.advertised_host]
            settings = ProcessesSettings(
                brokers=options.brokers,
                data=data,
                host=options.host,
                port=options.port,
                configs=configs,
                features=dict(options.feature),
                node_arguments=node_arguments,
            )
            await run(settings, ready=_print_ready, stop_asked=stop_asked)
            return
        controller = await ControllerServer.start(
            ControllerSettings(
                data=controller_directory(data), configs=configs, features=dict(options.feature)
            )
        )
        brokers: list[Broker] = []
        try:
            brokers = await start_all(
                [
                    BrokerSettings(
                        node_id=broker_id,
                        data=broker_directory(data, broker_id),
                        controller=(controller.host, controller.port),
                        host=options.host,
                        port=options.port + broker_id - 1 if options.port else 0,
                        advertised_host=options.advertised_host,
                        configs=configs,
                    )
                    for broker_id in range(1, options.brokers + 1)
                ]
            )
            _print_ready(",".join(broker.address for broker in brokers))
            ended = [broker.ended for broker in brokers]
            await until_asked_or_ended(stop_asked, *ended, controller.ended)
        finally:
            await stop_all(brokers, controller)


async def _serve_controller(options: argparse.Namespace, data: Path) -> None:
    with _stop_signals() as stop_asked:
        controller = await ControllerServer.start(
            ControllerSettings(
                data=data,
                host=options.host,
                port=options.port,
                configs=dict(options.config),
                features=dict(options.feature),
            )
        )
        try:
            _print_ready(controller.address)
            await until_asked_or_ended(stop_asked, controller.ended)
        finally:
            await stop_all([], controller)


def _stop_at_end_of_stdin(stop_asked: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    stdin = sys.stdin.fileno()

    def read() -> None:
        if not os.read(stdin, 4096):
            loop.remove_reader(stdin)
            stop_asked.set()

    loop.add_reader(stdin, read)


async def _serve_node(options: argparse.Namespace, data: Path) -> None:
    with _stop_signals() as stop_asked:
        if options.stop_at_end_of_stdin:
            _stop_at_end_of_stdin(stop_asked)
        starting = asyncio.ensure_future(
            Broker.start(
                BrokerSettings(
                    node_id=options.id,
                    data=data,
                    controller=options.controller,
                    host=options.host,
                    port=options.port,
                    advertised_host=options.advertised_host,
                    advertised_port=options.advertised_port,
                    rack=options.rack,
                    configs=dict(options.config),
                )
            )
        )
        asked = asyncio.ensure_future(stop_asked.wait())
        waiting: set[asyncio.Future[Any]] = {starting, asked}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if not starting.done():
            starting.cancel()
            return
        broker = await starting
        try:
            _print_ready(broker.address)
            await until_asked_or_ended(stop_asked, broker.ended)
        finally:
            await stop_all([broker])


_Serve = Callable[[argparse.Namespace, Path], Awaitable[None]]

_COMMANDS: Final[dict[str, tuple[Callable[[], _Parser], _Serve]]] = {
    "": (_cluster_parser, _serve_cluster),
    "controller": (_controller_parser, _serve_controller),
    "node": (_node_parser, _serve_node),
}


async def _run(serve: _Serve, options: argparse.Namespace, data: Path) -> None:
    await serve(options, data)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    make_parser, serve = _COMMANDS[words.pop(0) if words and words[0] in _COMMANDS else ""]
    options = make_parser().parse_args(words)
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
            asyncio.run(_run(serve, options, data))
        except (BrokerStartError, LogError, StorageError, OSError) as error:
            print(f"python -m broker_ref: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
