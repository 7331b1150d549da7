"""The user's options, parsed once into frozen values: every `OptionError` of a value is raised here.

Purpose: from text to `SourceOptions` or `SinkOptions`, by the table. Invariant: it runs on the
driver before any task; each error names the option, its value (never a secret) and the remedy.
What it must not know: Spark, the cluster.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeVar, cast
from uuid import uuid4

from pyspark_kafka.client.factory import choose_engine
from pyspark_kafka.client.java_names import librdkafka_properties
from pyspark_kafka.errors import OptionError
from pyspark_kafka.kafka.offsets import EARLIEST, LATEST, IsolationLevel
from pyspark_kafka.kafka.topics import (
    LEGAL_TOPIC_NAMES,
    TopicPartition,
    format_partitions,
    is_topic_name,
)
from pyspark_kafka.kafka.transactions import LEGAL_SINK_IDS, is_sink_id
from pyspark_kafka.options.names import check_name
from pyspark_kafka.options.offsets_json import (
    OffsetFormatError,
    parse_offsets,
    parse_partitions,
    parse_timestamps,
)
from pyspark_kafka.options.table import (
    BATCH_READ,
    BATCH_WRITE,
    BY_LOWER_NAME,
    OPTIONS,
    READS,
    REFUSED_KAFKA,
    STREAM_READ,
    STREAM_WRITE,
    Mode,
)
from pyspark_kafka.options.values import (
    Assign,
    ClientOptions,
    EngineOption,
    ExactlyOnce,
    FilterPushdown,
    GlobalTimestamp,
    Limit,
    OffsetLimit,
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

T = TypeVar("T")

_BOOTSTRAP_SERVER: Final = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s:/,\[\]]+):([0-9]{1,5})")


def parse_source_options(
    options: Mapping[str, str], *, streaming: bool, admission_control: bool = True
) -> SourceOptions:
    """Parse the options of a read; raises `OptionError`.

    `admission_control` says whether Spark can limit a micro-batch (4.2 and later); where it
    cannot, the options that would need it are refused.
    """
    given = _Given(options, STREAM_READ if streaming else BATCH_READ)
    if streaming and not admission_control:
        given.refuse_newer_options()
    client = given.client(role="consumer")
    starting = given.limit("starting")
    ending = Limit.LATEST if streaming else given.limit("ending")
    if not streaming:
        _check_batch_limits(starting, ending)
    _check_offsets_per_trigger(given)
    return SourceOptions(
        client=client,
        isolation_level=IsolationLevel[given.text("kafka.isolation.level").upper()],
        selection=given.selection(),
        starting=starting,
        ending=ending,
        latest_without_match=given.text("startingOffsetsByTimestampStrategy") == "latest",
        fail_on_data_loss=given.boolean("failOnDataLoss"),
        include_headers=given.boolean("includeHeaders"),
        filter_pushdown=FilterPushdown(given.text("filterPushdown")),
        min_partitions=given.optional_integer("minPartitions"),
        max_records_per_partition=given.optional_integer("maxRecordsPerPartition"),
        max_offsets_per_trigger=given.optional_integer("maxOffsetsPerTrigger"),
        min_offsets_per_trigger=given.optional_integer("minOffsetsPerTrigger"),
        max_trigger_delay_ms=given.integer("maxTriggerDelay"),
        commit_offsets=given.commits_offsets(),
    )


def parse_sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Parse the options of a write; raises `OptionError`."""
    given = _Given(options, STREAM_WRITE if streaming else BATCH_WRITE)
    given.refuse_weaker_producer()
    topic = given.text("topic") if given.has("topic") else None
    if topic is not None:
        _check_topic_name("topic", topic)
    return SinkOptions(
        client=given.client(role="producer"), topic=topic, exactly_once=given.exactly_once(topic)
    )


def check_source_options(options: Mapping[str, str]) -> bool:
    """Check all that does not depend on batch or streaming, which `load()` does not know yet.

    Returns `includeHeaders`, on which the schema depends; raises `OptionError`.
    """
    given = _Given(options, READS)
    given.client(role="consumer")
    given.selection()
    given.limit("starting")
    given.limit("ending")
    given.commits_offsets()
    given.parse_all()
    _check_offsets_per_trigger(given)
    return given.boolean("includeHeaders")


