"""Creates topics that clients of a broker need.

Purpose: ask the controller to create a topic in the background, for automatic topic creation and
for the internal topics. Invariant: a topic has at most one request in flight, however many clients
need it. Must not know: who needs it. Source: `kafka.server.AutoTopicCreationManager`.
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
    """The topics whose creation is in flight."""

    def __init__(self, controller: ControllerClient) -> None:
        self._controller = controller
        self._asked_for: set[str] = set()

    def request(self, new: NewTopic) -> None:
        """Request the creation of a topic; callers retry until it exists."""
        if new.name in self._asked_for:
            return
        self._asked_for.add(new.name)
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
            on_response=lambda response: self._answered(new.name, response),
            on_failure=lambda reason: self._failed(new.name, reason),
        )

    def _answered(self, name: str, response: CreateTopicsResponse) -> None:
        self._asked_for.discard(name)
        for topic in response.topics:
            if topic.error_code not in (ErrorCode.none, ErrorCode.topic_already_exists):
                logger.warning(
                    "Topic %.100r was not created: %s: %s",
                    topic.name, topic.error_code.name, topic.error_message,
                )  # fmt: skip

    def _failed(self, name: str, reason: str) -> None:
        self._asked_for.discard(name)
        logger.warning(
            "Topic %.100r was not created: %s; retrying when a client requests it.", name, reason
        )
