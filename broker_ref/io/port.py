"""Reserves the port of a broker that is killed and started again.

Purpose: while a broker is down, its port must not be taken by another server or by an outgoing
connection of a client (the kernel uses the same range; a client that connects to a closed port can
even be connected to itself). Invariant: a reserved port is bound but does not listen, so that
clients are refused, while a listener with SO_REUSEADDR can still bind it. Must not know: brokers.
"""

from __future__ import annotations

import socket


class PortReservation:
    """Reserves a TCP port of `host`; port 0 reserves a free one. Raises: OSError."""

    def __init__(self, host: str, port: int = 0) -> None:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(address)
        except OSError:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Release the port."""
        self._socket.close()
