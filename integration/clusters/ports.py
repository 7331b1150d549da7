"""Free TCP ports on the loopback interface.

The ports are below the operating system's ephemeral port range, so the port of a stopped broker
stays free. If another process takes a port before the caller binds it, the caller retries with new
ports.
"""

from __future__ import annotations

import random
import socket

LOWEST = 10_000
HIGHEST = 32_000
ATTEMPTS = 200


def free_ports(count: int) -> list[int]:
    """Return `count` different free ports. Raise `OSError` if not enough ports are found."""
    chosen: set[int] = set()
    for _ in range(ATTEMPTS):
        port = random.randint(LOWEST, HIGHEST)  # noqa: S311
        if port not in chosen and _is_free(port):
            chosen.add(port)
            if len(chosen) == count:
                return sorted(chosen)
    raise OSError(
        f"found fewer than {count} free ports between {LOWEST} and {HIGHEST} in {ATTEMPTS} attempts"
    )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