class _Given:
    """The options of one query in one mode: checked names, values parsed when asked for."""

    def __init__(self, options: Mapping[str, str], modes: frozenset[Mode]) -> None:
        """`modes` are what the query may be: one, or both reads."""
        self._texts = {name.lower(): value for name, value in options.items()}
        self._modes = modes
        for name in options:
            check_name(name)
            self._check_allowed(name.lower())
            self._check_requirement(name.lower())

    def _check_allowed(self, lowered: str) -> None:
        if lowered.startswith("kafka.") and lowered[6:] in REFUSED_KAFKA:
            raise OptionError(f"option '{lowered}' is not supported: {REFUSED_KAFKA[lowered[6:]]}")
        option = BY_LOWER_NAME.get(lowered)
        if option is None:
            return
        if self._modes <= option.ignored_in:
            log.warning("option '%s' has no effect in %s", option.name, self._what())
        elif not self._modes & option.modes:
            raise OptionError(
                f"option '{option.name}' has no meaning in {self._what()}: {option.remedy}"
            )

    def _check_requirement(self, lowered: str) -> None:
        option = BY_LOWER_NAME.get(lowered)
        if option is None or option.requires is None or self.has(option.requires):
            return
        if self._modes & BY_LOWER_NAME[option.requires.lower()].modes:
            raise OptionError(
                f"option '{option.name}' requires the option '{option.requires}': set "
                f"'{option.requires}', or remove '{option.name}'"
            )

    def _what(self) -> str:
        return " or ".join(sorted(mode.value for mode in self._modes))

    def has(self, name: str) -> bool:
        return name.lower() in self._texts

    def _value(self, name: str) -> bool | int | str | None:
        option = BY_LOWER_NAME[name.lower()]
        text = self._texts.get(name.lower())
        if text is None or self._modes <= option.ignored_in:
            text = option.default_in(self._modes)
        return None if text is None else option.parse(text)

    def parse_all(self) -> None:
        for option in BY_LOWER_NAME.values():
            self._value(option.name)

    def text(self, name: str) -> str:
        value = self._value(name)
        assert isinstance(value, str), name
        return value

    def boolean(self, name: str) -> bool:
        value = self._value(name)
        assert isinstance(value, bool), name
        return value

    def integer(self, name: str) -> int:
        value = self._value(name)
        assert isinstance(value, int), name
        return value

    def optional_integer(self, name: str) -> int | None:
        return None if self._value(name) is None else self.integer(name)

    def parsed(self, name: str, parse: Callable[[str], T]) -> T:
        try:
            return parse(self.text(name))
        except OffsetFormatError as error:
            raise OptionError(
                f"option '{name}' has the value '{self.text(name)}': {error}"
            ) from None

    def client(self, *, role: Role) -> ClientOptions:
        servers = self._bootstrap_servers()
        kafka = {name[6:]: text for name, text in self._texts.items() if name.startswith("kafka.")}
        librdkafka_properties(kafka, role=role)  # refuses what no client could use, here and now
        engine = self.text("engine")
        options = ClientOptions(
            bootstrap_servers=servers,
            kafka=kafka,
            group_id=self._group_id(),
            engine=cast("EngineOption", engine),
            poll_timeout_ms=self.integer("kafkaConsumer.pollTimeoutMs"),
            fetch_offset_num_retries=self.integer("fetchOffset.numRetries"),
            fetch_offset_retry_interval_ms=self.integer("fetchOffset.retryIntervalMs"),
        )
        if options.engine == "native":
            choose_engine(options, role)  # refuses what that engine cannot do
        return options

    def _bootstrap_servers(self) -> str:
        name = "kafka.bootstrap.servers"
        if not self.has(name):
            raise OptionError(f"option '{name}' is missing: set it to host:port[,host:port...]")
        servers = [server.strip() for server in self.text(name).split(",") if server.strip()]
        for server in servers:
            match = _BOOTSTRAP_SERVER.fullmatch(server)
            if match is None or not 0 < int(match[1]) <= 65_535:
                raise OptionError(
                    f"option '{name}' has the value '{self.text(name)}': '{server}' is not "
                    "host:port"
                )
        if not servers:
            raise OptionError(f"option '{name}' names no server: set it to host:port[,...]")
        return ",".join(servers)

    def _group_id(self) -> str:
        if not self.has("kafka.group.id"):
            return f"{self.text('groupIdPrefix')}-{uuid4()}"
        if self.has("groupIdPrefix"):
            log.warning("option 'groupIdPrefix' has no effect, since 'kafka.group.id' is set")
        return self._texts["kafka.group.id"].strip()

    def selection(self) -> Selection:
        ways = [name for name in ("assign", "subscribe", "subscribePattern") if self.has(name)]
        if len(ways) != 1:
            quoted = " and ".join(f"'{name}'" for name in ways)
            found = f"{quoted} are given" if ways else "none is given"
            raise OptionError(
                "what to read is said by exactly one of the options 'assign', 'subscribe' and "
                f"'subscribePattern', and {found}"
            )
        match ways[0]:
            case "assign":
                partitions = self.parsed("assign", parse_partitions)
                for partition in partitions:
                    _check_topic_name("assign", partition.topic)
                return Assign(partitions=partitions)
            case "subscribe":
                return Subscribe(topics=self._subscribed())
        return SubscribePattern(pattern=self._pattern())

    def _subscribed(self) -> frozenset[str]:
        text = self.text("subscribe")
        topics = frozenset(topic.strip() for topic in text.split(",") if topic.strip())
        if not topics:
            raise OptionError(
                f"option 'subscribe' has the value '{text}', which names no topic: list them, "
                "separated by commas"
            )
        for topic in topics:
            _check_topic_name("subscribe", topic)
        return topics

    def _pattern(self) -> re.Pattern[str]:
        text = self.text("subscribePattern")
        try:
            return re.compile(text)
        except re.error as error:
            raise OptionError(
                f"option 'subscribePattern' has the value '{text}', which is not a regular "
                f"expression of Python: {error}"
            ) from None

    def limit(self, which: Literal["starting", "ending"]) -> OffsetLimit:
        """Where to start or end, by the precedence of Spark's connector."""
        if self.has(f"{which}Timestamp"):
            return GlobalTimestamp(timestamp_ms=self.integer(f"{which}Timestamp"))
        if self.has(f"{which}OffsetsByTimestamp"):
            timestamps_ms = self.parsed(f"{which}OffsetsByTimestamp", parse_timestamps)
            return PartitionTimestamps(timestamps_ms=timestamps_ms)
        name = f"{which}Offsets"
        text = self.text(name)
        if text.lower() in ("earliest", "latest"):
            return Limit[text.upper()]
        if text.lower() == "committed" and which == "starting":
            if not self.has("kafka.group.id"):
                raise OptionError(
                    f"option '{name}' has the value 'committed', which needs the group that "
                    "committed the offsets: set 'kafka.group.id'"
                )
            return Limit.COMMITTED
        if not text.startswith("{"):
            others = "earliest, latest, committed or" if which == "starting" else "latest or"
            raise OptionError(f"option '{name}' has the value '{text}': it must be {others} JSON")
        return SpecificOffsets(offsets=self.parsed(name, parse_offsets))

    def commits_offsets(self) -> bool:
        """`commitOffsets`, which needs a group that the user names."""
        if not self.boolean("commitOffsets"):
            return False
        if not self.has("kafka.group.id"):
            raise OptionError(
                "option 'commitOffsets' is true, which needs the group to commit the offsets to: "
                "set 'kafka.group.id'"
            )
        return True

    def exactly_once(self, topic: str | None) -> ExactlyOnce | None:
        """What `transactionalId` asks for; None where rows are written at least once."""
        if not self.has("transactionalId"):
            self._warn_of_idle_group()
            return None
        transactional_id, commit_topic = self.text("transactionalId"), self.text("commitTopic")
        if not is_sink_id(transactional_id):
            raise OptionError(
                f"option 'transactionalId' has the value '{transactional_id}': it must be of "
                f"{LEGAL_SINK_IDS}, since the ids of the tasks' transactions begin with it"
            )
        _check_topic_name("commitTopic", commit_topic)
        if commit_topic == topic:
            raise OptionError(
                f"options 'topic' and 'commitTopic' both name '{topic}': what was committed must "
                "not stand among rows; take another 'commitTopic'"
            )
        commits_offsets = self._commits_offsets_with_rows()
        return ExactlyOnce(
            transactional_id=transactional_id,
            transaction_timeout_ms=self.integer("transactionTimeout"),
            commit_topic=commit_topic,
            group_id=self.text("kafka.group.id") if commits_offsets else None,
            checkpoint=self._optional_text("checkpointLocation"),
            batch_id=self.optional_integer("batchId"),
            fail_on_replay_mismatch=self.text("onReplayMismatch") == "fail",
            two_phase_commit=self.boolean("twoPhaseCommit"),
        )

    def _commits_offsets_with_rows(self) -> bool:
        if Mode.BATCH_WRITE in self._modes:
            return False
        if not self.commits_offsets():
            self._warn_of_idle_group()
            return False
        if not self.has("checkpointLocation"):
            raise OptionError(
                "option 'commitOffsets' is true, which needs the query's checkpoint, where the "
                "offsets of a micro-batch stand: set 'checkpointLocation' as an option of the "
                "write, even where Spark's configuration has it"
            )
        return True

    def _warn_of_idle_group(self) -> None:
        if self._modes == STREAM_WRITE and self.has("kafka.group.id"):
            log.warning("option 'kafka.group.id' has no effect without 'commitOffsets'")

    def _optional_text(self, name: str) -> str | None:
        return None if self._value(name) is None else self.text(name)

    def refuse_newer_options(self) -> None:
        """Refuse the options that need a later Spark than this one."""
        for option in OPTIONS:
            if option.spark_since is not None and self.has(option.name):
                raise OptionError(
                    f"option '{option.name}' needs Spark {option.spark_since} or later, since this "
                    "one cannot limit a micro-batch of a Python source: remove it or upgrade"
                )

    def refuse_weaker_producer(self) -> None:
        acks = self._texts.get("kafka.acks", "all").strip()
        if acks not in ("all", "-1"):
            raise OptionError(
                f"option 'kafka.acks' has the value '{acks}': rows are written with acks=all "
                "only; remove it"
            )
        if self._texts.get("kafka.enable.idempotence", "true").strip().lower() != "true":
            raise OptionError(
                "option 'kafka.enable.idempotence' is not 'true': rows are written by an "
                "idempotent producer only; remove it"
            )


