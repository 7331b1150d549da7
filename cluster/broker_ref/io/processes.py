"""A cluster with one process per broker, for the command line.

The controller runs in this process, and each broker runs in a child process, until a stop signal is
received. Invariant: no child process outlives `run`. If this process is killed, its child processes
stop too, because their stdin is a pipe from this process. If a broker exits unexpectedly, an error
is logged and the other brokers continue.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from broker_ref.controller.records import UserScramCredentialRecord
from broker_ref.frozen import dataclass
from broker_ref.io.cluster import (
    broker_directory,
    controller_directory,
    listener_configs,
    stop_all,
)
from broker_ref.io.controller import ControllerServer
from broker_ref.io.private_files import write_private
from broker_ref.io.running import wait_for_stop
from broker_ref.io.settings import BrokerStartError, ControllerSettings
from broker_ref.security.properties import format_properties

READY_TIMEOUT_SECONDS: Final = 90.0
STOP_TIMEOUT_SECONDS: Final = 30.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessesSettings:
    """The settings of a cluster. `data` is the data directory of the cluster.

    The brokers use consecutive ports starting at `port`, or free ports if `port` is 0.
    `node_arguments` are appended to the command line of each broker.
    """

    brokers: int
    data: Path
    host: str
    port: int
    configs: dict[str, str]
    features: Mapping[str, int]
    scram_credentials: Sequence[UserScramCredentialRecord] = ()
    node_arguments: Sequence[str]


async def run(
    settings: ProcessesSettings, *, ready: Callable[[str], None], stop_requested: asyncio.Event
) -> None:
    """Start the cluster, pass its addresses to `ready`, and stop it when `stop_requested` is set.

    Raises: BrokerStartError.
    """
    controller = await ControllerServer.start(
        ControllerSettings(
            data=controller_directory(settings.data),
            configs=settings.configs,
            features=settings.features,
            scram_credentials=settings.scram_credentials,
        )
    )
    children: list[asyncio.subprocess.Process] = []
    try:
        for broker_id in range(1, settings.brokers + 1):
            child = await _spawn(settings, broker_id, controller.address)
            children.append(child)
        addresses = await asyncio.gather(*(_ready_line(child) for child in children))
        ready(",".join(addresses))
        watching = [asyncio.create_task(_log_end(child)) for child in children]
        await wait_for_stop(stop_requested, controller.ended)
        for task in watching:
            task.cancel()
    finally:
        await asyncio.gather(*(_end(child) for child in children))
        await stop_all([], controller)


async def _spawn(
    settings: ProcessesSettings, broker_id: int, controller: str
) -> asyncio.subprocess.Process:
    port = settings.port + broker_id - 1 if settings.port else 0
    arguments = ["--id", str(broker_id), "--controller", controller, "--host", settings.host]
    arguments += ["--stop-at-end-of-stdin"]
    arguments += ["--data", str(broker_directory(settings.data, broker_id)), "--port", str(port)]
    # Configs can contain secrets, which other users could see on a command line.
    config_file = settings.data / f"broker-{broker_id}.properties"
    configs = listener_configs(settings.configs, broker_id)
    write_private(config_file, format_properties(configs))
    arguments += ["--config-file", str(config_file)]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "broker_ref", "node", *arguments, *settings.node_arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Only this process receives Ctrl-C; it then stops its children.
    )  # fmt: skip


async def _ready_line(child: asyncio.subprocess.Process) -> str:
    assert child.stdout is not None
    try:
        line = await asyncio.wait_for(child.stdout.readline(), READY_TIMEOUT_SECONDS)
    except TimeoutError:
        line = b""
    if not line:
        raise BrokerStartError("A broker did not start. See its output above.")
    return line.decode().strip()


async def _log_end(child: asyncio.subprocess.Process) -> None:
    code = await child.wait()
    logger.error("The broker with process id %d exited with code %d", child.pid, code)


async def _end(child: asyncio.subprocess.Process) -> None:
    """Stop a child process cleanly, or kill it after a timeout."""
    if child.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        child.terminate()
    try:
        await asyncio.wait_for(child.wait(), STOP_TIMEOUT_SECONDS)
    except TimeoutError:
        child.kill()
        await child.wait()
