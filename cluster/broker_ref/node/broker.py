"""A broker that performs no I/O. It handles events and returns effects (Kafka's `BrokerServer`).

Creates the components (registration, metadata, logs, replication, coordinators, handlers) and
passes each event to the component that handles the event. Invariants: each frame results in exactly
one effect, immediately or later. No event causes `handle` to raise an exception. Callers pass the
current time with each event. No client is served before the controller has unfenced the broker for
the first time.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from broker_ref.api import APIS
from broker_ref.api.contract import Api, Broker
from broker_ref.api.k18_api_versions import unsupported_version
from broker_ref.config import BrokerConfig
from broker_ref.controller.client import ControllerClient
from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.controller.metadata_delta import MetadataDelta
from broker_ref.controller.records import ConfigResourceType
from broker_ref.controller_api import APIS as CONTROLLER_APIS
from broker_ref.controller_api import FORWARDED
from broker_ref.dynamic_configs import DynamicBrokerConfig
from broker_ref.events import (
    ConnectionClosed,
    ConnectionId,
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
from broker_ref.group.coordinator import GroupCoordinator
from broker_ref.identity import claim_directory, known_cluster_id
from broker_ref.log.checkpoints import read_clean_shutdown_epoch
from broker_ref.log.errors import LogError
from broker_ref.log.log_dir import UNKNOWN_LOG_DIR, LogDir
from broker_ref.log.storage import Storage, StorageError
from broker_ref.node.alter_configs_preprocessing import preprocess
from broker_ref.node.authentication import Authentication, new_client
from broker_ref.node.dispatch import Dispatcher, Request
from broker_ref.node.fault_gate import FaultGate
from broker_ref.node.forwarding import ForwardingManager
from broker_ref.node.metadata_follower import MetadataFollower
from broker_ref.node.pause_gate import PauseGate
from broker_ref.node.registration import BrokerLifecycleManager, BrokerState
from broker_ref.node.topic_creation import AutoTopicCreationManager
from broker_ref.outbox import Outbox
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import random_uuid
from broker_ref.replication.alter_partition_manager import DefaultAlterPartitionManager
from broker_ref.replication.fetch_session_cache import FetchSessionCache
from broker_ref.replication.producer_id_manager import ProducerIdManager
from broker_ref.replication.replica_manager import ReplicaManager
from broker_ref.schedule import Schedule, earliest
from broker_ref.security.listeners import Endpoint
from broker_ref.security.oauthbearer import ValidateToken
from broker_ref.security.settings import ListenerSettings
from broker_ref.transaction.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from broker_ref.transaction.coordinator import TransactionCoordinator

BROKER_APIS: Final[dict[int, Api[Any]]] = {
    **APIS,
    **{key: CONTROLLER_APIS[key] for key in FORWARDED},
}
"""The APIs that a broker serves itself or forwards to the controller."""

logger = logging.getLogger(__name__)


class BrokerNode:
    """A broker with its storage and the address of the controller."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        storage: Storage,
        controller: tuple[str, int],
        now_ms: int,
        random_bytes: Callable[[int], bytes],
        faults: Faults | None = None,
        log_dir: LogDir = UNKNOWN_LOG_DIR,
        listeners: Mapping[str, ListenerSettings] = MappingProxyType({}),
        token_validators: Mapping[str, ValidateToken] = MappingProxyType({}),
    ) -> None:
        """Create the broker and check the `meta.properties` file in its storage.

        `listeners` contains the settings of the listeners, keyed by name. A listener without
        settings is not secured. `token_validators` contains the validators of signed tokens, keyed
        by listener name.

        Raises: LogError if `meta.properties` is corrupt or belongs to another broker.
        """
        self.metadata = ClusterMetadata()
        self.broker: Broker | None = None
        self._config = config
        self._configs = DynamicBrokerConfig(config)
        self._apis = _served_apis(config)
        self._storage = storage
        self._random_bytes = random_bytes
        self._now_ms = now_ms
        self._failure: str | None = None
        self._faults = faults or Faults()
        self._pause_gate = PauseGate(self._faults, node_id=config.node_id)
        self._log_dir = log_dir
        self._listeners = listeners
        self._token_validators = token_validators
        self._is_registering = False
        self._woken: dict[Hashable, None] = {}
        self._schedule = Schedule(now_ms)
        self._outbox = Outbox(client_id=f"broker-{config.node_id}")
        self._outbox.advance(now_ms)
        self._controller = ControllerClient(
            outbox=self._outbox, host=controller[0], port=controller[1]
        )
        self._registration = BrokerLifecycleManager(
            config=config,
            controller=self._controller,
            schedule=self._schedule,
            now_ms=self._time,
            metadata_offset=lambda: self.metadata.end_offset - 1,
            incarnation_id=random_uuid(random_bytes),
            previous_broker_epoch=read_clean_shutdown_epoch(storage),
        )
        self._registration.cluster_id = (
            known_cluster_id(config, storage=storage) or config.cluster_id
        )
        self._follower = MetadataFollower(
            node_id=config.node_id,
            controller=self._controller,
            metadata=self.metadata,
            schedule=self._schedule,
            now_ms=self._time,
            on_change=self._metadata_changed,
        )
        self._dispatcher: Dispatcher | None = None
        self._authentication: Authentication | None = None
        self._gate: FaultGate | None = None

    @property
    def state(self) -> BrokerState:
        """Return the state of the broker in its lifecycle."""
        return self._registration.state

    @property
    def failure(self) -> str | None:
        """Return the reason why the broker cannot continue, or None.

        If there is a reason, the caller must kill the broker.
        """
        if self.broker is not None and self.broker.replicas.storage_failed is not None:
            return self.broker.replicas.storage_failed
        return self._failure or self._registration.failure

    def start(self, endpoints: Sequence[Endpoint]) -> None:
        """Join the cluster and advertise `endpoints`.

        The first endpoint is the inter-broker endpoint. Later calls to `handle` continue the
        startup.
        """
        self._registration.start(endpoints)
        self._advance()

    def begin_shutdown(self) -> None:
        """Start a controlled shutdown. Call `close` when the state is SHUTTING_DOWN."""
        self._registration.begin_shutdown()

    def handle(self, event: Event, now_ms: int) -> list[Effect | PeerEffect]:
        """Handle an event and return its effects, which may apply to any connection."""
        now_ms = self._faults.now_ms(self._config.node_id, now_ms)
        due = self._pause_gate.due(event)
        if not due:
            return []
        self._now_ms = max(self._now_ms, now_ms)
        self._outbox.advance(self._now_ms)
        for one in due:
            self._handle_event(one)
        self._advance()
        return self._take_effects()

    def _handle_event(self, event: Event) -> None:
        dispatcher = self._dispatcher
        match event:
            case FrameReceived():
                assert dispatcher is not None, "No client is served before the broker is unfenced."
                assert self._authentication is not None
                if self._authentication.admits(event, self._now_ms):
                    dispatcher.serve(event, self._now_ms)
            case ConnectionOpened():
                if dispatcher is not None:
                    self._open_connection(dispatcher, event)
            case ConnectionClosed():
                self._forget_connection(event.connection_id)
            case ResponseReceived() | RequestFailed():
                self._outbox.handle(event)
            case TimePassed():
                if self._gate is not None:
                    self._gate.release()
                self._schedule.run(self._now_ms)
                if dispatcher is not None:
                    dispatcher.expire(self._now_ms)

    def _open_connection(self, dispatcher: Dispatcher, event: ConnectionOpened) -> None:
        try:
            client = new_client(event, self._listeners)
        except ValueError as error:  # The certificate cannot be mapped to a principal.
            dispatcher.close_connection(event.connection_id, str(error))
            return
        dispatcher.opened(event.connection_id, client)
        if self._authentication is not None:
            self._authentication.opened(event.connection_id, client)

    def _forget_connection(self, connection_id: ConnectionId) -> None:
        if self._dispatcher is not None:
            self._dispatcher.remove_requests(connection_id)
        if self._authentication is not None:
            self._authentication.closed(connection_id)
        if self._gate is not None:
            self._gate.remove_requests(connection_id)

    def next_deadline_ms(self) -> int | None:
        """Return the time at which the next `TimePassed` event is required."""
        if self._pause_gate.is_on or self._faults.time_is_held(self._config.node_id):
            return None
        return earliest(
            self._schedule.next_deadline_ms(),
            earliest(
                self._outbox.next_deadline_ms(),
                None if self._dispatcher is None else self._dispatcher.next_deadline_ms(),
            ),
        )

    def close(self, now_ms: int) -> None:
        """Shut down cleanly: flush the logs, write the checkpoints, and mark the shutdown as clean.

        If closing a component raises a LogError or StorageError, all other components are closed
        before the error is raised.
        """
        self._now_ms = max(self._now_ms, now_ms)
        if self.broker is not None:
            self.broker.replicas.close()

    def _broker_epoch(self) -> int:
        return self._registration.broker_epoch

    def _time(self) -> int:
        return self._now_ms

    def _wake(self, key: Hashable) -> None:
        """Check the requests that are waiting for `key`."""
        self._woken[key] = None

    def _take_effects(self) -> list[Effect | PeerEffect]:
        effects: list[Effect | PeerEffect] = []
        if self.broker is not None and self._dispatcher is not None:
            while changed := (*self.broker.replicas.take_changed(), *self._woken):
                self._woken.clear()
                self.broker.groups.partitions_changed(changed, self._now_ms)
                self.broker.transactions.partitions_changed(changed, self._now_ms)
                sessions = self.broker.fetch_sessions.partitions_changed(changed)
                self._dispatcher.wake((*changed, *sessions), self._now_ms)
            effects += self._dispatcher.take_effects()
        return effects + self._outbox.take_effects()

    # Startup

    def _advance(self) -> None:
        """Continue the startup if the condition for the next startup step is met."""
        registration = self._registration
        if registration.state is BrokerState.STARTING:
            if registration.cluster_id is not None and not self._is_registering:
                self._is_registering = True
                registration.register()
                self._follower.start()
        elif registration.state is BrokerState.RECOVERY:
            if self.broker is None and self.metadata.end_offset > registration.broker_epoch:
                self._attempt(self._open)
            if self.broker is not None and not self.broker.replicas.is_loading:
                registration.set_ready_to_unfence()
        elif registration.state is BrokerState.UNFENCING:
            own = self.metadata.brokers.get(self._config.node_id)
            # Another process with the same id may have registered since.
            is_own = own is not None and own.broker_epoch == registration.broker_epoch
            if own is not None and is_own and not own.is_fenced:
                registration.on_unfenced()

    def _attempt(self, step: Callable[[], None]) -> None:
        if self._failure is not None:
            return
        try:
            step()
        except (ApiError, LogError, StorageError) as error:
            self._failure = str(error)

    def _open(self) -> None:
        """Open the logs and create the components that serve clients."""
        self._claim_directory()
        self._update_configs()
        config = self._configs.current
        replicas = ReplicaManager(
            config=config,
            storage=self._storage,
            metadata=self.metadata,
            alter_partition_manager=DefaultAlterPartitionManager(
                broker_id=config.node_id,
                broker_epoch=self._broker_epoch,
                controller=self._controller,
                schedule=self._schedule,
                clock=self._time,
            ),
            broker_epoch=self._broker_epoch,
            clock=self._time,
            schedule=self._schedule,
            outbox=self._outbox,
            now_ms=self._now_ms,
        )
        replicas.update_config(self._configs)
        groups = GroupCoordinator(
            config=config,
            metadata=self.metadata,
            replicas=replicas,
            schedule=self._schedule,
            random_bytes=self._random_bytes,
            now_ms=self._now_ms,
        )
        producer_ids = ProducerIdManager(
            controller=self._controller,
            broker_id=config.node_id,
            broker_epoch=self._broker_epoch,
            wake=self._wake,
        )
        transactions = TransactionCoordinator(
            config=config,
            metadata=self.metadata,
            replicas=replicas,
            schedule=self._schedule,
            outbox=self._outbox,
            producer_ids=producer_ids,
            clock=self._time,
        )
        assert self._registration.cluster_id is not None
        self.broker = Broker(
            configs=self._configs,
            cluster_id=self._registration.cluster_id,
            metadata=self.metadata,
            replicas=replicas,
            groups=groups,
            transactions=transactions,
            verifications=AddPartitionsToTxnManager(
                outbox=self._outbox,
                metadata=self.metadata,
                coordinator=transactions.coordinator,
                wake=self._wake,
            ),
            fetch_sessions=FetchSessionCache(
                slots=config.max_incremental_fetch_session_cache_slots,
                random_bytes=self._random_bytes,
                wake=self._wake,
            ),
            producer_ids=producer_ids,
            request_topics=AutoTopicCreationManager(self._controller).request,
            log_dir=self._log_dir,
            authorizer=config.authorizer(self.metadata.acls),
            apis=lambda: tuple(self._apis.values()),
        )
        self._dispatcher = self._make_dispatcher(self.broker)

    def _make_dispatcher(self, broker: Broker) -> Dispatcher:
        """Create the dispatcher.

        Injected faults are applied first. Requests are then handled, or forwarded to the
        controller.
        """
        dispatcher = Dispatcher(
            self._apis,
            broker,
            unsupported=unsupported_version,
            authorizer=broker.authorizer,
        )
        forwarding = ForwardingManager(
            controller=self._controller,
            schedule=self._schedule,
            now_ms=self._time,
            dispatcher=dispatcher,
        )

        def serve(request: Request) -> None:
            if request.api.key in FORWARDED:
                forwarded = preprocess(request, broker, dispatcher)
                if forwarded is not None:
                    forwarding.forward(forwarded)
            else:
                dispatcher.handle(request, self._now_ms)

        self._gate = FaultGate(
            faults=self._faults,
            node_id=self._config.node_id,
            metadata=self.metadata,
            schedule=self._schedule,
            dispatcher=dispatcher,
            serve=serve,
        )
        dispatcher.admit = self._gate.admit
        self._authentication = Authentication(
            listeners=self._listeners,
            failure_delay_ms=self._config.failed_authentication_delay_ms,
            dispatcher=dispatcher,
            schedule=self._schedule,
            credential=self.metadata.scram_credential,
            random_bytes=self._random_bytes,
            token_validators=self._token_validators,
        )
        return dispatcher

    def _claim_directory(self) -> None:
        """Write `meta.properties` to a new data directory.

        The broker is already registered in the cluster.
        """
        if known_cluster_id(self._config, storage=self._storage) is None:
            claim_directory(
                dataclasses.replace(self._config, cluster_id=self._registration.cluster_id),
                storage=self._storage,
                random_bytes=self._random_bytes,
            )

    def _metadata_changed(self, delta: MetadataDelta) -> None:
        if self.broker is not None:
            if self._update_configs():
                self.broker.replicas.update_config(self._configs)
                self.broker.groups.update_config(self._configs.current)
            self.broker.replicas.apply_delta(delta, self._now_ms)
            self.broker.groups.on_metadata_update(delta, self._now_ms)
            self.broker.transactions.on_metadata_update()

    def _update_configs(self) -> bool:
        """Apply the dynamic configs of this broker. Return whether they have changed."""
        broker = ConfigResourceType.BROKER
        own = self.metadata.configs(broker, str(self._config.node_id))
        cluster = self.metadata.configs(broker, "")
        has_changed = self._configs.update(own=own, cluster=cluster)
        used = self._configs.levels
        ignored = sorted((own.keys() - used.own) | (cluster.keys() - used.cluster))
        if has_changed and ignored:
            logger.error("Invalid dynamic configs are ignored: %s", ", ".join(ignored))
        return has_changed


def _served_apis(config: BrokerConfig) -> dict[int, Api[Any]]:
    """Return the APIs with all versions that `unstable.api.versions.enable` allows."""
    if config.unstable_api_versions_enable:
        return BROKER_APIS
    return {
        key: api
        if api.unstable_from is None
        else dataclasses.replace(api, versions=range(api.versions.start, api.unstable_from))
        for key, api in BROKER_APIS.items()
    }
