"""The controller of a cluster, without I/O (Kafka's `ControllerServer`).

Opens the journal, serves requests from brokers and forwarded requests from clients, and expires
broker sessions. The invariants of the module `broker` also apply. In addition, a metadata change is
durable before its response is sent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from broker_ref.api import k17_sasl_handshake, k36_sasl_authenticate
from broker_ref.api.contract import Api, Call, on_cluster
from broker_ref.api.k18_api_versions import unsupported_version
from broker_ref.config import BrokerConfig
from broker_ref.controller.client import CONTROLLER_ID
from broker_ref.controller.controller import Controller
from broker_ref.controller.journal import CorruptJournalError, Journal
from broker_ref.controller.records import UserScramCredentialRecord
from broker_ref.controller_api import APIS, FORWARDED
from broker_ref.controller_api.contract import ControllerContext
from broker_ref.controller_api.k01_fetch import METADATA_CHANGED
from broker_ref.events import (
    ConnectionClosed,
    ConnectionOpened,
    Effect,
    Event,
    FrameReceived,
    PeerEffect,
    RequestFailed,
    ResponseReceived,
    TimePassed,
)
from broker_ref.faults import Faults
from broker_ref.identity import claim_directory, known_cluster_id
from broker_ref.log.storage import Storage
from broker_ref.node.authentication import Authentication, new_client
from broker_ref.node.dispatch import Client, Dispatcher, Request
from broker_ref.node.fault_gate import FaultGate
from broker_ref.node.forwarding import (
    ENVELOPE_KEY,
    ENVELOPE_VERSION,
    EnvelopeRequest,
    EnvelopeResponse,
)
from broker_ref.node.pause_gate import PauseGate
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.frames import read_prefix, response_frame
from broker_ref.protocol.reader import Cursor, MalformedRequestError
from broker_ref.schedule import Schedule, earliest
from broker_ref.security.acls import AclOperation
from broker_ref.security.hosts import host_address
from broker_ref.security.listeners import SecurityProtocol
from broker_ref.security.principals import decode_principal
from broker_ref.security.settings import ListenerSettings

JOURNAL_FILE: Final = "cluster-metadata.journal"


def _never(side: ControllerContext, call: Call, request: EnvelopeRequest) -> object:
    del side, call, request
    raise AssertionError("The controller unwraps envelope requests, so they have no handler.")


ENVELOPE: Final = Api(
    key=ENVELOPE_KEY,
    versions=range(ENVELOPE_VERSION, ENVELOPE_VERSION + 1),
    request=EnvelopeRequest,
    handle=_never,
    requires=(on_cluster(AclOperation.CLUSTER_ACTION),),
)

CONTROLLER_APIS: Final[dict[int, Api[Any]]] = {
    **APIS,
    k17_sasl_handshake.API.key: k17_sasl_handshake.API,
    k36_sasl_authenticate.API.key: k36_sasl_authenticate.API,
}
"""The APIs that the controller lists in ApiVersions."""


class ControllerNode:
    """The controller with its storage."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        storage: Storage,
        now_ms: int,
        random_bytes: Callable[[int], bytes],
        faults: Faults | None = None,
        features: Mapping[str, int] | None = None,
        scram_credentials: Sequence[UserScramCredentialRecord] = (),
        listener: ListenerSettings | None = None,
    ) -> None:
        """Read the metadata journal. `features` and `scram_credentials` are passed to `Controller`.

        `listener` contains the settings of the controller's listener. It is None if this listener
        is not secured.

        Raises: LogError or StorageError if the journal is corrupt.
        """
        self._config = dataclasses.replace(config, node_id=CONTROLLER_ID)
        cluster_id = known_cluster_id(self._config, storage=storage)
        if cluster_id is not None and not storage.exists(JOURNAL_FILE):
            raise CorruptJournalError(
                f"{JOURNAL_FILE}, which contains the cluster metadata, is missing from this data "
                "directory. Restore the file from a backup or start with an empty directory."
            )
        journal = Journal(storage, JOURNAL_FILE)
        if cluster_id is None:
            cluster_id = claim_directory(self._config, storage=storage, random_bytes=random_bytes)
        self.cluster_id = cluster_id
        self._now_ms = now_ms
        self._schedule = Schedule(now_ms)
        self.controller = Controller(
            journal=journal,
            config=self._config,
            cluster_id=cluster_id,
            random_bytes=random_bytes,
            now_ms=now_ms,
            features=features,
            scram_credentials=scram_credentials,
        )
        self.controller.on_change = self._changed
        self._has_changed = False
        self._failure: str | None = None
        self.side = ControllerContext(
            config=self._config,
            cluster_id=cluster_id,
            controller=self.controller,
            apis=lambda: tuple(CONTROLLER_APIS.values()),
            authorizer=self._config.authorizer(self.controller.metadata.acls),
        )
        self._dispatcher = Dispatcher(
            {**CONTROLLER_APIS, ENVELOPE.key: ENVELOPE},
            self.side,
            unsupported=unsupported_version,
            authorizer=self.side.authorizer,
        )
        self._faults = faults or Faults()
        self._pause_gate = PauseGate(self._faults, node_id=CONTROLLER_ID)
        self._gate = FaultGate(
            faults=self._faults,
            node_id=CONTROLLER_ID,
            metadata=self.controller.metadata,
            schedule=self._schedule,
            dispatcher=self._dispatcher,
            serve=self._serve,
        )
        self._dispatcher.admit = self._gate.admit
        self._listeners = {} if listener is None else {listener.endpoint.listener: listener}
        self._is_secured = (
            listener is not None and listener.endpoint.protocol is not SecurityProtocol.PLAINTEXT
        )
        self._authentication = Authentication(
            listeners=self._listeners,
            failure_delay_ms=config.failed_authentication_delay_ms,
            dispatcher=self._dispatcher,
            schedule=self._schedule,
            credential=self.controller.metadata.scram_credential,
            random_bytes=random_bytes,
        )

    @property
    def failure(self) -> str | None:
        """Return the reason why the controller cannot continue, or None.

        After a failure, the controller must be stopped.
        """
        return self._failure or self.controller.failure

    def handle(self, event: Event, now_ms: int) -> list[Effect | PeerEffect]:
        """Handle an event and return its effects, which may apply to any connection."""
        now_ms = self._faults.now_ms(CONTROLLER_ID, now_ms)
        due = self._pause_gate.due(event)
        if not due:
            return []
        self._now_ms = max(self._now_ms, now_ms)
        for one in due:
            self._handle_event(one)
        while self._has_changed:
            self._has_changed = False
            self._dispatcher.wake((METADATA_CHANGED,), self._now_ms)
        return list(self._dispatcher.take_effects())

    def _handle_event(self, event: Event) -> None:
        match event:
            case FrameReceived():
                if self._authentication.admits(event, self._now_ms):
                    self._dispatcher.serve(event, self._now_ms)
            case ConnectionOpened():
                self._open_connection(event)
            case ConnectionClosed():
                self._authentication.closed(event.connection_id)
                self._dispatcher.remove_requests(event.connection_id)
                self._gate.remove_requests(event.connection_id)
            case TimePassed():
                self._gate.release()
                self._schedule.run(self._now_ms)
                try:
                    self.controller.tick(self._now_ms)
                except ApiError as error:  # The journal cannot be written.
                    self._failure = error.message
                self._dispatcher.expire(self._now_ms)
            case ResponseReceived() | RequestFailed():
                pass  # The controller sends no requests.

    def _open_connection(self, event: ConnectionOpened) -> None:
        try:
            client = new_client(event, self._listeners)
        except ValueError as error:  # The certificate cannot be mapped to a principal.
            self._dispatcher.close_connection(event.connection_id, str(error))
            return
        if not self._is_secured:
            # Assume that only nodes can reach this listener. Client requests arrive in Envelopes.
            client = dataclasses.replace(client, is_node=True)
        self._dispatcher.opened(event.connection_id, client)
        self._authentication.opened(event.connection_id, client)

    def next_deadline_ms(self) -> int | None:
        """Return the time at which the next `TimePassed` event is required."""
        if self._pause_gate.is_on or self._faults.time_is_held(CONTROLLER_ID):
            return None
        return earliest(
            self.controller.next_deadline_ms(),
            earliest(self._dispatcher.next_deadline_ms(), self._schedule.next_deadline_ms()),
        )

    def close(self, now_ms: int) -> None:
        """Close the journal. All commits are already durable."""
        del now_ms
        self.controller.close()

    def _changed(self) -> None:
        self._has_changed = True

    def _serve(self, request: Request) -> None:
        if request.api.key == ENVELOPE_KEY:
            if self._dispatcher.permits(request):
                self._open_envelope(request)
        else:
            self._dispatcher.handle(request, self._now_ms)

    def _open_envelope(self, request: Request) -> None:
        """Serve the request in an Envelope, and send its response in an Envelope."""
        pending = request.pending

        def enclosed(response: EnvelopeResponse) -> bytes:
            return response_frame(
                api_key=pending.header.api_key,
                version=pending.header.api_version,
                correlation_id=pending.header.correlation_id,
                message=response,
            )

        def refuse(error_code: ErrorCode) -> None:
            refused = EnvelopeResponse(error_code=error_code)
            self._dispatcher.send_response(pending, enclosed(refused))

        frame = request.message.request_data
        principal = decode_principal(request.message.request_principal or b"")
        if principal is None:
            refuse(ErrorCode.principal_deserialization_failure)
            return
        if not _may_be_forwarded(frame):
            refuse(ErrorCode.invalid_request)
            return
        self._dispatcher.serve(
            FrameReceived(connection_id=pending.connection_id, frame=frame),
            self._now_ms,
            wrap=lambda inner: enclosed(EnvelopeResponse(response_data=inner)),
            drops_response=pending.drops_response,
            client=Client(
                host=host_address(request.message.client_host_address),
                listener=pending.client.listener,
                principal=principal,
            ),
        )


def _may_be_forwarded(frame: bytes) -> bool:
    try:
        header = read_prefix(Cursor(frame))
    except MalformedRequestError:
        return False
    api = APIS.get(header.api_key)
    return header.api_key in FORWARDED and api is not None and header.api_version in api.versions
