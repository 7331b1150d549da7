"""Tests of requests to other nodes: exactly one callback is called, once."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.controller_api.k63_broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from broker_ref.events import Channel, CloseChannel, RequestFailed, ResponseReceived, SendRequest
from broker_ref.outbox import Outbox
from broker_ref.protocol.frames import response_frame

CHANNEL = Channel(node_id=3000, host="controller.test", port=9093, purpose="heartbeat")
REQUEST = BrokerHeartbeatRequest(
    broker_id=1, broker_epoch=7, current_metadata_offset=3, want_fence=False, want_shut_down=False
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse:
    error_code: ErrorCode = ErrorCode.none
    is_caught_up: bool = True
    is_fenced: bool = False
    should_shut_down: bool = False
    throttle_time_ms: int = 0


class OpenRequest:
    """An outbox with one request, and the calls of its callbacks."""

    def __init__(self, *, timeout_ms: int = 1000) -> None:
        self.outbox = Outbox(client_id="test")
        self.outbox.advance(10_000)
        self.responses: list[BrokerHeartbeatResponse] = []
        self.failures: list[str] = []
        self.outbox.send(
            CHANNEL,
            api_key=63,
            version=1,
            request=REQUEST,
            response=BrokerHeartbeatResponse,
            on_response=self.responses.append,
            on_failure=self.failures.append,
            timeout_ms=timeout_ms,
        )
        (self.effect,) = self.outbox.take_effects()

    @property
    def request_id(self) -> int:
        assert isinstance(self.effect, SendRequest)
        return self.effect.request_id

    def respond(self) -> None:
        frame = response_frame(
            api_key=63, version=1, correlation_id=self.request_id, message=HeartbeatResponse()
        )
        self.outbox.handle(ResponseReceived(request_id=self.request_id, frame=frame))


def test_a_response_is_delivered_once() -> None:
    open_request = OpenRequest()
    open_request.respond()
    open_request.respond()
    assert [response.is_caught_up for response in open_request.responses] == [True]
    assert open_request.failures == []
    assert open_request.outbox.next_deadline_ms() is None


def test_a_failure_is_delivered_once() -> None:
    open_request = OpenRequest()
    open_request.outbox.handle(RequestFailed(request_id=open_request.request_id, reason="it broke"))
    open_request.respond()
    assert open_request.failures == ["it broke"]
    assert open_request.responses == []


def test_a_request_timeout_closes_the_channel() -> None:
    open_request = OpenRequest(timeout_ms=500)
    assert open_request.outbox.next_deadline_ms() == 10_500
    open_request.outbox.advance(10_499)
    assert open_request.failures == []
    open_request.outbox.advance(10_500)
    (failure,) = open_request.failures
    assert "500 ms" in failure
    assert open_request.outbox.take_effects() == [CloseChannel(channel=CHANNEL)]
    open_request.respond()
    assert open_request.responses == []


@pytest.mark.parametrize("frame", [b"", b"\x00\x00\x00\x00", b"\x00\x00\x00\x00\x00\xff\xff"])
def test_an_unreadable_response_is_a_failure(frame: bytes) -> None:
    open_request = OpenRequest()
    open_request.outbox.handle(ResponseReceived(request_id=open_request.request_id, frame=frame))
    assert len(open_request.failures) == 1
    assert open_request.outbox.take_effects() == [CloseChannel(channel=CHANNEL)]
