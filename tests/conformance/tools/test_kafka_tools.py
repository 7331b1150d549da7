"""Tests of Apache Kafka's command-line tools on three brokers.

The tools use Kafka's Java clients. In the reference cluster each broker is a process.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from integration.clusters import Cluster
from integration.kafka_tools import KafkaTools, Output
from tests.conformance.eventually import eventually

pytestmark = [pytest.mark.slow, pytest.mark.sampled, pytest.mark.timeout(400)]

RECORDS = 500


@pytest.fixture
def topic(tools: KafkaTools, unique_name: Callable[[], str], replicas: int) -> str:
    """Return a topic with three partitions and a replica on each broker."""
    name = unique_name()
    tools.run(
        "topics",
        *("--create", "--topic", name, "--partitions", "3"),
        *("--replication-factor", str(replicas), "--config", "min.insync.replicas=1"),
    )
    return name


def described(tools: KafkaTools, topic: str) -> list[dict[str, str]]:
    """Return the rows of `kafka-topics --describe`, one for each partition."""
    lines = tools.run("topics", "--describe", "--topic", topic).lines
    assert lines, topic
    return [
        {
            key.strip(): value.strip()
            for key, _, value in (part.partition(":") for part in line.split("\t"))
        }
        for line in lines[1:]
    ]


def table(output: Output) -> list[dict[str, str]]:
    header, *rows = output.rows
    return [dict(zip(header, row, strict=False)) for row in rows]


def produce(tools: KafkaTools, topic: str, count: int = RECORDS) -> None:
    output = tools.run(
        "verifiable-producer", "--topic", topic, "--max-messages", str(count), "--acks", "-1"
    )
    (summary,) = [event for event in output.events if event["name"] == "tool_data"]
    assert (summary["sent"], summary["acked"]) == (count, count)
    values = {e["value"] for e in output.events if e["name"] == "producer_send_success"}
    assert values == {str(number) for number in range(count)}


def consume(tools: KafkaTools, topic: str, group: str, count: int = RECORDS) -> list[str]:
    """Consume and commit `count` records in a group of one member; return the tool's events."""
    output = tools.run(
        "verifiable-consumer",
        *("--topic", topic, "--group-id", group, "--max-messages", str(count)),
        *("--reset-policy", "earliest"),
    )
    read = [event for event in output.events if event["name"] == "records_consumed"]
    assert sum(event["count"] for event in read) == count
    commits = [event for event in output.events if event["name"] == "offsets_committed"]
    assert commits
    assert all(event["success"] for event in commits)
    return [event["name"] for event in output.events]


def end_offsets(tools: KafkaTools, topic: str, *, time: str = "-1") -> dict[int, int]:
    lines = tools.run("get-offsets", "--topic", topic, "--time", time).lines
    return {int(line.split(":")[1]): int(line.split(":")[2]) for line in lines}


def test_create_list_describe_grow_and_delete_topics(
    tools: KafkaTools, topic: str, replicas: int
) -> None:
    assert topic in tools.run("topics", "--list").lines
    partitions = described(tools, topic)
    assert [one["Partition"] for one in partitions] == ["0", "1", "2"]
    for one in partitions:
        assert len(one["Replicas"].split(",")) == replicas
        assert set(one["Isr"].split(",")) == set(one["Replicas"].split(","))
        assert one["Leader"] == one["Replicas"].split(",")[0]
    assert len({one["Leader"] for one in partitions}) == min(replicas, 3)
    tools.run("topics", "--alter", "--topic", topic, "--partitions", "5")
    eventually(lambda: len(described(tools, topic)) == 5)
    tools.run("topics", "--delete", "--topic", topic)
    eventually(lambda: topic not in tools.run("topics", "--list").lines)


