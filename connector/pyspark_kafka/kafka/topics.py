"""Topics, partitions and the rule for topic names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")

LEGAL_TOPIC_NAMES: Final = "1 to 249 letters, digits, '.', '_' and '-'"
"""The rule that `is_topic_name` checks, as text for error messages."""


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """A partition of a topic (`org.apache.kafka.common.TopicPartition`)."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """The description of a topic. `topic_id` is None if the broker is older than Kafka 2.8."""

    name: str
    topic_id: str | None
    partitions: tuple[int, ...]
    is_internal: bool


def is_topic_name(name: str) -> bool:
    """Return whether Kafka allows this topic name (`Topic.validate`)."""
    return _TOPIC_NAME.fullmatch(name) is not None and name not in {".", ".."}


def format_partitions(partitions: Iterable[TopicPartition], shown_max: int = 10) -> str:
    """Return the sorted partitions as text, for example `t-0, t-1 and 3 more`.

    At most `shown_max` partitions are listed.
    """
    ordered = sorted(partitions)
    shown = ", ".join(str(partition) for partition in ordered[:shown_max])
    others = len(ordered) - shown_max
    return f"{shown} and {others} more" if others > 0 else shown
