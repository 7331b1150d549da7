"""Scripts of a broker that coordinates transactions and groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark_kafka.kafka.transactions import ProducerIdAndEpoch
from pyspark_kafka.wire.router import Router
from pyspark_kafka.wire.writer import int16, int32, int64, length, string
from tests.pyspark_kafka.wire.scripted import (
    ALL_VERSIONS,
    Peer,
    ReceivedRequest,
    ScriptedBroker,
    ScriptedResponses,
    frame,
)
from tests.pyspark_kafka.wire.test_router import router

PRODUCER = ProducerIdAndEpoch(producer_id=2**40, producer_epoch=7)


def coordinators(*names: str, port: int) -> dict[str, Any]:
    found = {"node_id": 1, "host": "127.0.0.1", "port": port, "error_message": None}
    return {"coordinators": [{"key": name, **found} for name in names]}


@contextmanager
def coordinated(
    responses: ScriptedResponses, *names: str, ranges: dict[int, tuple[int, int]] | None = None
) -> Iterator[Router]:
    """Yield a router to a broker that coordinates these names, looked up in this order."""

    def script(peer: Peer) -> None:
        peer.negotiate({**ALL_VERSIONS, **(ranges or {})})
        responses.serve(peer)

    with ScriptedBroker(script) as broker, router(broker) as one:
        found = [coordinators(name, port=broker.port) for name in names]
        responses.by_api.setdefault("find_coordinator", found)
        yield one


def version_asked(
    responses: ScriptedResponses, fields: dict[str, Any]
) -> Callable[[Peer, ReceivedRequest], None]:
    """Return a response that adds the request's version to `responses.received`."""

    def respond(peer: Peer, request: ReceivedRequest) -> None:
        api = responses.received.pop()
        responses.received.append(f"{api} v{request.version}")
        peer.respond(request, api, **fields)

    return respond


def initialised(error_code: int = 0) -> dict[str, Any]:
    return {
        "error_code": error_code,
        "producer_id": PRODUCER.producer_id,
        "producer_epoch": PRODUCER.producer_epoch,
    }


def closes(peer: Peer, _: ReceivedRequest) -> None:
    peer.close()


def garbage(peer: Peer, request: ReceivedRequest) -> None:
    peer.send(frame(request.correlation_id.to_bytes(4) + b"\xff" * 9))


def ended(error_code: int = 0) -> dict[str, Any]:
    return {"error_code": error_code}


def find_all(responses: ScriptedResponses, *names: str) -> None:
    def respond(peer: Peer, request: ReceivedRequest) -> None:
        port = peer._socket.getsockname()[1]
        requested = [name for name in names if string(name, flexible=True) in request.rest]
        peer.respond(request, "find_coordinator", **coordinators(*requested, port=port))

    responses.by_api["find_coordinator"] = [respond]


def state(
    name: str = "x",
    *,
    error_code: int = 0,
    state_name: str = "Ongoing",
    started_ms: int = 5_000,
    partitions: tuple[int, ...] = (0, 3),
) -> bytes:
    """Encode a transaction as brokers describe it; kio cannot write a start time of -1."""
    indexes = length(len(partitions), flexible=True) + b"".join(int32(p) for p in partitions)
    topics = length(1, flexible=True) + string("t", flexible=True) + indexes + b"\0"
    return (
        int16(error_code)
        + string(name, flexible=True)
        + string(state_name, flexible=True)
        + int32(60_000)
        + int64(started_ms)
        + int64(PRODUCER.producer_id)
        + int16(PRODUCER.producer_epoch)
        + topics
        + b"\0"
    )


def described(*states: bytes) -> bytes:
    return int32(9) + length(len(states), flexible=True) + b"".join(states) + b"\0"
