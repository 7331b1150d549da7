"""The page docs/options.md, generated from the table (`python -m pyspark_kafka.options.page`)."""

from __future__ import annotations

import sys

from pyspark_kafka.options.table import (
    BATCH_READ,
    BATCH_WRITE,
    OPTIONS,
    READS,
    REFUSED_KAFKA,
    STREAM_READ,
    STREAM_WRITE,
    WRITES,
    Mode,
    Option,
)
from pyspark_kafka.options.types import Choice, Integer


def render() -> str:
    """The page `docs/options.md`."""
    lines = [
        "# Options",
        "",
        "<!-- Printed by `python -m pyspark_kafka.options.page`; change the table there. -->",
        "",
        "Names are not case-sensitive. They are those of Spark's own Kafka connector and mean the",
        "same. Each is checked on the driver, before any task runs.",
        "",
    ]
    for title, modes in (("Reading", READS), ("Writing", WRITES)):
        lines += [f"## {title}", "", "| option | type | default | meaning |", "|---|---|---|---|"]
        lines += [_row(option, modes) for option in OPTIONS if option.modes & modes]
        lines.append("")
    lines += [
        "## Settings of the Kafka client",
        "",
        "`kafka.*` passes a setting to the Kafka client, under its name in the Java client or in",
        "librdkafka: `kafka.security.protocol`, `kafka.sasl.jaas.config`, `kafka.fetch.max.bytes`.",
        "`kafka.default.api.timeout.ms` (60000) bounds each question of the driver to the brokers.",
        "These are refused:",
        "",
        "| option | instead |",
        "|---|---|",
        *(f"| `kafka.{name}` | {remedy} |" for name, remedy in REFUSED_KAFKA.items()),
        "",
    ]
    return "\n".join(lines)


def _row(option: Option, of: frozenset[Mode]) -> str:
    default = "" if option.default is None else f"`{option.default}`"
    if option.stream_default is not None:
        default = f"batch `{option.default}`, streaming `{option.stream_default}`"
    return f"| `{option.name}` | {_type(option)} | {default} | {_where(option, of)}{option.doc} |"


def _type(option: Option) -> str:
    match option.type:
        case Choice(values):
            return " or ".join(f"`{value}`" for value in values)
        case Integer(minimum) if minimum > 0:
            return "integer > 0"
    return option.type.label


def _where(option: Option, of: frozenset[Mode]) -> str:
    modes = option.modes & of
    if modes in (BATCH_READ, BATCH_WRITE):
        return "*Batch only.* "
    return "*Streaming only.* " if modes in (STREAM_READ, STREAM_WRITE) else ""


if __name__ == "__main__":
    sys.stdout.write(render())
