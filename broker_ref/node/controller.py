"""The controller of a cluster, without I/O: events in, effects out (Kafka's `ControllerServer`).

Purpose: open the journal, serve requests of brokers and those that brokers forward from clients,
and expire the sessions of brokers. Invariants: as for `broker`; a response implies that the change
is durable. Must not know: sockets, clocks, files (it has a `Storage`), or what a request means.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import Api, Call
from broker_ref.api.k18_api_versions import unsupported_version
from broker_ref.config import BrokerConfig
from broker_ref.controller.client import CONTROLLER_ID
from broker_ref.controller.controller import Controller
from broker_ref.controller.journal import CorruptJournalError, Journal
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
from broker_ref.node.dispatch import Dispatcher, Request
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
from broker_ref.schedule import Schedule

JOURNAL_FILE: Final = "cluster-metadata.journal"


def _never(side: ControllerContext, call: Call, request: EnvelopeRequest) -> object:
    del side, call, request
    raise AssertionError("an Envelope is opened before any handler sees it")


ENVELOPE: Final = Api(
    key=ENVELOPE_KEY,
    versions=range(ENVELOPE_VERSION, ENVELOPE_VERSION + 1),
    request=EnvelopeRequest,
    handle=_never,
)


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
    ) -> None:
        """Read the journal. Raises: LogError or StorageError if it is damaged.

        `features` are as for `Controller`.
        """
        self._config = dataclasses.replace(config, node_id=CONTROLLER_ID)
        cluster_id = known_cluster_id(self._config, storage=storage)
        if cluster_id is not None and not storage.exists(JOURNAL_FILE):
            raise CorruptJournalError(
                f"{JOURNAL_FILE}, which contains the cluster metadata, is missing from this data "
                "directory. Restore it from a backup or start with an empty directory."
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
        )
        self.controller.on_change = self._changed
        self._has_changed = False
        self._failure: str | None = None
        self.side = ControllerContext(
            config=self._config,
            cluster_id=cluster_id,
            controller=self.controller,
            apis=lambda: tuple(APIS.values()),
        )
        self._dispatcher = Dispatcher(
            {**APIS, ENVELOPE.key: ENVELOPE}, self.side, unsupported=unsupported_version
        )
        self._faults = faults or Faults()
        self._standstill = PauseGate(self._faults, node_id=CONTROLLER_ID)
        self._gate = FaultGate(
            faults=self._faults,
            node_id=CONTROLLER_ID,
            metadata=self.controller.metadata,
            schedule=self._schedule,
            dispatcher=self._dispatcher,
            serve=self._serve,
        )
        self._dispatcher.admit = self._gate.admit

    @property
    def failure(self) -> str | None:
        """Return why the controller cannot continue; it must then be stopped."""
        return self._failure or self.controller.failure

    def handle(self, event: Event, now_ms: int) -> list[Effect | PeerEffect]:
        """Handle an event and return the effects, which can concern any connection."""
        now_ms = self._faults.now_ms(CONTROLLER_ID, now_ms)
        due = self._standstill.due(event)
        if not due:
            return []
        self._now_ms = max(self._now_ms, now_ms)
        for one in due:
            self._take_in(one)
        while self._has_changed:
            self._has_changed = False
            self._dispatcher.wake((METADATA_CHANGED,), self._now_ms)
        return list(self._dispatcher.take_effects())

    def _take_in(self, event: Event) -> None:
        match event:
            case FrameReceived():
                self._dispatcher.serve(event, self._now_ms)
            case ConnectionClosed():
                self._dispatcher.forget(event.connection_id)
                self._gate.forget(event.connection_id)
            case TimePassed():
                self._gate.release()
                self._schedule.run(self._now_ms)
                try:
                    self.controller.tick(self._now_ms)
                except ApiError as error:  # The controller must be able to store its own decisions.
                    self._failure = error.message
                self._dispatcher.expire(self._now_ms)
            case ConnectionOpened() | ResponseReceived() | RequestFailed():
                pass  # The controller sends no requests and keeps no state of idle connections.

    def next_deadline_ms(self) -> int | None:
        """Return the time of the next `TimePassed`."""
        if self._standstill.is_on or self._faults.time_is_held(CONTROLLER_ID):
            return None
        deadlines = (
            self.controller.next_deadline_ms(),
            self._dispatcher.next_deadline_ms(),
            self._schedule.next_deadline_ms(),
        )
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def close(self, now_ms: int) -> None:
        """Close the journal, which is already durable."""
        del now_ms
        self.controller.close()

    def _changed(self) -> None:
        self._has_changed = True

    def _serve(self, request: Request) -> None:
        if request.api.key == ENVELOPE_KEY:
            self._open_envelope(request)
        else:
            self._dispatcher.handle(request, self._now_ms)

    def _open_envelope(self, request: Request) -> None:
        """Serve the request in an Envelope, and put its response into an Envelope."""
        pending = request.pending

        def enclosed(response: EnvelopeResponse) -> bytes:
            return response_frame(
                api_key=pending.header.api_key,
                version=pending.header.api_version,
                correlation_id=pending.header.correlation_id,
                message=response,
            )

        frame = request.message.request_data
        if not _may_be_forwarded(frame):
            refused = EnvelopeResponse(error_code=ErrorCode.invalid_request)
            self._dispatcher.send_response(pending, enclosed(refused))
            return
        self._dispatcher.serve(
            FrameReceived(connection_id=pending.connection_id, frame=frame),
            self._now_ms,
            wrap=lambda inner: enclosed(EnvelopeResponse(response_data=inner)),
            is_answer_lost=pending.is_answer_lost,
        )


def _may_be_forwarded(frame: bytes) -> bool:
    try:
        header = read_prefix(Cursor(frame))
    except MalformedRequestError:
        return False
    api = APIS.get(header.api_key)
    return header.api_key in FORWARDED and api is not None and header.api_version in api.versions
