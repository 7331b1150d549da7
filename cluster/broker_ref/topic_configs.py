"""All topic configs, including those that the log does not use.

CreateTopics uses the table in this module to validate configs, and DescribeConfigs uses it to build
responses. The table rows for configs that the log uses come from
`broker_ref.log.config.TOPIC_CONFIGS`. All other configs are validated, stored and described as in
Apache Kafka; `SKIPPED.md` lists the configs that have no effect. Source:
`org.apache.kafka.common.config.TopicConfig`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.config_numbers import parse_double, parse_integer, print_double
from broker_ref.frozen import dataclass
from broker_ref.log.config import (
    TOPIC_CONFIGS,
    InvalidTopicConfigError,
    LogConfig,
    check_combination,
)
from broker_ref.protocol.errors import ApiError

MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"


class ConfigType(IntEnum):
    """The config types and their numbers in DescribeConfigs responses."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9

    def printed(self, text: str) -> str:
        """Return a value as Kafka prints it (`ConfigDef.parseType` and `convertToString`).

        Raises: ValueError if the value is not valid.
        """
        match self:
            case ConfigType.BOOLEAN:
                return text.strip().lower()
            case ConfigType.INT | ConfigType.SHORT | ConfigType.LONG:
                return str(parse_integer(text))
            case ConfigType.DOUBLE:
                return print_double(parse_double(text))
            case ConfigType.LIST:
                return ",".join(part.strip() for part in text.split(","))
            case _:
                return text.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfigKey:
    """A topic config.

    `check` raises InvalidTopicConfigError for an invalid value. `server_config` is the broker
    config that sets the default of the topic config.
    """

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
    parse = parse_double if kind is ConfigType.DOUBLE else parse_integer

    def check(value: str) -> None:
        try:
            parsed = parse(value.strip())
        except ValueError:
            raise InvalidTopicConfigError(
                name, value, f"Not a number of type {kind.name}"
            ) from None
        if not low <= parsed <= high:
            raise InvalidTopicConfigError(name, value, f"Value must be between {low} and {high}")

    return check


def _gzip_level(value: str) -> None:
    name = "compression.gzip.level"
    _number(name, ConfigType.INT, -1, 9)(value)
    if int(value) == 0:
        raise InvalidTopicConfigError(name, value, "Value must be between 1 and 9 or equal to -1")


def _without_tiered_storage(value: str) -> None:
    name = "remote.storage.enable"
    _boolean(name)(value)
    if value.strip().lower() == "true":
        raise InvalidTopicConfigError(
            name, value, "Tiered Storage functionality is disabled in the broker."
        )


def _throttled_replicas(name: str) -> Callable[[str], object]:
    def check(value: str) -> None:
        try:
            parse_throttled_replicas(value)
        except ValueError:
            raise InvalidTopicConfigError(
                name,
                value,
                "Value must be '*' or a comma-separated list of [partition]:[broker id] pairs",
            ) from None

    return check


