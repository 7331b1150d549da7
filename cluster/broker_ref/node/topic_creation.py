"""Creates topics on behalf of the clients of a broker.

The broker sends CreateTopics requests to the controller in the background, for internal topics and
for auto-created topics. Invariants: each topic has at most one request in flight. All missing
topics of a client's request are created with a single CreateTopics request, so that the controller
can limit their number. Auto-created topics are requested in an Envelope, so that the controller
authorizes the client. Source: `kafka.server.AutoTopicCreationManager`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import Call
from broker_ref.controller.client import ControllerClient
from broker_ref.controller.topics import NewTopic
from broker_ref.controller_api import k19_create_topics
from broker_ref.controller_api.k19_create_topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    RequestedTopic,
    TopicConfig,
)
from broker_ref.node.forwarding import (
    ENVELOPE_KEY,
    ENVELOPE_VERSION,
    EnvelopeResponse,
    envelope,
)
from broker_ref.protocol.frames import read_response, request_frame
from broker_ref.protocol.reader import MalformedRequestError

_PURPOSE: Final = "topic-creation"
_KEY: Final = k19_create_topics.API.key
_VERSION: Final = k19_create_topics.API.versions[-1]

LOGGED_MAX: Final = 10
"""The maximum number of failed topics to log for each request."""

logger = logging.getLogger(__name__)


class AutoTopicCreationManager:
    """Requests the creation of topics, and tracks the requests in flight."""

    def __init__(self, controller: ControllerClient) -> None:
        self._controller = controller
        self._in_flight: set[str] = set()

    def request(self, topics: Iterable[NewTopic], call: Call | None) -> None:
        """Request the creation of topics. Callers retry until the topics exist.

        The controller authorizes the client of `call`, or the broker if `call` is None.
        """
        missing = {new.name: new for new in topics if new.name not in self._in_flight}
        if not missing:
            return
        self._in_flight |= missing.keys()
        names = frozenset(missing)
        message = CreateTopicsRequest(
            validate_only=False, topics=tuple(map(_requested, missing.values()))
        )
        if call is None:
            self._controller.send(
                purpose=_PURPOSE,
                api_key=_KEY,
                version=_VERSION,
                request=message,
                response=CreateTopicsResponse,
                on_response=lambda response: self._handle_response(names, response),
                on_failure=lambda reason: self._handle_failure(names, reason),
            )
            return
        frame = request_frame(
            api_key=_KEY,
            version=_VERSION,
            correlation_id=0,
            client_id=call.client_id or "",
            message=message,
        )
        self._controller.send(
            purpose=_PURPOSE,
            api_key=ENVELOPE_KEY,
            version=ENVELOPE_VERSION,
            request=envelope(frame, principal=call.principal, host=call.client_host),
            response=EnvelopeResponse,
            on_response=lambda response: self._open_envelope(names, response),
            on_failure=lambda reason: self._handle_failure(names, reason),
        )

    def _open_envelope(self, names: frozenset[str], enclosing: EnvelopeResponse) -> None:
        if enclosing.error_code is not ErrorCode.none or enclosing.response_data is None:
            error = enclosing.error_code.name
            self._handle_failure(names, f"the controller rejected the Envelope with {error}")
            return
        try:
            response = read_response(
                api_key=_KEY,
                version=_VERSION,
                message=CreateTopicsResponse,
                frame=enclosing.response_data,
            )
        except MalformedRequestError as error:
            self._handle_failure(names, f"the response cannot be decoded: {error}")
        else:
            self._handle_response(names, response)

    def _handle_response(self, names: frozenset[str], response: CreateTopicsResponse) -> None:
        self._in_flight -= names
        failed = [
            topic
            for topic in response.topics
            if topic.error_code not in (ErrorCode.none, ErrorCode.topic_already_exists)
        ]
        for topic in failed[:LOGGED_MAX]:
            logger.warning(
                "Failed to create topic %.100r: %s (%s)",
                topic.name, topic.error_code.name, topic.error_message,
            )  # fmt: skip
        if len(failed) > LOGGED_MAX:
            logger.warning("Failed to create %d more topics", len(failed) - LOGGED_MAX)

    def _handle_failure(self, names: frozenset[str], reason: str) -> None:
        self._in_flight -= names
        logger.warning(
            "Failed to create %d topics (for example, %.100r): %s. The broker will retry when a "
            "client requests the topics.",
            len(names),
            min(names),
            reason,
        )


def _requested(new: NewTopic) -> RequestedTopic:
    return RequestedTopic(
        name=new.name,
        num_partitions=new.partition_count,
        replication_factor=new.replication_factor,
        assignments=(),
        configs=tuple(TopicConfig(name=name, value=value) for name, value in new.configs.items()),
    )
