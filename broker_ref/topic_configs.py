"""Every config that a topic may have: the log's, and those that the log does not obey.

Purpose: one list for CreateTopics to check against and DescribeConfigs to answer from. Invariant:
the log's rows are `broker_ref.log.config.TOPIC_CONFIGS` themselves, never a copy. The others are
accepted, kept and described as Apache Kafka does, so that a topic made for Kafka can be made
here; `SKIPPED.md` names those without an effect. What it must not know: which topics exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.log.config import TOPIC_CONFIGS, InvalidTopicConfigError, LogConfig
from broker_ref.protocol.errors import ApiError

VALUE_LENGTH_MAX: Final = 8000
"""What every version of DescribeConfigs can tell, whatever the characters."""


class ConfigType(IntEnum):
    """As DescribeConfigs numbers them."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfigKey:
    """One config; `check` raises InvalidTopicConfigError, `server_config` is the broker-wide default's."""

    name: str
    type: ConfigType
    default: str
    server_config: str | None
    doc: str
    check: Callable[[str], object]


def _boolean(name: str) -> Callable[[str], object]:
    def check(value: str) -> None:
        if value.strip().lower() not in ("true", "false"):
            raise InvalidTopicConfigError(name, value, "Expected value to be either true or false")

    return check


def _number(
    name: str, kind: ConfigType, low: float, high: float = float("inf")
) -> Callable[[str], object]:
    number: type[int] | type[float] = float if kind is ConfigType.DOUBLE else int

    def check(value: str) -> None:
        try:
            parsed = number(value.strip())
        except ValueError:
            raise InvalidTopicConfigError(
                name, value, f"Not a number of type {kind.name}"
            ) from None
        if not low <= parsed <= high:
            raise InvalidTopicConfigError(name, value, f"Value must be from {low} to {high}")

    return check


def _anything(value: str) -> object:
    return value


def _key(  # noqa: PLR0917 - rows of the table below
    name: str,
    kind: ConfigType,
    default: str,
    check: Callable[[str], object],
    server_config: str | None,
    doc: str,
) -> TopicConfigKey:
    return TopicConfigKey(
        name=name, type=kind, default=default, check=check, server_config=server_config, doc=doc
    )


def _long(
    name: str, default: str, low: float, server_config: str | None, doc: str
) -> TopicConfigKey:
    check = _number(name, ConfigType.LONG, low, 2**63 - 1)
    return _key(name, ConfigType.LONG, default, check, server_config, doc)


def _int(  # noqa: PLR0917 - rows of the table below
    name: str, default: str, low: float, high: float, server_config: str | None, doc: str
) -> TopicConfigKey:
    return _key(
        name, ConfigType.INT, default, _number(name, ConfigType.INT, low, high), server_config, doc
    )


def _bool(name: str, default: str, server_config: str | None, doc: str) -> TopicConfigKey:
    return _key(name, ConfigType.BOOLEAN, default, _boolean(name), server_config, doc)


_LOG_KEYS: Final = tuple(
    TopicConfigKey(
        name=row.name,
        type=ConfigType[row.type.value],
        default=row.default,
        server_config=row.server_config,
        doc=row.doc,
        check=row.parse,
    )
    for row in TOPIC_CONFIGS
)

_OTHER_KEYS: Final = (
    _int(
        "min.insync.replicas",
        "1",
        1,
        2**31 - 1,
        "min.insync.replicas",
        "In-sync replicas without which a write with acks=all is refused.",
    ),
    _bool(
        "unclean.leader.election.enable",
        "false",
        "unclean.leader.election.enable",
        "Let a replica that is not in sync lead, losing records, rather than none.",
    ),
    _bool("preallocate", "false", "log.preallocate", "Whether segment files are made full size."),
    _long("segment.jitter.ms", "0", 0, None, "The most that a segment's time is cut by at random."),
    _int(
        "compression.gzip.level",
        "-1",
        -1,
        9,
        "compression.gzip.level",
        "Level of the gzip codec where the broker compresses.",
    ),
    _int(
        "compression.lz4.level",
        "9",
        1,
        17,
        "compression.lz4.level",
        "Level of the lz4 codec where the broker compresses.",
    ),
    _int(
        "compression.zstd.level",
        "3",
        -131072,
        22,
        "compression.zstd.level",
        "Level of the zstd codec where the broker compresses.",
    ),
    _key(
        "leader.replication.throttled.replicas",
        ConfigType.LIST,
        "",
        _anything,
        None,
        "Replicas whose replication is throttled on the leader's side.",
    ),
    _key(
        "follower.replication.throttled.replicas",
        ConfigType.LIST,
        "",
        _anything,
        None,
        "Replicas whose replication is throttled on the follower's side.",
    ),
)

TOPIC_CONFIG_KEYS: Final[Mapping[str, TopicConfigKey]] = MappingProxyType(
    {key.name: key for key in sorted(_LOG_KEYS + _OTHER_KEYS, key=lambda key: key.name)}
)


def check_topic_configs(configs: Mapping[str, str | None]) -> dict[str, str]:
    """The configs as they are to be kept; INVALID_CONFIG naming the first one that is wrong."""
    checked: dict[str, str] = {}
    for name, value in configs.items():
        key = TOPIC_CONFIG_KEYS.get(name)
        if key is None:
            raise ApiError(ErrorCode.invalid_config, f"Unknown topic config name: {name}")
        if value is None:
            raise ApiError(
                ErrorCode.invalid_config, f"Null value not supported for topic configs: {name}"
            )
        if len(value) > VALUE_LENGTH_MAX:
            raise ApiError(
                ErrorCode.invalid_config,
                f"The value of topic config {name} has {len(value)} characters, more than "
                f"{VALUE_LENGTH_MAX}.",
            )
        checked[name] = value
    try:
        for name, value in checked.items():
            TOPIC_CONFIG_KEYS[name].check(value)
        LogConfig.from_topic_configs(checked)
    except InvalidTopicConfigError as error:
        raise ApiError(ErrorCode.invalid_config, str(error)) from error
    return checked


def min_insync_replicas(configs: Mapping[str, str]) -> int:
    """The in-sync replicas without which acks=all is refused."""
    key = TOPIC_CONFIG_KEYS["min.insync.replicas"]
    return int(configs.get(key.name, key.default))


def unclean_leader_election(configs: Mapping[str, str], defaults: Mapping[str, str]) -> bool:
    """Whether a replica that is not in sync may lead where no other can."""
    key = TOPIC_CONFIG_KEYS["unclean.leader.election.enable"]
    value = configs.get(key.name, defaults.get(key.name, key.default))
    return value.strip().lower() == "true"
