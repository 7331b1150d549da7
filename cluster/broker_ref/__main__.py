"""The command line of the reference cluster: `python -m broker_ref`.

    python -m broker_ref --brokers 3 --data DIR              a cluster in this process
    python -m broker_ref --brokers 3 --data DIR --processes  one process per broker
    python -m broker_ref --secure --data DIR                 with TLS and SCRAM
    python -m broker_ref controller --data DIR --port 9093   one controller
    python -m broker_ref node --id 1 --controller HOST:PORT --data DIR --port 9092

The command parses the arguments and starts the nodes. When the nodes are ready, it prints one line
with their addresses. It shuts down cleanly on SIGINT or SIGTERM. Nothing else is written to stdout.
Errors are written to stderr, one per line. The exit code is 2 for invalid arguments and 1 for all
other errors.
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
from broker_ref.controller.records import UserScramCredentialRecord
from broker_ref.controller.scram import InvalidScramArgumentError, parse_scram_argument
from broker_ref.io.broker import Broker
from broker_ref.io.cluster import (
    broker_directory,
    cluster_configs,
    controller_directory,
    listener_configs,
    start_all,
    stop_all,
)
from broker_ref.io.controller import ControllerServer
from broker_ref.io.development_security import DevelopmentSecurity
from broker_ref.io.garbage_collection import LongLivedObjects
from broker_ref.io.processes import ProcessesSettings, run
from broker_ref.io.running import wait_for_stop
from broker_ref.io.settings import BrokerSettings, BrokerStartError, ControllerSettings, check_host
from broker_ref.log.errors import LogError
from broker_ref.log.storage import StorageError
from broker_ref.protocol.errors import ApiError
from broker_ref.security.development import Security
from broker_ref.security.listeners import LISTENERS
from broker_ref.security.properties import parse_properties

logger = logging.getLogger("broker_ref")

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_BROKERS_MAX = 100


class _Parser(argparse.ArgumentParser):
    """An argument parser that reports an error on one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see --help)\n")


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 65_535:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a valid port: use 1 to 65535, or 0 for a free port"
        )
    return int(text)


def _brokers(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _BROKERS_MAX:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a valid number of brokers: use 1 to {_BROKERS_MAX}"
        )
    return int(text)


