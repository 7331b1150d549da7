"""Free TCP ports on loopback.

Ports come from below the range that operating systems hand to outgoing connections, so that a
broker that is stopped finds its port still free when it starts again. Between choosing a port
and binding it another process may take it: whoever binds retries with new ones.
"""

from __future__ import annotations

import random
import socket

LOWEST = 10_000
HIGHEST = 32_000
ATTEMPTS = 200


def free_ports(count: int) -> list[int]:
    """`count` different ports that nobody listens on; raises `OSError` where none is found."""
    chosen: set[int] = set()
    for _ in range(ATTEMPTS):
        port = random.randint(LOWEST, HIGHEST)  # noqa: S311
        if port not in chosen and _is_free(port):
            chosen.add(port)
            if len(chosen) == count:
                return sorted(chosen)
    raise OSError(f"no {count} free ports of {LOWEST} to {HIGHEST} after {ATTEMPTS} attempts")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