def test_invalid_requests_of_tools_are_refused(tools: KafkaTools, topic: str) -> None:
    arguments = ("--create", "--topic", topic, "--partitions", "1")
    output, status = tools.attempt("topics", *arguments)
    assert status == 1
    assert f"Topic '{topic}' already exists" in output.stdout + output.stderr
    output, status = tools.attempt("topics", "--alter", "--topic", topic, "--partitions", "1")
    assert status == 1
    assert "InvalidPartitionsException" in output.stdout + output.stderr


def test_verifiable_producer_and_consumer_agree(
    tools: KafkaTools, topic: str, unique_name: Callable[[], str]
) -> None:
    produce(tools, topic)
    assert sum(end_offsets(tools, topic).values()) == RECORDS
    names = consume(tools, topic, unique_name())
    assert names.index("partitions_assigned") < names.index("records_consumed")
    assert "partitions_revoked" in names
    assert "shutdown_complete" in names


def test_console_producer_and_consumer_agree(tools: KafkaTools, topic: str) -> None:
    tools.run(
        "console-producer",
        *("--topic", topic, "--reader-property", "parse.key=true"),
        *("--reader-property", "key.separator=:"),
        stdin="".join(f"k{number}:v{number}\n" for number in range(20)),
    )
    output = tools.run(
        "console-consumer",
        *("--topic", topic, "--from-beginning", "--max-messages", "20"),
        *("--formatter-property", "print.key=true"),
    )
    assert sorted(output.rows) == sorted([f"k{number}", f"v{number}"] for number in range(20))


def test_console_consumer_with_the_consumer_protocol(
    tools: KafkaTools, topic: str, unique_name: Callable[[], str]
) -> None:
    """Java's consumer joins a group of KIP-848 and commits its offsets."""
    group = unique_name()
    produce(tools, topic)
    output = tools.run(
        "console-consumer",
        *("--topic", topic, "--group", group, "--from-beginning", "--max-messages", "1"),
        *("--command-property", "group.protocol=consumer"),
    )
    assert len(output.rows) == 1
    listed = tools.run("consumer-groups", "--list", "--type", "consumer")
    assert group in {row[0] for row in listed.rows}


def test_list_describe_reset_and_delete_groups(
    tools: KafkaTools, topic: str, unique_name: Callable[[], str]
) -> None:
    group = unique_name()
    produce(tools, topic)
    consume(tools, topic, group)
    of_group = ("--group", group)

    def lags() -> tuple[int, int]:
        rows = table(tools.run("consumer-groups", "--describe", *of_group))
        assert {row["GROUP"] for row in rows} == {group}
        return (
            sum(int(row["CURRENT-OFFSET"]) for row in rows),
            sum(int(row["LAG"]) for row in rows),
        )

    listed = table(tools.run("consumer-groups", "--list", "--state"))
    assert {"GROUP": group, "STATE": "Empty"} in listed
    assert lags() == (RECORDS, 0)
    (state,) = table(tools.run("consumer-groups", "--describe", *of_group, "--state"))
    assert state["GROUP"] == group
    assert "Empty" in state.values()

    reset = ("--reset-offsets", *of_group, "--topic", topic)
    planned = table(tools.run("consumer-groups", *reset, "--to-earliest", "--dry-run"))
    assert [int(row["NEW-OFFSET"]) for row in planned] == [0, 0, 0]
    assert lags() == (RECORDS, 0)
    tools.run("consumer-groups", *reset, "--to-earliest", "--execute")
    assert lags() == (0, RECORDS)
    consume(tools, topic, group)
    assert lags() == (RECORDS, 0)

    response = tools.run("consumer-groups", "--delete-offsets", *of_group, "--topic", f"{topic}:0")
    assert [topic, "0", "Successful"] in response.rows
    response = tools.run("consumer-groups", "--delete", *of_group)
    assert f"Deletion of requested consumer groups ('{group}') was successful." in response.stdout
    left = table(tools.run("consumer-groups", "--list", "--state"))
    assert group not in {row["GROUP"] for row in left}


