"""Tests that the metadata journal contains complete batches only, after any disk failure."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from crc32c import crc32c

from broker_ref.controller.journal import MAGIC, CorruptJournalError, Journal
from broker_ref.controller.metadata import ClusterMetadata, Commit
from broker_ref.controller.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    decode_record,
    encode_record,
)
from broker_ref.log.storage import StorageError
from broker_ref.protocol.identifiers import Uuid
from broker_ref.security.listeners import Endpoint, SecurityProtocol
from tests.broker_ref.memory_storage import MemoryStorage

PATH = "journal"
TOPIC_ID = Uuid(int=123456789)
RECORDS: tuple[tuple[MetadataRecord, ...], ...] = (
    (
        RegisterBrokerRecord(
            broker_id=0,
            incarnation_id=Uuid(int=5),
            broker_epoch=0,
            host="h",
            port=9,
            rack=None,
            listeners=(
                Endpoint(listener="L", host="h", port=9, protocol=SecurityProtocol.SASL_SSL),
            ),
        ),
    ),
    (
        TopicRecord(name="t", topic_id=TOPIC_ID),
        ConfigRecord(resource_type=2, resource_name="t", name="retention.ms", value="1"),
        ConfigRecord(resource_type=4, resource_name="1", name="log.roll.ms", value=None),
        PartitionRecord(
            topic_id=TOPIC_ID,
            partition_id=0,
            replicas=(0, 1),
            isr=(0, 1),
            leader=0,
            leader_epoch=0,
            partition_epoch=0,
        ),
    ),
    (
        PartitionChangeRecord(
            topic_id=TOPIC_ID,
            partition_id=0,
            isr=(1,),
            leader=1,
        ),
        ProducerIdsRecord(broker_id=0, broker_epoch=0, next_producer_id=1000),
    ),
    (RemoveTopicRecord(topic_id=TOPIC_ID),),
)


def commits(batches: Sequence[tuple[MetadataRecord, ...]], first: int = 0) -> tuple[Commit, ...]:
    """Return the batches as consecutive commits that start at the offset `first`."""
    made = []
    for records in batches:
        made.append(Commit(base_offset=first, records=records))
        first = made[-1].end_offset
    return tuple(made)


BATCHES = commits(RECORDS)


def append(journal: Journal, commit: Commit) -> None:
    journal.append(commit.base_offset, map(encode_record, commit.records))


def written(storage: MemoryStorage) -> list[int]:
    """Write the batches; return the file sizes before the first and after each batch."""
    journal = Journal(storage, PATH)
    sizes = [len(storage.read(PATH))]
    for batch in BATCHES:
        append(journal, batch)
        sizes.append(len(storage.read(PATH)))
    return sizes


def found(storage: MemoryStorage) -> Sequence[Commit]:
    return Journal(storage, PATH).commits


def test_records_are_read_as_written() -> None:
    storage = MemoryStorage()
    written(storage)
    assert tuple(found(storage)) == BATCHES


def test_config_records_of_earlier_versions_are_those_of_topics() -> None:
    old = b'{"type":"ConfigRecord","topic":"t","name":"retention.ms","value":"1"}'
    assert decode_record(old) == RECORDS[1][1]


def test_torn_tail_is_truncated_wherever_it_is_torn() -> None:
    whole = MemoryStorage()
    sizes = written(whole)
    data = whole.read(PATH)
    for size in range(sizes[0], len(data) + 1):
        storage = MemoryStorage()
        storage.write_atomically(PATH, data[:size])
        count = sum(end <= size for end in sizes[1:])
        assert tuple(found(storage)) == BATCHES[:count], size
        (following,) = commits(RECORDS[:1], BATCHES[count - 1].end_offset if count else 0)
        append(Journal(storage, PATH), following)
        assert tuple(found(storage)) == (*BATCHES[:count], following), size


def test_atomically_written_snapshot_is_never_a_torn_tail() -> None:
    whole = MemoryStorage()
    Journal(whole, PATH).rewrite(map(encode_record, RECORDS[1]), end_offset=9)
    data = whole.read(PATH)
    for size in range(len(data)):
        storage = MemoryStorage()
        storage.write_atomically(PATH, data[:size])
        with pytest.raises(CorruptJournalError):
            found(storage)
        assert storage.read(PATH) == data[:size]


@pytest.mark.parametrize("place", range(12))
def test_corrupt_frame_before_other_batches_is_not_a_torn_tail(place: int) -> None:
    storage = MemoryStorage()
    sizes = written(storage)
    damaged = storage.read(PATH)[sizes[1] + place] ^ 0x40
    storage.overwrite(PATH, sizes[1] + place, bytes([damaged]))
    with pytest.raises(CorruptJournalError, match=rf"{PATH}\b.*\b{sizes[1]}\b"):
        found(storage)


def test_rewritten_journal_holds_the_snapshot_and_later_batches() -> None:
    storage = MemoryStorage()
    journal = Journal(storage, PATH)
    append(journal, BATCHES[0])
    journal.rewrite(map(encode_record, RECORDS[1]), end_offset=9)
    following = commits(RECORDS[2:3], 9)
    append(journal, *following)
    again = Journal(storage, PATH)
    assert again.snapshot == Commit(base_offset=9, records=RECORDS[1])
    assert tuple(again.commits) == following


def test_batch_at_the_wrong_offset_is_refused() -> None:
    storage = MemoryStorage()
    journal = Journal(storage, PATH)
    append(journal, BATCHES[0])
    append(journal, BATCHES[2])
    with pytest.raises(CorruptJournalError, match=r"\b5\b.*\b1\b"):
        found(storage)


@pytest.mark.parametrize("tail", [b"\x00" * 5, b"\x00" * 4096])
def test_zeros_after_a_crash_are_a_torn_tail(tail: bytes) -> None:
    storage = MemoryStorage()
    written(storage)
    storage.open(PATH).append(tail)
    assert tuple(found(storage)) == BATCHES


def test_corruption_before_the_tail_is_reported_with_file_and_position() -> None:
    storage = MemoryStorage()
    sizes = written(storage)
    storage.overwrite(PATH, sizes[1] + 24, b"#")
    with pytest.raises(CorruptJournalError, match=rf"{PATH}\b.*\b{sizes[1]}\b"):
        found(storage)


def test_corruption_of_the_last_batch_is_a_torn_tail() -> None:
    storage = MemoryStorage()
    sizes = written(storage)
    storage.overwrite(PATH, sizes[3] + 24, b"#")
    assert tuple(found(storage)) == BATCHES[:3]


def test_other_file_is_refused() -> None:
    storage = MemoryStorage()
    storage.write_atomically(PATH, b"not a journal")
    with pytest.raises(CorruptJournalError, match=PATH):
        found(storage)


def test_records_of_a_later_version_are_refused() -> None:
    storage = MemoryStorage()
    journal = Journal(storage, PATH)
    journal.rewrite(map(encode_record, RECORDS[0]), end_offset=1)
    later = storage.read(PATH)[len(MAGIC) :].replace(b"RegisterBroker", b"RegisterNobody")
    storage.write_atomically(PATH, MAGIC + resealed(later))
    with pytest.raises(CorruptJournalError, match=PATH):
        found(storage)


def resealed(frame: bytes) -> bytes:
    summary = frame[:4] + crc32c(frame[12:]).to_bytes(4, "big")
    return summary + crc32c(summary).to_bytes(4, "big") + frame[12:]


@pytest.mark.parametrize("operation", ["append", "flush"])
def test_journal_rejects_writes_after_a_failed_write(operation: str) -> None:
    storage = MemoryStorage()
    journal = Journal(storage, PATH)
    append(journal, BATCHES[0])
    storage.fail_on(operation)
    with pytest.raises(StorageError):
        append(journal, BATCHES[1])
    storage.fail_on(None)
    with pytest.raises(StorageError):
        append(journal, BATCHES[2])
    assert BATCHES[2] not in found(storage)


def test_a_registration_of_an_earlier_version_has_one_listener() -> None:
    (record,) = RECORDS[0]
    values = json.loads(encode_record(record))
    del values["listeners"]
    metadata = ClusterMetadata()
    metadata.replace([decode_record(json.dumps(values).encode())], 1)
    assert metadata.brokers[0].listeners == (Endpoint(listener="PLAINTEXT", host="h", port=9),)