def _node_id(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**31:
        raise argparse.ArgumentTypeError(f"'{text}' is not a valid node id: use 0 to {2**31 - 1}")
    return int(text)


def _address(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not host or not separator or _port(port) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not in the form HOST:PORT")
    return host.strip("[]"), int(port)


def _config(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(f"'{text}' is not in the form NAME=VALUE")
    return name.strip(), value.strip()


def _config_file(text: str) -> dict[str, str]:
    try:
        return parse_properties(Path(text).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"the file '{text}' cannot be read: {error}") from None


def _feature(text: str) -> tuple[str, int]:
    name, separator, version = text.partition("=")
    if not name or not separator or not version.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is not in the form FEATURE=VERSION")
    try:
        check_is_supported(name, int(version))
    except ApiError as error:
        raise argparse.ArgumentTypeError(error.message) from None
    return name, int(version)


def _scram(text: str) -> UserScramCredentialRecord:
    try:
        return parse_scram_argument(text, random_bytes=os.urandom)
    except InvalidScramArgumentError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _add_new_cluster(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--feature",
        type=_feature,
        action="append",
        default=[],
        metavar="NAME=VERSION",
        help="finalized version of a feature in a new cluster, for example "
        "transaction.version=1; can be repeated [Kafka's default version]",
    )
    parser.add_argument(
        "--add-scram",
        type=_scram,
        action="append",
        default=[],
        metavar="SCRAM_CREDENTIAL",
        help="SCRAM credential in a new cluster, for example "
        "'SCRAM-SHA-256=[name=alice,password=alice-secret]'; can be repeated",
    )


def _add_common(parser: argparse.ArgumentParser, *, port: int) -> None:
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="data directory [a temporary directory that is removed on exit]",
    )
    parser.add_argument(
        "--port",
        type=_port,
        default=port,
        help=f"port to listen on; 0 selects a free port [{port}]",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on [127.0.0.1]")
    parser.add_argument(
        "--config",
        type=_config,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="broker config, for example num.partitions=3; can be repeated",
    )
    parser.add_argument(
        "--config-file",
        type=_config_file,
        default={},
        metavar="FILE",
        help="properties file with broker configs; --config takes precedence",
    )
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="log level for stderr [info]",
    )


def _add_advertised(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--advertised-host",
        metavar="NAME",
        help="host that is advertised to clients [value of --host]",
    )


def _cluster_parser() -> _Parser:
    parser = _Parser(
        prog="python -m broker_ref",
        description="Run a reference Kafka cluster in Python. The command prints the bootstrap "
        "servers when the cluster is ready, and exits on SIGINT or SIGTERM.",
        epilog="Run `controller --help` or `node --help` for the options of a single node.",
    )
    parser.add_argument("--brokers", type=_brokers, default=1, help="number of brokers [1]")
    parser.add_argument(
        "--processes", action="store_true", help="run each broker in its own process"
    )
    parser.add_argument(
        "--secure",
        action="store_true",
        help="secure the cluster with TLS and SCRAM, using generated certificates and passwords, "
        "and write the client settings to the directory 'clients' in the data directory",
    )
    _add_common(parser, port=9092)
    _add_advertised(parser)
    _add_new_cluster(parser)
    return parser


def _controller_parser() -> _Parser:
    parser = _Parser(
        prog="python -m broker_ref controller",
        description="Run the controller of a cluster. The command prints the controller's "
        "address when the controller is ready.",
    )
    _add_common(parser, port=9093)
    _add_new_cluster(parser)
    return parser


def _node_parser() -> _Parser:
    parser = _Parser(
        prog="python -m broker_ref node",
        description="Run one broker of a cluster. The command prints the broker's address when "
        "the controller has unfenced the broker.",
    )
    parser.add_argument(
        "--id", type=_node_id, required=True, help="node id of the broker (node.id)"
    )
    parser.add_argument(
        "--controller",
        type=_address,
        required=True,
        metavar="HOST:PORT",
        help="address of the controller",
    )
    parser.add_argument("--rack", help="rack of the broker (broker.rack)")
    parser.add_argument("--advertised-port", type=_port, help="port that is advertised to clients")
    parser.add_argument(
        "--stop-at-end-of-stdin",
        action="store_true",
        help="stop when stdin is closed, for example because the parent process has ended",
    )
    _add_common(parser, port=9092)
    _add_advertised(parser)
    return parser


def _raise_open_files_limit() -> None:
    """Raise the soft limit on open files to the hard limit.

    The default soft limit is often 1,024, for compatibility with programs that use select(2).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # Some systems reject the hard limit.
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def _stop_signals() -> Iterator[asyncio.Event]:
    """Yield an event that is set by the first stop signal.

    A second signal terminates the process.
    """
    stop_requested = asyncio.Event()
    loop = asyncio.get_running_loop()

    def release() -> None:
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    def stopping() -> None:
        stop_requested.set()
        release()

    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stopping)
    try:
        yield stop_requested
    finally:
        release()


def _print_ready(line: str) -> None:
    print(line, flush=True)


def _configs(options: argparse.Namespace) -> dict[str, str]:
    return {**options.config_file, **dict(options.config)}


def _development_security(options: argparse.Namespace, data: Path) -> DevelopmentSecurity:
    hosts = (
        [options.host]
        if options.advertised_host is None
        else [options.host, options.advertised_host]
    )
    return DevelopmentSecurity(
        data, Security(), is_new=not controller_directory(data).exists(), hosts=hosts
    )


async def _serve_cluster(options: argparse.Namespace, data: Path) -> None:
    configs = cluster_configs(options.brokers, _configs(options))
    if LISTENERS not in configs:
        check_host(options.host, options.advertised_host)
    users = list(options.add_scram)
    print_ready = _print_ready
    if options.secure:
        security = _development_security(options, data)
        configs = security.broker_configs(
            configs, host=options.host, port=options.port, advertised_host=options.advertised_host
        )
        users += security.scram_credentials

        def print_ready(line: str) -> None:
            logger.info("The client settings are in %s", security.write_client_settings(line))
            _print_ready(line)

    with _stop_signals() as stop_requested:
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
                scram_credentials=users,
                node_arguments=node_arguments,
            )
            await run(settings, ready=print_ready, stop_requested=stop_requested)
            return
        controller = await ControllerServer.start(
            ControllerSettings(
                data=controller_directory(data),
                configs=configs,
                features=dict(options.feature),
                scram_credentials=users,
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
                        configs=listener_configs(configs, broker_id),
                    )
                    for broker_id in range(1, options.brokers + 1)
                ]
            )
            print_ready(",".join(broker.address for broker in brokers))
            ended = [broker.ended for broker in brokers]
            await wait_for_stop(stop_requested, *ended, controller.ended)
        finally:
            await stop_all(brokers, controller)


async def _serve_controller(options: argparse.Namespace, data: Path) -> None:
    with _stop_signals() as stop_requested:
        controller = await ControllerServer.start(
            ControllerSettings(
                data=data,
                host=options.host,
                port=options.port,
                configs=_configs(options),
                features=dict(options.feature),
                scram_credentials=options.add_scram,
            )
        )
        try:
            _print_ready(controller.address)
            await wait_for_stop(stop_requested, controller.ended)
        finally:
            await stop_all([], controller)


def _stop_at_end_of_stdin(stop_requested: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    stdin = sys.stdin.fileno()

    def read() -> None:
        if not os.read(stdin, 4096):
            loop.remove_reader(stdin)
            stop_requested.set()

    loop.add_reader(stdin, read)


async def _serve_node(options: argparse.Namespace, data: Path) -> None:
    with _stop_signals() as stop_requested:
        if options.stop_at_end_of_stdin:
            _stop_at_end_of_stdin(stop_requested)
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
                    configs=_configs(options),
                )
            )
        )
        stopping = asyncio.ensure_future(stop_requested.wait())
        waiting: set[asyncio.Future[Any]] = {starting, stopping}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():
            starting.cancel()
            return
        broker = await starting
        try:
            _print_ready(broker.address)
            await wait_for_stop(stop_requested, broker.ended)
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
        objects = LongLivedObjects()
        objects.start()
        stack.callback(objects.stop)
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
