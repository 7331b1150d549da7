"""Tests of authentication in a node: the principal in calls, delays and frame limits."""

from __future__ import annotations

import dataclasses
import ipaddress
import ssl
from collections.abc import Sequence
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.api import k15_describe_groups, k17_sasl_handshake, k36_sasl_authenticate
from broker_ref.api.contract import Api, Call
from broker_ref.api.k60_describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from broker_ref.events import (
    CloseConnection,
    ConnectionOpened,
    Effect,
    FrameReceived,
    LimitFrames,
    SendFrame,
)
from broker_ref.node.authentication import Authentication, new_client
from broker_ref.node.dispatch import Client, Dispatcher
from broker_ref.schedule import Schedule
from broker_ref.security.hosts import host_address
from broker_ref.security.jaas import JaasEntry
from broker_ref.security.listeners import Endpoint, SecurityProtocol
from broker_ref.security.principals import ANONYMOUS, parse_mapping_rules
from broker_ref.security.settings import ListenerSettings, MechanismSettings, SaslSettings
from integration.raw import decode_response, encode_request, request
from tests.broker_ref.io.certificates import chain_of, client_certificate

NOW_MS = 1_000_000
DELAY_MS = 100
LISTENER = "SASL_PLAINTEXT"


class Node:
    """A dispatcher behind an `Authentication`. It stores the calls of DescribeCluster."""

    def __init__(self, *, max_reauth_ms: int = 0) -> None:
        self.calls: list[Call] = []
        self.now_ms = NOW_MS
        self.schedule = Schedule(NOW_MS)
        described = Api(
            key=60, versions=range(3), request=DescribeClusterRequest, handle=self._call
        )
        apis: dict[int, Api[Any]] = {
            api.key: api
            for api in (
                described,
                k15_describe_groups.API,
                k17_sasl_handshake.API,
                k36_sasl_authenticate.API,
            )
        }
        self.dispatcher = Dispatcher(apis, self, unsupported=lambda: None)
        jaas = JaasEntry(login_module="M", options={"user_alice": "secret"})
        mechanism = MechanismSettings(jaas=jaas, max_reauth_ms=max_reauth_ms)
        settings = ListenerSettings(
            endpoint=Endpoint(
                listener=LISTENER, host="h", port=1, protocol=SecurityProtocol.SASL_PLAINTEXT
            ),
            tls=None,
            sasl=SaslSettings(mechanisms={"PLAIN": mechanism}, max_receive_bytes=77),
            mapper=parse_mapping_rules("DEFAULT"),
        )
        self.authentication = Authentication(
            listeners={LISTENER: settings},
            failure_delay_ms=DELAY_MS,
            dispatcher=self.dispatcher,
            schedule=self.schedule,
            credential=lambda *_: None,
            random_bytes=bytes,
        )

    def _call(self, context: object, call: Call, message: object) -> DescribeClusterResponse:
        self.calls.append(call)
        return DescribeClusterResponse()

    def open(self, listener: str = LISTENER) -> Sequence[Effect]:
        client = Client(host="127.0.0.1", listener=listener)
        self.dispatcher.opened(1, client)
        self.authentication.opened(1, client)
        return self.dispatcher.take_effects()

    def send(self, api: str, version: int, **fields: Any) -> Sequence[Effect]:
        frame = encode_request(request(api, version, **fields), 7, "c")
        event = FrameReceived(connection_id=1, frame=frame)
        if self.authentication.admits(event, self.now_ms):
            self.dispatcher.serve(event, self.now_ms)
        return self.dispatcher.take_effects()

    def log_in(self, password: str = "secret") -> Sequence[Effect]:
        self.send("sasl_handshake", 1, mechanism="PLAIN")
        return self.send("sasl_authenticate", 2, auth_bytes=f"\0alice\0{password}".encode())

    def advance(self, milliseconds: int) -> Sequence[Effect]:
        self.now_ms += milliseconds
        self.schedule.run(self.now_ms)
        return self.dispatcher.take_effects()


def error_code(effect: Effect, api: str, version: int, **fields: Any) -> ErrorCode:
    assert isinstance(effect, SendFrame)
    decoded = decode_response(request(api, version, **fields), effect.frame, 7)
    found: ErrorCode = decoded.error_code
    return found


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("10.0.0.1:5", "10.0.0.1"),
        ("::ffff:10.0.0.1:5", "10.0.0.1"),
        ("::1:5", "0:0:0:0:0:0:0:1"),
        ("2001:db8::a0b:5", "2001:db8:0:0:0:0:0:a0b"),
        ("fe80::1%eth0:5", "fe80:0:0:0:0:0:0:1%eth0"),
    ],
)
def test_hosts_have_the_form_that_java_uses(peer: str, host: str) -> None:
    event = ConnectionOpened(connection_id=1, peer=peer, local=("h", 1), listener=LISTENER)
    assert new_client(event, {}).host == host
    plain, _, scope = host.partition("%")
    assert scope or host_address(ipaddress.ip_address(plain).packed) == host


