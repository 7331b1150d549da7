"""A correction of kafka-python, whose clients leave some sockets open when they are closed.

A client that is closed while it connects or sends drops the coroutine that owns the socket
(kafka-python 3.0.12, `KafkaNetSocket.sock_connect` and `KafkaTCPTransport.close`). A later garbage
collection then reports the socket in a test that has nothing to do with it. This module closes only
the sockets of kafka-python, so that the tests continue to find ours.
"""

from __future__ import annotations

import socket
from typing import Any

from kafka.net.inet import KafkaNetSocket


class _ClosedWhenDropped(socket.socket):
    def __del__(self) -> None:
        self.close()


def _open(
    _: KafkaNetSocket,
    family: int = socket.AF_UNSPEC,
    kind: int = socket.SOCK_STREAM,
    protocol: int = socket.IPPROTO_TCP,
) -> socket.socket:
    return _ClosedWhenDropped(family, kind, protocol)


def close_dropped_sockets() -> None:
    """Make kafka-python's plain (not TLS) sockets close themselves when they are collected."""
    client: Any = KafkaNetSocket
    client.socket = _open
