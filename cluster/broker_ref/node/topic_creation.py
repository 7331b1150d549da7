"""Creates topics on behalf of the clients of a broker.

Purpose: ask the controller in the background to create internal topics and auto-created topics.
Invariant: each topic has at most one request in flight. Source:
`kafka.server.AutoTopicCreationManager`.
"""

from __future__ import annotations

import logging

from kio.schema.errors import ErrorCode

from broker_ref.controller.client import ControllerClient
from broker_ref.controller.topics import NewTopic
from broker_ref.controller_api.k19_create_topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    RequestedTopic,
    TopicConfig,
)

logger = logging.getLogger(__name__)


class AutoTopicCreationManager:
    """Requests the creation of topics, and tracks the requests in flight."""

    def __init__(self, controller: ControllerClient) -> None:
        self._controller = controller
        self._in_flight: set[str] = set()

    def request(self, new: NewTopic) -> None:
        """Request the creation of a topic. Callers retry until the topic exists."""
        if new.name in self._in_flight:
            return
        self._in_flight.add(new.name)
        self._controller.send(
            purpose="topic-creation",
            api_key=19,
            version=7,
            request=CreateTopicsRequest(
                validate_only=False,
                topics=(
                    RequestedTopic(
                        name=new.name,
                        num_partitions=new.partition_count,
                        replication_factor=new.replication_factor,
                        assignments=(),
                        configs=tuple(
                            TopicConfig(name=name, value=value)
                            for name, value in new.configs.items()
                        ),
                    ),
                ),
            ),
            response=CreateTopicsResponse,
            on_response=lambda response: self._handle_response(new.name, response),
            on_failure=lambda reason: self._handle_failure(new.name, reason),
        )

    def _handle_response(self, name: str, response: CreateTopicsResponse) -> None:
        self._in_flight.discard(name)
        for topic in response.topics:
            if topic.error_code not in (ErrorCode.none, ErrorCode.topic_already_exists):
                logger.warning(
                    "Failed to create topic %.100r: %s (%s)",
                    topic.name, topic.error_code.name, topic.error_message,
                )  # fmt: skip

    def _handle_failure(self, name: str, reason: str) -> None:
        self._in_flight.discard(name)
        logger.warning(
            "Failed to create topic %.100r: %s. The broker will retry when a client requests "
            "the topic.",
            name,
            reason,
        )
