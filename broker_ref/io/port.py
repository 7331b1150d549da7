"""Hold a port for a broker that is started, killed and started again.

Purpose: between two lives of a broker its port must not go to somebody else: not to another
server, and not to a client's outgoing connection (the kernel takes both from the same range; a
client that keeps dialling a dead port can even be connected to itself). Invariant: a reserved port
is bound but not listened on, so clients are refused, while a listener that sets SO_REUSEADDR may
still bind it. Must not know: brokers.
"""

from __future__ import annotations

import socket


class PortReservation:
    """Keeps one TCP port of `host`; port 0 reserves a free one. Raises `OSError`."""

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
        """Give the port back."""
        self._socket.close()
