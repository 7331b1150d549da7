"""A broker under test, whose requests are encoded and responses decoded with kio."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from kio.index import load_response_schema
from kio.serial import entity_reader, entity_writer

from broker_ref.api.contract import Broker
from broker_ref.config import BrokerConfig
from broker_ref.events import (
    CloseConnection,
    ConnectionClosed,
    ConnectionOpened,
    Effect,
    Event,
    FrameReceived,
    NoResponse,
    SendFrame,
)
from broker_ref.log.log_dir import UNKNOWN_LOG_DIR, LogDir
from broker_ref.log.storage import Storage
from broker_ref.node.broker import BrokerNode
from integration.simulation.cluster import CONTROLLER, PORT, host_of
from tests.broker_ref.memory_storage import MemoryStorage
from tests.broker_ref.virtual import VirtualCluster


def request_frame(
    request: Any, *, correlation_id: int = 7, client_id: str | None = "test"
) -> bytes:
    schema = type(request)
    header = schema.__header_schema__(
        request_api_key=schema.__api_key__,
        request_api_version=schema.__version__,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    buffer = io.BytesIO()
    entity_writer(type(header))(buffer, header)
    entity_writer(schema)(buffer, request)
    return buffer.getvalue()


def read_response(request: Any, frame: bytes, *, correlation_id: int = 7) -> Any:
    """Decode the response to a request, which must be the only content of the frame."""
    schema: Any = load_response_schema(int(request.__api_key__), int(request.__version__))
    header, header_size = entity_reader(schema.__header_schema__)(frame, 0)
    assert header.correlation_id == correlation_id
    response, body_size = entity_reader(schema)(frame, header_size)
    assert header_size + body_size == len(frame)
    return response


class NodeDriver:
    """A broker with its controller and the connections to the broker."""

    def __init__(
        self,
        config: BrokerConfig | None = None,
        *,
        storage: Storage | None = None,
        controller_storage: Storage | None = None,
        seed: int = 1,
        log_dir: LogDir = UNKNOWN_LOG_DIR,
    ) -> None:
        self.config = config if config is not None else BrokerConfig(offsets_topic_num_partitions=4)
        self.storage = storage or MemoryStorage()
        self.controller_storage = controller_storage or MemoryStorage()
        disks = {host_of(self.config.node_id): self.storage, CONTROLLER: self.controller_storage}
        self.cluster = VirtualCluster(self.config, disks=disks, seed=seed, log_dir=log_dir)
        self.cluster.start_all()

    @property
    def node(self) -> BrokerNode:
        return self.cluster.broker(self.config.node_id)

    @property
    def broker(self) -> Broker:
        assert self.node.broker is not None
        return self.node.broker

    @property
    def now_ms(self) -> int:
        return self.cluster.now_ms

    def restart(self) -> None:
        self.cluster.stop_broker(self.config.node_id)
        self.crash()

    def crash(self) -> None:
        """Start again with the same storages, without a stop."""
        for host in self.cluster.hosts:
            self.cluster.kill(host)
        self.cluster.start_all()

    def handle(self, event: Event) -> list[Effect]:
        return self.cluster.handle(self.config.node_id, event)

    def advance(self, milliseconds: int) -> list[Effect]:
        self.cluster.advance(milliseconds)
        return self.cluster.take_effects()

    def open(self, connection_id: int) -> None:
        event = ConnectionOpened(connection_id=connection_id, peer="p:1", local=(host_of(1), PORT))
        assert self.handle(event) == []

    def close(self, connection_id: int) -> None:
        assert self.handle(ConnectionClosed(connection_id=connection_id)) == []

    def send(self, request: Any, *, connection_id: int = 1) -> list[Effect]:
        return self.handle(FrameReceived(connection_id=connection_id, frame=request_frame(request)))

    def send_bytes(self, frame: bytes, *, connection_id: int = 1) -> list[Effect]:
        return self.handle(FrameReceived(connection_id=connection_id, frame=frame))

    def call(self, request: Any, *, connection_id: int = 1) -> Any:
        """Send a request that is answered immediately and return the response."""
        return only_response(request, self.send(request, connection_id=connection_id))


def only_response(request: Any, effects: Sequence[Effect]) -> Any:
    """Return the response; the only effect must be to send it."""
    assert len(effects) == 1, effects
    (effect,) = effects
    assert isinstance(effect, SendFrame), effect
    return read_response(request, effect.frame)


def closes(effects: Sequence[Effect]) -> str:
    """Return the reason; the only effect must be to close the connection."""
    assert len(effects) == 1, effects
    (effect,) = effects
    assert isinstance(effect, CloseConnection), effect
    return effect.reason


def has_no_response(effects: Sequence[Effect]) -> bool:
    return len(effects) == 1 and isinstance(effects[0], NoResponse)
