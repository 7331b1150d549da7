"""Parse the options of a query into `SourceOptions` or `SinkOptions`.

The driver parses all options before it starts tasks. Each error sets the `option` field, and no
error contains a secret.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Final, Literal, cast
from uuid import uuid4

from pyspark_kafka.client.factory import check_supported
from pyspark_kafka.errors import OptionError
from pyspark_kafka.kafka.offsets import EARLIEST, LATEST, IsolationLevel
from pyspark_kafka.kafka.topics import (
    LEGAL_TOPIC_NAMES,
    TopicPartition,
    format_partitions,
    is_topic_name,
)
from pyspark_kafka.kafka.transactions import LEGAL_SINK_IDS, is_sink_id
from pyspark_kafka.options.names import USE_VIEW
from pyspark_kafka.options.offsets_json import parse_offsets, parse_partitions, parse_timestamps
from pyspark_kafka.options.raw_options import RawOptions
from pyspark_kafka.options.table import (
    BATCH_READ,
    BATCH_WRITE,
    READS,
    STREAM_READ,
    STREAM_WRITE,
)
from pyspark_kafka.options.values import (
    Assign,
    ClientOptions,
    EngineOption,
    ExactlyOnce,
    FilterPushdown,
    GlobalTimestamp,
    OffsetLimit,
    OffsetLimitName,
    PartitionTimestamps,
    Role,
    Selection,
    SinkOptions,
    SourceOptions,
    SpecificOffsets,
    Subscribe,
    SubscribePattern,
)

log = logging.getLogger(__name__)


def parse_source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parse the options of a read. Raises `OptionError`."""
    raw = RawOptions(options, STREAM_READ if streaming else BATCH_READ)
    with raw.masked_in_errors():
        return _source_options(raw, streaming=streaming)


def _source_options(raw: RawOptions, *, streaming: bool) -> SourceOptions:
    client = _client_options(raw, role="consumer")
    starting = _limit(raw, "starting")
    ending = OffsetLimitName.LATEST if streaming else _limit(raw, "ending")
    if not streaming:
        _check_limits_of_batch_read(starting, ending)
    _check_sizes(raw)
    return SourceOptions(
        client=client,
        isolation_level=_isolation_level(raw),
        selection=_selection(raw),
        starting=starting,
        ending=ending,
        latest_without_match=raw.text("startingOffsetsByTimestampStrategy") == "latest",
        fail_on_data_loss=raw.boolean("failOnDataLoss"),
        include_headers=raw.boolean("includeHeaders"),
        filter_pushdown=FilterPushdown(raw.text("filterPushdown")),
        min_partitions=raw.optional_integer("minPartitions"),
        max_partitions=raw.optional_integer("maxPartitions"),
        max_records_per_partition=raw.optional_integer("maxRecordsPerPartition"),
        max_offsets_per_trigger=raw.optional_integer("maxOffsetsPerTrigger"),
        max_bytes_per_trigger=raw.optional_integer("maxBytesPerTrigger"),
        min_offsets_per_trigger=raw.optional_integer("minOffsetsPerTrigger"),
        max_trigger_delay_ms=raw.integer("maxTriggerDelay"),
        commit_offsets=_commit_offsets(raw),
    )


def check_source_options(options: Mapping[str, str]) -> bool:
    """Validate the options of a read and return the value of `includeHeaders`.

    `load()` needs this value to determine the schema. At that time, it is not yet known whether the
    query is a batch or a streaming query. Raises `OptionError`.
    """
    raw = RawOptions(options, READS)
    with raw.masked_in_errors():
        _client_options(raw, role="consumer")
        _selection(raw)
        _limit(raw, "starting")
        _limit(raw, "ending")
        _commit_offsets(raw)
        raw.parse_all()
        _check_sizes(raw)
        return raw.boolean("includeHeaders")


def parse_connection_options(options: Mapping[str, str]) -> tuple[ClientOptions, IsolationLevel]:
    """Parse the options for a client that requests offsets. Raises `OptionError`.

    All options of a streaming read are allowed, and only `kafka.bootstrap.servers` is required.
    """
    raw = RawOptions(options, STREAM_READ)
    with raw.masked_in_errors():
        return _client_options(raw, role="consumer"), _isolation_level(raw)