@lru_cache(maxsize=64)
def parse_throttled_replicas(value: str) -> frozenset[tuple[int, int]] | None:
    """Return the replicas as pairs of partition index and broker id, or None if the value is `*`.

    Raises: ValueError for an invalid value.
    """
    parts = [part.strip() for part in value.split(",")]
    if parts == ["*"]:
        return None
    replicas: set[tuple[int, int]] = set()
    for part in filter(None, parts):
        partition, colon, broker_id = part.partition(":")
        if not (partition.isdecimal() and colon and broker_id.isdecimal()):
            raise ValueError(part)
        replicas.add((int(partition), int(broker_id)))
    return frozenset(replicas)


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
        MIN_INSYNC_REPLICAS,
        "1",
        1,
        2**31 - 1,
        MIN_INSYNC_REPLICAS,
        "Minimum number of in-sync replicas for a write with acks=all.",
    ),
    _bool(
        "unclean.leader.election.enable",
        "false",
        "unclean.leader.election.enable",
        "Allow a replica that is not in sync to become leader, which can lose records.",
    ),
    _bool("preallocate", "false", "log.preallocate", "Preallocate segment files."),
    _key(
        "remote.storage.enable",
        ConfigType.BOOLEAN,
        "false",
        _without_tiered_storage,
        None,
        "Enable tiered storage. This broker does not implement it.",
    ),
    _bool("remote.log.copy.disable", "false", None, "Stop copying segments to the remote storage."),
    _bool(
        "remote.log.delete.on.disable",
        "false",
        None,
        "Delete the remote segments when tiered storage is disabled.",
    ),
    _long(
        "local.retention.ms",
        "-2",
        -2,
        "log.local.retention.ms",
        "Retention time of local segments of a topic with tiered storage; -2 means retention.ms.",
    ),
    _long(
        "local.retention.bytes",
        "-2",
        -2,
        "log.local.retention.bytes",
        "Size limit of local segments of a topic with tiered storage; -2 means retention.bytes.",
    ),
    _long(
        "segment.jitter.ms",
        "0",
        0,
        "log.roll.jitter.ms",
        "Maximum random jitter that is subtracted from segment.ms.",
    ),
    _key(
        "compression.gzip.level",
        ConfigType.INT,
        "-1",
        _gzip_level,
        "compression.gzip.level",
        "Compression level that the gzip codec uses when the broker compresses batches.",
    ),
    _int(
        "compression.lz4.level",
        "9",
        1,
        17,
        "compression.lz4.level",
        "Compression level that the lz4 codec uses when the broker compresses batches.",
    ),
    _int(
        "compression.zstd.level",
        "3",
        -131072,
        22,
        "compression.zstd.level",
        "Compression level that the zstd codec uses when the broker compresses batches.",
    ),
    _key(
        "leader.replication.throttled.replicas",
        ConfigType.LIST,
        "",
        _throttled_replicas("leader.replication.throttled.replicas"),
        None,
        "Replicas for which replication is throttled on the leader side.",
    ),
    _key(
        "follower.replication.throttled.replicas",
        ConfigType.LIST,
        "",
        _throttled_replicas("follower.replication.throttled.replicas"),
        None,
        "Replicas for which replication is throttled on the follower side.",
    ),
)

TOPIC_CONFIG_KEYS: Final[Mapping[str, TopicConfigKey]] = MappingProxyType(
    {key.name: key for key in sorted(_LOG_KEYS + _OTHER_KEYS, key=lambda key: key.name)}
)


def check_topic_configs(
    configs: Mapping[str, str | None], *, defaults: Mapping[str, str]
) -> dict[str, str]:
    """Validate the configs of a topic and return them.

    `defaults` are the server-wide defaults of topic configs. Raises: ApiError(INVALID_CONFIG).
    """
    checked: dict[str, str] = {}
    for name, value in configs.items():
        key = TOPIC_CONFIG_KEYS.get(name)
        if key is None:
            raise ApiError(ErrorCode.invalid_config, f"Unknown topic config name: {name}")
        if value is None:
            raise ApiError(
                ErrorCode.invalid_config, f"Null value not supported for topic configs: {name}"
            )
        checked[name] = value
    try:
        for name, value in checked.items():
            TOPIC_CONFIG_KEYS[name].check(value)
        LogConfig.from_topic_configs(checked)
        check_combination({**defaults, **checked})
    except InvalidTopicConfigError as error:
        raise ApiError(ErrorCode.invalid_config, str(error)) from error
    return checked


def min_insync_replicas(configs: Mapping[str, str]) -> int:
    """Return the value of `min.insync.replicas` for a topic."""
    key = TOPIC_CONFIG_KEYS[MIN_INSYNC_REPLICAS]
    return int(configs.get(key.name, key.default))


def unclean_leader_election(configs: Mapping[str, str], defaults: Mapping[str, str]) -> bool:
    """Return the value of `unclean.leader.election.enable` for a topic."""
    key = TOPIC_CONFIG_KEYS["unclean.leader.election.enable"]
    value = configs.get(key.name, defaults.get(key.name, key.default))
    return value.strip().lower() == "true"
