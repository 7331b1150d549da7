"""Tests of the table of topic configs."""

from __future__ import annotations

from dataclasses import fields

import pytest

from broker_ref.log.batch import TimestampType
from broker_ref.log.config import TOPIC_CONFIGS, InvalidTopicConfigError, LogConfig


def test_the_defaults_of_the_table_and_of_the_dataclass_agree() -> None:
    defaults = {row.name: row.default for row in TOPIC_CONFIGS}
    assert LogConfig.from_topic_configs(defaults) == LogConfig()


def test_every_row_has_a_field_and_every_field_a_row() -> None:
    rows = {row.name.replace(".", "_") for row in TOPIC_CONFIGS}
    assert rows | {"producer_id_expiration_ms"} == {field.name for field in fields(LogConfig)}
    assert all(row.doc.endswith(".") for row in TOPIC_CONFIGS)


def test_values_are_parsed() -> None:
    config = LogConfig.from_topic_configs(
        {
            "cleanup.policy": "compact, delete",
            "retention.ms": " -1 ",
            "segment.bytes": "1048576",
            "message.timestamp.type": "LogAppendTime",
            "min.insync.replicas": "2",
        }
    )
    assert config.compact
    assert config.delete
    assert (config.retention_ms, config.segment_bytes) == (-1, 1 << 20)
    assert config.message_timestamp_type is TimestampType.LOG_APPEND_TIME


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "keep"),
        ("cleanup.policy", "delete,delete"),
        ("compression.type", "brotli"),
        ("flush.messages", "0"),
        ("index.interval.bytes", "-1"),
        ("max.message.bytes", "2147483648"),
        ("message.timestamp.type", "createtime"),
        ("retention.ms", "-2"),
        ("retention.ms", "soon"),
        ("retention.ms", "1_000"),
        pytest.param("retention.ms", "9" * 5000, id="digits that Python does not convert"),
        ("min.cleanable.dirty.ratio", "0.2_5"),
        ("retention.bytes", "9223372036854775808"),
        ("segment.bytes", "1048575"),
        ("segment.ms", "0"),
        ("segment.ms", ""),
    ],
)
def test_an_invalid_value_is_rejected_by_name(name: str, value: str) -> None:
    with pytest.raises(InvalidTopicConfigError) as error:
        LogConfig.from_topic_configs({name: value})
    assert error.value.name == name
    assert name in str(error.value)
    assert error.value.why
