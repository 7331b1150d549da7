"""The common parts of running brokers and controllers: storage, node, clock and server.

Invariants: after a failed start, no files or sockets remain open. The future `ended` of a node
completes once. After that, the node receives no more calls.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from broker_ref.events import Channel
from broker_ref.faults import Faults
from broker_ref.io.clock import SystemClock
from broker_ref.io.disk import DiskStorage
from broker_ref.io.server import ListenError, ServedNode, Server, ServerLimits, listen
from broker_ref.io.settings import BrokerStartError
from broker_ref.log.errors import LogError
from broker_ref.log.storage import StorageError
from broker_ref.protocol.errors import ApiError
from broker_ref.security.sasl_client_authenticator import SaslClientAuthenticator

logger = logging.getLogger(__name__)


class Node(ServedNode, Protocol):
    """The methods of a node that `RunningNode` uses."""

    @property
    def failure(self) -> str | None: ...

    def close(self, now_ms: int) -> None: ...


@contextmanager
def starting(
    data: Path, addresses: Sequence[tuple[str, int]]
) -> Iterator[tuple[DiskStorage, list[socket.socket]]]:
    """Lock the data directory and open the listening sockets.

    If a port is in use, startup fails immediately, before any logs are recovered. If startup fails,
    the sockets are closed and the directory is unlocked. Errors in the `with` block are raised as
    BrokerStartError.
    """
    try:
        with ExitStack() as opened:
            storage = DiskStorage(data)
            opened.callback(storage.close)
            sockets = []
            for host, port in addresses:
                listener = listen(host, port)
                opened.callback(listener.close)
                sockets.append(listener)
            yield storage, sockets
            opened.pop_all()
    except (ApiError, ListenError, LogError, StorageError) as error:
        raise BrokerStartError(str(error)) from error


class RunningNode:
    """A node that runs within one event loop.

    The future `ended` completes when the node has stopped. If the node could not continue, the
    future raises BrokerStartError.
    """

    def __init__(
        self,
        node: Node,
        *,
        name: str,
        node_id: int,
        storage: DiskStorage,
        clock: SystemClock,
        limits: ServerLimits,
        faults: Faults,
        peer_tls: Callable[[Channel], ssl.SSLContext | None] = lambda _: None,
        peer_login: Callable[[Channel], SaslClientAuthenticator | None] = lambda _: None,
    ) -> None:
        self.server = Server(
            node,
            now_ms=clock.now_ms,
            limits=limits,
            on_step=self._on_step,
            is_cut=lambda channel: faults.link_is_cut(node_id, channel.node_id),
            drops_responses=lambda channel: faults.link_is_cut(channel.node_id, node_id),
            peer_tls=peer_tls,
            peer_login=peer_login,
        )
        loop = asyncio.get_running_loop()

        def faults_changed() -> None:
            loop.call_soon_threadsafe(self._faults_changed)

        self._stop_listening = faults.listen(faults_changed)
        self.ended: asyncio.Future[None] = loop.create_future()
        self._node = node
        self._name = name
        self._storage = storage
        self._clock = clock

    async def stop(self) -> None:
        """Stop accepting requests, flush and close the logs, and unlock the directory.

        Raises: LogError or StorageError if a log cannot be flushed. All other components are closed
        nevertheless.
        """
        try:
            await self.server.stop()
        finally:
            try:
                self._node.close(self._clock.now_ms())
            finally:
                self._storage.close()
                self._end(None)
        logger.info("%s has stopped", self._name)

    def kill(self) -> None:
        """Stop as SIGKILL would: nothing is flushed, and other nodes are not notified."""
        self._drop(None)

    def _on_step(self) -> None:
        if self._node.failure is not None and self._ends_on_failure():
            logger.error("%s was stopped because of an error: %s", self._name, self._node.failure)
            self._drop(BrokerStartError(self._node.failure))

    def _ends_on_failure(self) -> bool:
        return not self.ended.done()

    def _drop(self, error: Exception | None) -> None:
        self.server.abort()
        self._storage.close()
        self._end(error)

    def _faults_changed(self) -> None:
        if not self.ended.done():
            self.server.peers.cut()
            self.server.run_due_work()

    def _end(self, error: Exception | None) -> None:
        self._stop_listening()
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)
            self.ended.exception()  # Mark the exception as retrieved.


async def wait_for_stop(stop_requested: asyncio.Event, *ended: asyncio.Future[None]) -> None:
    """Wait for a stop signal. If a node fails first, raise its error."""
    stopping = asyncio.ensure_future(stop_requested.wait())
    waiting: set[asyncio.Future[Any]] = {stopping, *ended}
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    for future in ended:
        if future.done():
            future.result()