def test_delete_records(tools: KafkaTools, topic: str) -> None:
    produce(tools, topic)
    ends = end_offsets(tools, topic)
    partition = max(ends, key=ends.__getitem__)
    requested = {"topic": topic, "partition": partition, "offset": ends[partition] - 1}
    file = tools.json_file("delete.json", {"version": 1, "partitions": [requested]})
    output = tools.run("delete-records", "--offset-json-file", file)
    assert f"partition: {topic}-{partition}\tlow_watermark: {ends[partition] - 1}" in output.stdout
    starts = end_offsets(tools, topic, time="-2")
    assert starts == dict.fromkeys(ends, 0) | {partition: ends[partition] - 1}
    assert end_offsets(tools, topic) == ends


def test_preferred_leader_election(tools: KafkaTools, topic: str, replicas: int) -> None:
    elect = ("--election-type", "preferred", "--topic", topic, "--partition", "0")
    output = tools.run("leader-election", *elect)
    assert f"Valid replica already elected for partitions {topic}-0" in output.stdout
    if replicas == 1:
        return
    before = described(tools, topic)[0]
    first, second, *others = before["Replicas"].split(",")
    wanted = [int(one) for one in (second, first, *others)]
    plan = {"topic": topic, "partition": 0, "replicas": wanted}
    file = tools.json_file("reassign.json", {"version": 1, "partitions": [plan]})
    tools.run("reassign-partitions", "--reassignment-json-file", file, "--execute")
    eventually(lambda: described(tools, topic)[0]["Replicas"] == ",".join(map(str, wanted)))
    assert described(tools, topic)[0]["Leader"] == first
    output = tools.run("leader-election", *elect)
    assert f"Successfully completed leader election (PREFERRED) for partitions {topic}-0" in (
        output.stdout
    )
    eventually(lambda: described(tools, topic)[0]["Leader"] == second)


def test_partition_reassignment(
    tools: KafkaTools, unique_name: Callable[[], str], processes: Cluster
) -> None:
    topic, ids = unique_name(), processes.broker_ids
    source, target = ids[0], ids[-1]
    tools.run("topics", "--create", "--topic", topic, "--replica-assignment", str(source))
    produce(tools, topic)
    log_dirs = [str(processes.data_directory(target))]
    plan = {"topic": topic, "partition": 0, "replicas": [target], "log_dirs": log_dirs}
    file = tools.json_file("move.json", {"version": 1, "partitions": [plan]})
    throttled = ("--execute", "--throttle", "10000000")
    started = tools.run("reassign-partitions", "--reassignment-json-file", file, *throttled)
    assert f"Successfully started moving log directory to {log_dirs[0]}" in started.stdout
    assert "replication.throttled.rate=10000000" in dynamic_broker_configs(tools)
    verify = ("--reassignment-json-file", file, "--verify")
    done = f"Reassignment of partition {topic}-0 is completed."
    eventually(lambda: done in tools.run("reassign-partitions", *verify).stdout, timeout_s=60)
    assert tools.run("reassign-partitions", "--list").lines == ["No partition reassignments found."]
    (moved,) = described(tools, topic)
    assert (moved["Leader"], moved["Replicas"], moved["Isr"]) == (str(target),) * 3
    assert "throttled" not in dynamic_broker_configs(tools)
    of_topic = tools.run("configs", "--describe", "--entity-type", "topics", "--entity-name", topic)
    assert "throttled" not in of_topic.stdout
    assert end_offsets(tools, topic) == {0: RECORDS}


def test_alter_describe_and_reset_topic_configs(tools: KafkaTools, topic: str) -> None:
    entity = ("--entity-type", "topics", "--entity-name", topic)

    def dynamic() -> set[str]:
        lines = tools.run("configs", "--describe", *entity).lines
        return {line.split()[0] for line in lines[1:]}

    changes = "max.message.bytes=12345,retention.ms=60000"
    tools.run("configs", "--alter", *entity, "--add-config", changes)
    expected = {"max.message.bytes=12345", "retention.ms=60000", "min.insync.replicas=1"}
    eventually(lambda: dynamic() == expected)
    tools.run("configs", "--alter", *entity, "--delete-config", "retention.ms")
    eventually(lambda: dynamic() == expected - {"retention.ms=60000"})
    output, status = tools.attempt("configs", "--alter", *entity, "--add-config", "retention.ms=x")
    assert status == 1
    assert "InvalidConfigurationException" in output.stdout + output.stderr


