"""TLS contexts for the settings of a listener, and an acceptor for TLS connections.

`SSLContext` reads keys only from files, so inline keys are written to a temporary file that only
the owner can read and that is removed immediately. Invariant: after `TlsAcceptor.stop`, no
handshake is in progress.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

from broker_ref.security.settings import Store, TlsSettings

logger = logging.getLogger(__name__)

SHUTDOWN_SECONDS: Final = 10.0
"""The maximum time for a client to read its responses and confirm the end of the connection."""

_UNEXPECTED_MESSAGE: Final = bytes((21, 3, 3, 0, 2, 2, 10))
"""The fatal alert for a client that does not speak TLS. OpenSSL sends no alert in this case."""

_ACCEPTS_MAX: Final = 100
_RETRY_ACCEPT_SECONDS: Final = 1.0

_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class TlsSettingsError(Exception):
    """A key store or trust store cannot be read."""


def server_context(settings: TlsSettings, *, listener: str) -> ssl.SSLContext:
    """Return the SSL context for clients of a listener. Raises: TlsSettingsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.verify_mode = _CLIENT_AUTH[settings.client_auth]
    _load(context, settings, listener)
    return context


def client_context(settings: TlsSettings, *, listener: str) -> ssl.SSLContext:
    """Return the SSL context for connections to other brokers. Raises: TlsSettingsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.checks_host_name
    _load(context, settings, listener)
    return context


def _load(context: ssl.SSLContext, settings: TlsSettings, listener: str) -> None:
    versions = sorted(_VERSIONS[name] for name in settings.protocols)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    try:
        _load_key_store(context, settings.key_store)
        if settings.trust_store is None:
            context.load_default_certs()
        else:
            load_trust_store(context, settings.trust_store)
    except (OSError, ValueError) as error:
        # The messages of OpenSSL contain neither keys nor passwords.
        raise TlsSettingsError(
            f"Cannot read the key store or the trust store of listener {listener}: {error}. Check "
            "the ssl.* configs of this listener."
        ) from error


def load_trust_store(context: ssl.SSLContext, store: Store) -> None:
    """Trust every certificate in the store, even if its issuer is not in the store, as Java does.

    Raises: OSError, ValueError.
    """
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cafile=store.location or None, cadata=store.certificates or None)


def _load_key_store(context: ssl.SSLContext, store: Store) -> None:
    # Without a password, OpenSSL would prompt for one on the terminal.
    password = store.key_password or ""
    if store.location:
        context.load_cert_chain(store.location, password=password)
        return
    with tempfile.TemporaryDirectory(prefix="broker_ref-") as directory:
        path = Path(directory) / "key-store.pem"
        path.touch(mode=0o600)
        path.write_text(f"{store.key}\n{store.certificates}\n")
        context.load_cert_chain(path, password=password)


class _Handshake:
    """A TLS context for one connection. If the handshake fails, the context stores the TLS alert.

    When a handshake fails, asyncio closes the connection without sending the alert, which contains
    the reason. If `has_begun` is True, an asyncio transport owns the socket `client` and closes it.
    If `is_complete` is True, the protocol of the connection owns this transport.
    """

    def __init__(self, context: ssl.SSLContext, client: socket.socket) -> None:
        self._context = context
        self.client = client
        self.has_begun = False
        self.is_complete = False
        self.alert = b""

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, **arguments: Any
    ) -> ssl.SSLObject:
        """Call `SSLContext.wrap_bio`, and store the alert if the handshake fails."""
        wrapped = self._context.wrap_bio(incoming, outgoing, **arguments)
        do_handshake = wrapped.do_handshake

        def keep_alert() -> None:
            try:
                do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError:
                self.alert = outgoing.read() or _UNEXPECTED_MESSAGE
                raise
            self.is_complete = True

        wrapped.do_handshake = keep_alert  # type: ignore[method-assign]
        return wrapped


class TlsAcceptor:
    """Accepts connections from `listener`, and passes them to a protocol after the handshake.

    If a handshake fails, the client receives a TLS alert, and the connection is closed after
    `failure_delay_seconds`, as in Kafka (`connection.failed.authentication.delay.ms`).
    """

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        new_protocol: Callable[[], asyncio.BaseProtocol],
        *,
        handshake_seconds: float,
        failure_delay_seconds: float,
    ) -> None:
        self._listener = listener
        self._context = context
        self._new_protocol = new_protocol
        self._handshake_seconds = handshake_seconds
        self._failure_delay_seconds = failure_delay_seconds
        self._loop = asyncio.get_running_loop()
        self._handshakes: dict[asyncio.Task[None], _Handshake] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._loop.add_reader(listener, self._accept)

    def stop_accepting(self) -> None:
        """Refuse new clients and close the listener."""
        if self._retry is not None:
            self._retry.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
            self._listener.close()

    def stop(self) -> None:
        """Stop accepting clients, and abort the handshakes that are in progress."""
        self.stop_accepting()
        for task, handshake in self._handshakes.items():
            if not handshake.is_complete:
                task.cancel()

    async def wait_closed(self) -> None:
        """Wait until the sockets of the aborted handshakes are closed."""
        if self._handshakes:
            await asyncio.wait(self._handshakes)
        await asyncio.sleep(0)  # A transport closes its socket in the next iteration of the loop.

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_MAX):
            try:
                client, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # No file descriptors are available.
                logger.error("Cannot accept a connection: %s. The server will retry", error)
                self._loop.remove_reader(self._listener)
                self._retry = self._loop.call_later(
                    _RETRY_ACCEPT_SECONDS,
                    lambda: self._loop.add_reader(self._listener, self._accept),
                )
                return
            client.setblocking(False)
            handshake = _Handshake(self._context, client)
            task = self._loop.create_task(self._shake_hands(handshake, f"{peer[0]}:{peer[1]}"))
            self._handshakes[task] = handshake
            task.add_done_callback(self._handshake_done)

    def _handshake_done(self, task: asyncio.Task[None]) -> None:
        handshake = self._handshakes.pop(task)
        if not handshake.has_begun:  # The task was cancelled before its first step, or failed.
            handshake.client.close()

    async def _shake_hands(self, handshake: _Handshake, peer: str) -> None:
        try:
            same = handshake.client.dup()
        except OSError as error:  # No file descriptors are available.
            logger.error("Cannot accept the connection from %s: %s", peer, error)
            return
        with same:
            handshake.has_begun = True
            try:
                await self._loop.connect_accepted_socket(
                    self._new_protocol,
                    handshake.client,
                    ssl=cast("ssl.SSLContext", handshake),
                    ssl_handshake_timeout=self._handshake_seconds,
                    ssl_shutdown_timeout=SHUTDOWN_SECONDS,
                )
            except OSError as error:
                logger.info("The TLS handshake with %s failed: %s", peer, error)
                with contextlib.suppress(OSError):
                    same.send(handshake.alert)
                    # If bytes from the client are unread, closing the socket discards the alert.
                    await asyncio.sleep(self._failure_delay_seconds)