def _check_offsets_per_trigger(given: _Given) -> None:
    minimum = given.optional_integer("minOffsetsPerTrigger")
    maximum = given.optional_integer("maxOffsetsPerTrigger")
    if minimum is not None and maximum is not None and minimum > maximum:
        raise OptionError(
            f"option 'minOffsetsPerTrigger' ({minimum}) is higher than 'maxOffsetsPerTrigger' "
            f"({maximum}): no micro-batch could satisfy both; lower the first or raise the second"
        )


def _check_topic_name(option: str, topic: str) -> None:
    if not is_topic_name(topic):
        raise OptionError(
            f"option '{option}' names the topic '{topic}', which no topic can be called: Kafka "
            f"allows {LEGAL_TOPIC_NAMES}"
        )


def _check_batch_limits(starting: OffsetLimit, ending: OffsetLimit) -> None:
    if starting is Limit.LATEST or LATEST in _specific(starting).values():
        raise OptionError(
            f"option 'startingOffsets' asks for latest{_where(starting, LATEST)}, where a batch "
            "read would find nothing: use earliest, an offset or a timestamp"
        )
    if ending is Limit.EARLIEST or EARLIEST in _specific(ending).values():
        raise OptionError(
            f"option 'endingOffsets' asks for earliest{_where(ending, EARLIEST)}, where a batch "
            "read would find nothing: use latest, an offset or a timestamp"
        )
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
            f"option 'startingTimestamp' ({starting.timestamp_ms}) is after 'endingTimestamp' "
            f"({ending.timestamp_ms}): swap or correct them"
        )


def _check_order(
    start_option: str,
    start: Mapping[TopicPartition, int],
    end_option: str,
    end: Mapping[TopicPartition, int],
) -> None:
    if start.keys() != end.keys():
        raise OptionError(
            f"options '{start_option}' and '{end_option}' name different partitions: only one of "
            f"them names {format_partitions(start.keys() ^ end.keys())}"
        )
    for partition in sorted(start):
        if 0 <= end[partition] < start[partition]:
            raise OptionError(
                f"option '{start_option}' starts {partition} at {start[partition]}, behind "
                f"{end[partition]}, where '{end_option}' ends it: swap or correct them"
            )


def _specific(limit: OffsetLimit) -> Mapping[TopicPartition, int]:
    return limit.offsets if isinstance(limit, SpecificOffsets) else {}


def _where(limit: OffsetLimit, wanted: int) -> str:
    found = [partition for partition, offset in _specific(limit).items() if offset == wanted]
    return f" for {format_partitions(found)}" if found else ""