def test_describe_broker_configs(tools: KafkaTools, processes: Cluster) -> None:
    broker_id = processes.broker_ids[-1]
    entity = ("--entity-type", "brokers", "--entity-name", str(broker_id))
    lines = tools.run("configs", "--describe", *entity, "--all").lines
    configs = {line.split()[0] for line in lines[1:]}
    assert f"node.id={broker_id}" in configs
    assert "num.partitions=1" in configs


def dynamic_broker_configs(tools: KafkaTools) -> str:
    return tools.run("configs", "--describe", "--entity-type", "brokers").stdout


def test_alter_and_reset_broker_configs(tools: KafkaTools, processes: Cluster) -> None:
    broker = ("--entity-type", "brokers", "--entity-name", str(processes.broker_ids[-1]))
    added = ("--add-config", "log.retention.ms=604800001,message.max.bytes=1048589")
    tools.run("configs", "--alter", *broker, *added)
    eventually(lambda: "log.retention.ms=604800001" in dynamic_broker_configs(tools))
    deleted = ("--delete-config", "log.retention.ms,message.max.bytes")
    tools.run("configs", "--alter", *broker, *deleted)
    eventually(lambda: "log.retention.ms=604800001" not in dynamic_broker_configs(tools))
    read_only = ("--add-config", "num.partitions=3")
    output, status = tools.attempt("configs", "--alter", *broker, *read_only)
    assert status == 1
    assert "Cannot update these configs dynamically" in output.stdout + output.stderr


def test_configs_of_groups_client_metrics_and_loggers(
    tools: KafkaTools, processes: Cluster, unique_name: Callable[[], str]
) -> None:
    broker, name = (
        ("--entity-name", str(processes.broker_ids[-1])),
        ("--entity-name", unique_name()),
    )
    for entity_type, entity, all_entities, valid, invalid in (
        ("groups", name, (), "consumer.session.timeout.ms=50000", "consumer.session.timeout.ms=1"),
        ("client-metrics", name, (), "interval.ms=1000", "interval.ms=1"),
        ("broker-loggers", broker, broker, "root=ERROR", "root=LOUD"),
    ):
        of_type = ("--entity-type", entity_type)
        alter = ("configs", "--alter", *of_type, *entity, "--add-config")
        tools.run(*alter, valid)

        def is_described(
            arguments: tuple[str, ...] = (*of_type, *all_entities), valid: str = valid
        ) -> bool:
            return valid in tools.run("configs", "--describe", *arguments).stdout

        eventually(is_described)
        assert tools.attempt(*alter, invalid)[1] == 1
    tools.run("configs", "--alter", "--entity-type", "broker-loggers", *broker,
              "--add-config", "root=INFO")  # fmt: skip


def test_describe_log_directories(
    tools: KafkaTools, topic: str, processes: Cluster, replicas: int
) -> None:
    produce(tools, topic)
    lines = tools.run("log-dirs", "--describe", "--topic-list", topic).lines
    (line,) = [line for line in lines if line.startswith("{")]
    brokers = json.loads(line)["brokers"]
    assert {broker["broker"] for broker in brokers} == set(processes.broker_ids)
    found = [part for broker in brokers for log in broker["logDirs"] for part in log["partitions"]]
    assert len(found) == 3 * replicas
    assert sum(part["size"] for part in found) > RECORDS


def test_every_broker_reports_its_api_versions(tools: KafkaTools, processes: Cluster) -> None:
    lines = tools.run("broker-api-versions").lines
    brokers = [line for line in lines if "(id: " in line]
    assert len(brokers) == len(processes.broker_ids)
    assert sum(line.startswith("Produce(0): ") for line in lines) == len(brokers)
