"""What brokers and controllers share: storage on disk, a node without I/O, a clock and a server.

Purpose: the start and the stop of a running node. Invariants: a failed start leaves nothing open;
`ended` completes once, and the node is not called afterwards. Must not know: what the node does.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from broker_ref.faults import Faults
from broker_ref.io.clock import SystemClock
from broker_ref.io.disk import DiskStorage
from broker_ref.io.server import ListenError, ServedNode, Server, ServerLimits, listen
from broker_ref.io.settings import BrokerStartError
from broker_ref.log.errors import LogError
from broker_ref.log.storage import StorageError
from broker_ref.protocol.errors import ApiError

logger = logging.getLogger(__name__)


class Node(ServedNode, Protocol):
    """The node, as a running node uses it."""

    @property
    def failure(self) -> str | None: ...

    def close(self, now_ms: int) -> None: ...


@contextmanager
def starting(data: Path, host: str, port: int) -> Iterator[tuple[DiskStorage, socket.socket]]:
    """Lock the data directory and open the listening socket; closes both if the start fails.

    The socket is bound before logs are recovered, so that a port in use is reported immediately.
    Errors in the block are raised as BrokerStartError.
    """
    try:
        storage = DiskStorage(data)
        try:
            listener = listen(host, port)
            try:
                yield storage, listener
            except BaseException:
                listener.close()
                raise
        except BaseException:
            storage.close()
            raise
    except (ApiError, ListenError, LogError, StorageError) as error:
        raise BrokerStartError(str(error)) from error


class RunningNode:
    """A node that runs within one event loop.

    `ended` completes when the node has stopped, with a BrokerStartError if it could not continue.
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
    ) -> None:
        self.server = Server(
            node,
            now_ms=clock.now_ms,
            limits=limits,
            on_step=self._on_step,
            is_cut=lambda channel: faults.link_is_cut(node_id, channel.node_id),
            is_deaf=lambda channel: faults.link_is_cut(channel.node_id, node_id),
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
        """Stop accepting, flush and close the logs, unlock the directory.

        Raises: LogError or StorageError if a log could not be flushed; everything is closed anyway.
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
        """Stop as kill -9 does: nothing is flushed and nobody is notified."""
        self._drop(None)

    def _on_step(self) -> None:
        if self._node.failure is not None and self._ends_on_failure():
            logger.error("%s stops: %s", self._name, self._node.failure)
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
            self.server.poke()

    def _end(self, error: Exception | None) -> None:
        self._stop_listening()
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)
            self.ended.exception()  # Retrieve the exception, because not every caller does.


async def wait_for_stop(stop_requested: asyncio.Event, *ended: asyncio.Future[None]) -> None:
    """Wait for a stop signal; raises the error of a node that ended by itself."""
    asked = asyncio.ensure_future(stop_requested.wait())
    waiting: set[asyncio.Future[Any]] = {asked, *ended}
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    for future in ended:
        if future.done():
            future.result()
