"""The broker configs that set the defaults of topic configs.

Several broker configs can set the default of the same topic config. For example, `log.retention.ms`
takes precedence over `log.retention.minutes` and `log.retention.hours`. Sources:
`ServerTopicConfigSynonyms`, `DynamicBrokerConfig.brokerConfigSynonyms`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from broker_ref.config_keys import INT64_MAX, ConfigKey, UpdateMode
from broker_ref.topic_configs import TOPIC_CONFIG_KEYS, ConfigType

HOUR_MS: Final = 3_600_000

_OTHER_SYNONYMS: Final = MappingProxyType(
    {
        "retention.ms": (
            ("log.retention.minutes", 60_000, ""),
            ("log.retention.hours", HOUR_MS, 168),
        ),
        "segment.ms": (("log.roll.hours", HOUR_MS, 168),),
        "segment.jitter.ms": (("log.roll.jitter.hours", HOUR_MS, 0),),
        "flush.ms": (("log.flush.scheduler.interval.ms", 1, INT64_MAX),),
    }
)
"""Broker configs with lower precedence than the `server_config` of a topic config.

Each row contains the name of the broker config, the factor that converts its unit to the unit of
the topic config, and its default. The empty string means that there is no default.
"""

TOPIC_CONFIG_SYNONYMS: Final = MappingProxyType(
    {
        key.name: (key.server_config, *(name for name, _, _ in _OTHER_SYNONYMS.get(key.name, ())))
        for key in TOPIC_CONFIG_KEYS.values()
        if key.server_config is not None
    }
)
"""The broker configs that set the default of each topic config, in order of precedence.

Source: `ServerTopicConfigSynonyms` and `DynamicBrokerConfig.brokerConfigSynonyms`.
"""


def _server_defaults() -> dict[str, ConfigKey]:
    """Return the broker configs that set defaults for topic configs."""
    keys: dict[str, ConfigKey] = {}
    for topic_key in TOPIC_CONFIG_KEYS.values():
        name = topic_key.server_config
        if name is None:
            continue
        others = _OTHER_SYNONYMS.get(topic_key.name, ())
        keys[name] = ConfigKey(
            name=name,
            type=topic_key.type,
            default="" if others else topic_key.default,
            doc=topic_key.doc,
            minimum=-INT64_MAX - 1,
            maximum=INT64_MAX,
            update_mode=UpdateMode.CLUSTER,
        )
        for unit_name, _, default in others:
            keys[unit_name] = ConfigKey(
                name=unit_name,
                type=ConfigType.LONG if default == INT64_MAX else ConfigType.INT,
                default=default,
                doc=f"{topic_key.doc} {name} takes precedence.",
                maximum=INT64_MAX,
            )
    return keys


SERVER_DEFAULTS: Final = MappingProxyType(_server_defaults())
"""The broker configs that set defaults of topic configs, by name."""

TOPIC_DEFAULTS: Final = MappingProxyType(
    {
        key.server_config: (key.name, 1)
        for key in TOPIC_CONFIG_KEYS.values()
        if key.server_config in SERVER_DEFAULTS
    }
    | {
        name: (topic_name, factor)
        for topic_name, units in _OTHER_SYNONYMS.items()
        for name, factor, _ in units
    }
)
"""The effect of each broker config in `SERVER_DEFAULTS`.

Each value is the name of the topic config and the factor that converts the broker config's unit to
the topic config's unit.
"""