def parse_sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Parse the options of a write. Raises `OptionError`."""
    raw = RawOptions(options, STREAM_WRITE if streaming else BATCH_WRITE)
    with raw.masked_in_errors():
        _check_producer_settings(raw)
        topic = raw.optional_text("topic")
        if topic is not None:
            _check_topic_name("topic", topic)
        client = _client_options(raw, role="producer")
        return SinkOptions(client=client, topic=topic, exactly_once=_exactly_once(raw, topic))


# The connection.

_BOOTSTRAP_SERVERS: Final = "kafka.bootstrap.servers"
_BOOTSTRAP_SERVER: Final = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s:/,\[\]]+):([0-9]{1,5})")


def _client_options(raw: RawOptions, *, role: Role) -> ClientOptions:
    options = ClientOptions(
        bootstrap_servers=_bootstrap_servers(raw),
        kafka=raw.kafka,
        group_id=_group_id(raw),
        engine=cast("EngineOption", raw.text("engine")),
        poll_timeout_ms=raw.integer("kafkaConsumer.pollTimeoutMs"),
        fetch_offset_num_retries=raw.integer("fetchOffset.numRetries"),
        fetch_offset_retry_interval_ms=raw.integer("fetchOffset.retryIntervalMs"),
    )
    check_supported(options, role)
    return options


def _bootstrap_servers(raw: RawOptions) -> str:
    name, advice = _BOOTSTRAP_SERVERS, "Set it to host:port[,host:port...]."
    if name not in raw:
        if not len(raw):  # Spark passes no options for a table that CREATE TABLE has created.
            advice = f"{advice} If CREATE TABLE created this table: {USE_VIEW}."
        raise OptionError(f"Option '{name}' is missing.", advice=advice, option=name)
    text = raw.text(name)
    servers = [server.strip() for server in text.split(",") if server.strip()]
    for server in servers:
        match = _BOOTSTRAP_SERVER.fullmatch(server)
        if match is None or not 0 < int(match[1]) <= 65_535:
            raise OptionError(
                f"Option '{name}' contains '{server}', which does not have the form host:port.",
                advice=advice,
                option=name,
            )
    if not servers:
        what = f"Option '{name}' has the value '{text}', which contains no servers."
        raise OptionError(what, advice=advice, option=name)
    return ",".join(servers)


def _isolation_level(raw: RawOptions) -> IsolationLevel:
    return IsolationLevel[raw.text("kafka.isolation.level").upper()]


def _group_id(raw: RawOptions) -> str:
    if "kafka.group.id" not in raw:
        return f"{raw.text('groupIdPrefix')}-{uuid4()}"
    if "groupIdPrefix" in raw:
        log.warning("Option 'groupIdPrefix' has no effect, because 'kafka.group.id' is set.")
    return raw.kafka["group.id"].strip()


# What to read.


def _selection(raw: RawOptions) -> Selection:
    names = [name for name in ("assign", "subscribe", "subscribePattern") if name in raw]
    if len(names) != 1:
        quoted = " and ".join(f"'{name}'" for name in names)
        found = f"{quoted} are set" if names else "none of them is set"
        raise OptionError(
            "Exactly one of the options 'assign', 'subscribe' and 'subscribePattern' is "
            f"required, but {found}.",
            advice="Set exactly one of them.",
            option=names[0] if names else "subscribe",
        )
    match names[0]:
        case "assign":
            partitions = raw.json("assign", parse_partitions)
            for partition in partitions:
                _check_topic_name("assign", partition.topic)
            return Assign(partitions=partitions)
        case "subscribe":
            return Subscribe(topics=_subscribed_topics(raw))
    return SubscribePattern(pattern=_topic_pattern(raw))


def _subscribed_topics(raw: RawOptions) -> frozenset[str]:
    text = raw.text("subscribe")
    topics = frozenset(topic.strip() for topic in text.split(",") if topic.strip())
    if not topics:
        raise OptionError(
            f"Option 'subscribe' has the value '{text}', which contains no topics.",
            advice="Set it to a comma-separated list of topics.",
            option="subscribe",
        )
    for topic in topics:
        _check_topic_name("subscribe", topic)
    return topics


def _topic_pattern(raw: RawOptions) -> re.Pattern[str]:
    text = raw.text("subscribePattern")
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError, ValueError) as error:
        raise OptionError(
            f"Option 'subscribePattern' has the value '{text}', which is not a valid regular "
            f"expression: {error}.",
            advice="Set it to a regular expression in the syntax of Python's `re` module.",
            option="subscribePattern",
        ) from None


def _check_topic_name(option: str, topic: str) -> None:
    if not is_topic_name(topic):
        raise OptionError(
            f"Option '{option}' contains '{topic}', which is not a valid topic name.",
            advice=f"Use {LEGAL_TOPIC_NAMES}.",
            option=option,
            topic=topic,
        )


# Where to start and end.


def _limit(raw: RawOptions, which: Literal["starting", "ending"]) -> OffsetLimit:
    """Return the start or end of a read.

    The precedence of the options that set it is the same as in Spark's Kafka connector.
    """
    if f"{which}Timestamp" in raw:
        return GlobalTimestamp(timestamp_ms=raw.integer(f"{which}Timestamp"))
    if f"{which}OffsetsByTimestamp" in raw:
        timestamps_ms = raw.json(f"{which}OffsetsByTimestamp", parse_timestamps)
        return PartitionTimestamps(timestamps_ms=timestamps_ms)
    name = f"{which}Offsets"
    text = raw.text(name)
    if text.lower() in ("earliest", "latest"):
        return OffsetLimitName[text.upper()]
    if text.lower() == "committed" and which == "starting":
        _require_group(raw, name, text)
        return OffsetLimitName.COMMITTED
    if not text.startswith("{"):
        starts = "earliest, latest (streaming only), committed"
        raise OptionError(
            f"Option '{name}' has the invalid value '{text}'.",
            advice=f"Set it to {starts if which == 'starting' else 'latest'} or offsets in JSON.",
            option=name,
        )
    return SpecificOffsets(offsets=raw.json(name, parse_offsets))


def _check_limits_of_batch_read(starting: OffsetLimit, ending: OffsetLimit) -> None:
    _check_not(LATEST, "latest", starting, "startingOffsets", "earliest")
    _check_not(EARLIEST, "earliest", ending, "endingOffsets", "latest")
    if isinstance(starting, SpecificOffsets) and isinstance(ending, SpecificOffsets):
        _check_order("startingOffsets", starting.offsets, "endingOffsets", ending.offsets)
    if isinstance(starting, PartitionTimestamps) and isinstance(ending, PartitionTimestamps):
        start, end = starting.timestamps_ms, ending.timestamps_ms
        _check_order("startingOffsetsByTimestamp", start, "endingOffsetsByTimestamp", end)
    if (
        isinstance(starting, GlobalTimestamp)
        and isinstance(ending, GlobalTimestamp)
        and starting.timestamp_ms > ending.timestamp_ms
    ):
        raise OptionError(
            f"Option 'startingTimestamp' ({starting.timestamp_ms}) is greater than "
            f"'endingTimestamp' ({ending.timestamp_ms}).",
            advice="Correct one of the options.",
            option="startingTimestamp",
        )


def _check_not(
    excluded: int, excluded_name: str, limit: OffsetLimit, option: str, alternative: str
) -> None:
    """Raise `OptionError` if `limit`, or the offset of a partition in it, equals `excluded`.

    A batch read must not start at the latest offset or end at the earliest offset, because the read
    would return no rows.
    """
    offsets = limit.offsets if isinstance(limit, SpecificOffsets) else {}
    partitions = sorted(p for p, offset in offsets.items() if offset == excluded)
    if limit is not OffsetLimitName(excluded) and not partitions:
        return
    where = f" for {format_partitions(partitions)}" if partitions else ""
    first = partitions[0] if partitions else None
    raise OptionError(
        f"Option '{option}' has the value {excluded_name}{where}, so a batch read would return no "
        "rows.",
        advice=f"Set it to {alternative} or to specific offsets, or set "
        f"'{option.removesuffix('Offsets')}Timestamp' instead.",
        option=option,
        topic=None if first is None else first.topic,
        partition=None if first is None else first.partition,
    )


def _check_order(
    start_option: str,
    start: Mapping[TopicPartition, int],
    end_option: str,
    end: Mapping[TopicPartition, int],
) -> None:
    if start.keys() != end.keys():
        raise OptionError(
            f"Options '{start_option}' and '{end_option}' contain different partitions: only one "
            f"of them contains {format_partitions(start.keys() ^ end.keys())}.",
            advice="Set both options for the same partitions.",
            option=start_option,
        )
    for partition in sorted(start):
        if 0 <= end[partition] < start[partition]:
            raise OptionError(
                f"Option '{start_option}' has the value {start[partition]} for {partition}, which "
                f"is greater than the value {end[partition]} in '{end_option}'.",
                advice="Correct one of the options.",
                option=start_option,
                topic=partition.topic,
                partition=partition.partition,
            )


def _check_sizes(raw: RawOptions) -> None:
    for what in ("OffsetsPerTrigger", "Partitions"):
        minimum = raw.optional_integer(f"min{what}")
        maximum = raw.optional_integer(f"max{what}")
        if minimum is not None and maximum is not None and minimum > maximum:
            raise OptionError(
                f"Option 'min{what}' ({minimum}) is greater than 'max{what}' ({maximum}).",
                advice=f"Lower 'min{what}' or raise 'max{what}'.",
                option=f"min{what}",
            )


# The consumer group.


def _commit_offsets(raw: RawOptions) -> bool:
    """Return the value of `commitOffsets`, which requires `kafka.group.id`."""
    if not raw.boolean("commitOffsets"):
        return False
    _require_group(raw, "commitOffsets", "true")
    return True


def _require_group(raw: RawOptions, option: str, value: str) -> None:
    if "kafka.group.id" not in raw:
        raise OptionError(
            f"Option '{option}' has the value '{value}', which requires a consumer group.",
            advice="Set 'kafka.group.id'.",
            option=option,
        )


def _warn_of_unused_group(raw: RawOptions) -> None:
    if raw.modes == STREAM_WRITE and "kafka.group.id" in raw:
        log.warning("Option 'kafka.group.id' has no effect without 'commitOffsets'.")


# Writing.


def _check_producer_settings(raw: RawOptions) -> None:
    acks = raw.kafka_setting("acks", "all").strip()
    idempotence = raw.kafka_setting("enable.idempotence", "true").strip()
    if acks not in ("all", "-1"):
        raise OptionError(
            f"Option 'kafka.acks' has the value '{acks}', but rows are always written with "
            "acks=all.",
            advice="Remove the option.",
            option="kafka.acks",
        )
    if idempotence.lower() != "true":
        raise OptionError(
            f"Option 'kafka.enable.idempotence' has the value '{idempotence}', but the producer "
            "is always idempotent.",
            advice="Remove the option.",
            option="kafka.enable.idempotence",
        )


def _exactly_once(raw: RawOptions, topic: str | None) -> ExactlyOnce | None:
    """Return the options of an exactly-once write, or None if `transactionalId` is not set."""
    if "transactionalId" not in raw:
        _warn_of_unused_group(raw)
        return None
    transactional_id, commit_topic = raw.text("transactionalId"), raw.text("commitTopic")
    if not is_sink_id(transactional_id):
        raise OptionError(
            f"Option 'transactionalId' has the invalid value '{transactional_id}'.",
            advice=f"Use {LEGAL_SINK_IDS}.",
            option="transactionalId",
            transactional_id=transactional_id,
        )
    _check_topic_name("commitTopic", commit_topic)
    if commit_topic == topic:
        raise OptionError(
            f"Options 'topic' and 'commitTopic' have the same value '{topic}'. The commit topic "
            "must not contain rows.",
            advice="Set 'commitTopic' to another topic.",
            option="commitTopic",
            topic=topic,
        )
    commits_offsets = _commit_offsets_with_rows(raw)
    return ExactlyOnce(
        transactional_id=transactional_id,
        transaction_timeout_ms=raw.integer("transactionTimeout"),
        commit_topic=commit_topic,
        group_id=raw.text("kafka.group.id") if commits_offsets else None,
        checkpoint=raw.optional_text("checkpointLocation"),
        batch_id=raw.optional_integer("batchId"),
        fail_on_replay_mismatch=not _keeps_mismatched_rows(raw),
    )


def _keeps_mismatched_rows(raw: RawOptions) -> bool:
    keeps = raw.text("onReplayMismatch") == "warn"
    if keeps and raw.modes != BATCH_WRITE:
        _require_checkpoint(raw, "The value 'warn' of option 'onReplayMismatch'")
    return keeps


def _require_checkpoint(raw: RawOptions, what: str) -> None:
    if "checkpointLocation" not in raw:
        raise OptionError(
            f"{what} requires the option 'checkpointLocation', because the sink reads the offsets "
            "of a micro-batch from the checkpoint of the query.",
            advice="Set 'checkpointLocation' as an option of the write, even if it is set in "
            "Spark's configuration.",
            option="checkpointLocation",
        )


def _commit_offsets_with_rows(raw: RawOptions) -> bool:
    if raw.modes == BATCH_WRITE:
        return False
    if not _commit_offsets(raw):
        _warn_of_unused_group(raw)
        return False
    _require_checkpoint(raw, "Option 'commitOffsets'")
    return True
