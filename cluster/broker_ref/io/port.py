"""Reserves a broker's port, so that the broker can be restarted on the same port.

While a broker is down, other servers and outgoing client connections must not use its port. The
kernel selects the ports of outgoing connections from the same range. A client that connects to a
closed port can even be connected to itself. Invariant: a reserved port is bound but does not
listen. Connection attempts are therefore refused, but a listener with SO_REUSEADDR can bind the
port.
"""

from __future__ import annotations

import socket


class PortReservation:
    """A reserved TCP port on `host`. Port 0 reserves a free port. Raises: OSError."""

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