def test_mapping_rules_do_not_apply_to_sasl_listeners() -> None:
    settings = ListenerSettings(
        endpoint=Endpoint(listener=LISTENER, host="h", port=1, protocol=SecurityProtocol.SASL_SSL),
        tls=None,
        sasl=SaslSettings(mechanisms={}, max_receive_bytes=77),
        mapper=parse_mapping_rules("RULE:^CN=nobody$/x/"),
    )
    event = ConnectionOpened(
        connection_id=1, peer="p:1", local=("h", 1), listener=LISTENER, certificate=certificate()
    )
    assert new_client(event, {LISTENER: settings}).principal == ANONYMOUS
    with pytest.raises(ValueError, match="alice"):
        new_client(event, {LISTENER: dataclasses.replace(settings, sasl=None)})


def certificate() -> bytes:
    """Return the certificate of a client in DER."""
    return ssl.PEM_cert_to_DER_cert(chain_of(client_certificate()))


def test_calls_contain_the_principal_and_the_listener() -> None:
    node = Node()
    assert node.open() == [LimitFrames(connection_id=1, bytes_max=77)]
    response, unlimited = node.log_in()
    assert isinstance(response, SendFrame)
    assert unlimited == LimitFrames(connection_id=1, bytes_max=None)
    node.send("describe_cluster", 0)
    assert [(str(call.principal), call.listener) for call in node.calls] == [
        ("User:alice", LISTENER)
    ]


def test_clients_of_other_listeners_are_anonymous() -> None:
    node = Node()
    assert node.open("PLAINTEXT") == []
    node.send("describe_cluster", 0)
    assert [(call.principal, call.listener) for call in node.calls] == [(ANONYMOUS, "PLAINTEXT")]


def test_requests_are_not_served_before_the_login() -> None:
    node = Node()
    node.open()
    assert node.send("describe_cluster", 0) == []
    (closed,) = node.advance(DELAY_MS)
    assert isinstance(closed, CloseConnection)
    assert node.calls == []


def test_a_failed_login_is_answered_after_the_delay_and_closed() -> None:
    node = Node()
    node.open()
    assert node.log_in("wrong") == []
    assert node.advance(DELAY_MS - 1) == []
    (effect,) = node.advance(1)
    assert isinstance(effect, SendFrame)
    assert "Invalid username or password" in (effect.close_reason or "")
    code = error_code(effect, "sasl_authenticate", 2, auth_bytes=b"")
    assert code is ErrorCode.sasl_authentication_failed


def test_a_client_that_has_left_gets_no_delayed_response() -> None:
    node = Node()
    node.open()
    node.log_in("wrong")
    node.authentication.closed(1)
    node.dispatcher.remove_requests(1)
    assert node.advance(DELAY_MS) == []


def test_an_illegal_request_during_the_login_gets_an_error_response() -> None:
    node = Node()
    node.open()
    node.send("sasl_handshake", 1, mechanism="PLAIN")
    assert node.send("describe_cluster", 0) == []
    (effect,) = node.advance(DELAY_MS)
    assert error_code(effect, "describe_cluster", 0) is ErrorCode.illegal_sasl_state


def test_a_large_illegal_request_during_the_login_gets_no_error_response() -> None:
    """The response would contain each group, which takes long to encode."""
    node = Node()
    node.open()
    node.send("sasl_handshake", 1, mechanism="PLAIN")
    (effect,) = node.send("describe_groups", 5, groups=("",) * 2_000)
    assert isinstance(effect, CloseConnection)


def test_an_expired_session_is_closed_at_the_next_request() -> None:
    node = Node(max_reauth_ms=5000)
    node.open()
    node.log_in()
    assert node.advance(5001) == []
    (effect,) = node.send("describe_cluster", 0)
    assert isinstance(effect, CloseConnection)
    assert node.calls == []


def test_frames_are_limited_during_the_re_authentication() -> None:
    node = Node(max_reauth_ms=5000)
    node.open()
    node.log_in()
    limited, response = node.send("sasl_handshake", 1, mechanism="PLAIN")
    assert limited == LimitFrames(connection_id=1, bytes_max=77)
    assert error_code(response, "sasl_handshake", 1) is ErrorCode.none
    node.send("sasl_authenticate", 2, auth_bytes=b"\0alice\0secret")
    node.send("describe_cluster", 0)
    assert len(node.calls) == 1
