"""The effective configs of a group, their sources and their synonyms.

The groups need not exist. Source: `kafka.server.ConfigHelper.createGroupConfigEntry`.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker_ref.api.topic_descriptions import DescribedConfig
from broker_ref.config_keys import ConfigKey
from broker_ref.dynamic_configs import ConfigLevels, ConfigSource, Synonym
from broker_ref.group_configs import GROUP_CONFIG_KEYS, broker_config


def describe_group_configs(levels: ConfigLevels, own: Mapping[str, str]) -> list[DescribedConfig]:
    """Return all configs of a group. `own` contains the configs that are set on the group."""
    return [_describe(key, levels, own.get(key.name)) for key in GROUP_CONFIG_KEYS.values()]


def _describe(key: ConfigKey, levels: ConfigLevels, own: str | None) -> DescribedConfig:
    inherited = broker_config(key.name)
    synonyms = levels.synonyms(inherited, [inherited])
    if not synonyms:
        default = Synonym(
            name=key.name, value=key.text(key.default), source=ConfigSource.DEFAULT_CONFIG
        )
        synonyms = (default,)
    if own is not None:
        value = key.text(key.parse(own))
        set_value = Synonym(name=key.name, value=value, source=ConfigSource.GROUP_CONFIG)
        synonyms = (set_value, *synonyms)
    return DescribedConfig(
        name=key.name,
        value=synonyms[0].value,
        source=synonyms[0].source,
        type=key.type,
        doc=key.doc,
        read_only=False,
        synonyms=synonyms,
    )
