"""Tests of damaged files.

Damage above the recovery point is truncated. Damage below it is rejected. Damaged bytes are never
served.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from broker_ref.log.batch import unpack_header
from broker_ref.log.config import LogConfig
from broker_ref.log.errors import CorruptLogError, LogError
from broker_ref.log.partition_log import PartitionLog
from broker_ref.log.storage import StorageError
from tests.broker_ref.log.batches import NOW_MS, batch
from tests.broker_ref.log.logs import DIRECTORY, open_log, read_all, small
from tests.broker_ref.memory_storage import MemoryStorage

BATCHES = 40


def path(base_offset: int, suffix: str = ".log") -> str:
    return f"{DIRECTORY}/{base_offset:020d}{suffix}"


def written(storage: MemoryStorage) -> tuple[PartitionLog, list[bytes]]:
    """Return a log of forty batches of two records in several segments, and the batches."""
    log = open_log(storage)
    for i in range(BATCHES):
        log.append(
            batch(2, timestamp=NOW_MS + i, producer=(5, 0, 2 * i)),
            leader_epoch=i // 15,
            now_ms=NOW_MS,
        )
    assert len(log.segment_base_offsets) >= 4
    return log, read_all(log)


def dump(storage: MemoryStorage) -> dict[str, bytes]:
    return {name: storage.read(f"{DIRECTORY}/{name}") for name in storage.list(DIRECTORY)}


def test_a_clean_stop_and_start_changes_nothing() -> None:
    storage = MemoryStorage()
    log, batches = written(storage)
    log.close()
    before = dump(storage)
    again = open_log(storage)
    assert read_all(again) == batches
    assert again.recovery_point == again.log_end_offset == 2 * BATCHES
    again.close()
    assert dump(storage) == before


def test_recovered_records_are_not_read_before_they_are_flushed() -> None:
    storage, config = MemoryStorage(), LogConfig(flush_messages=1)
    log = open_log(storage, config=config)
    log.append(batch(1), leader_epoch=0, now_ms=NOW_MS)
    storage.fail_on("flush")
    with pytest.raises(LogError):
        log.append(batch(1), leader_epoch=0, now_ms=NOW_MS)
    with pytest.raises(StorageError):
        open_log(storage, config=config, clean=False, recovery_point=1)
    storage.fail_on(None)
    recovered = open_log(storage, config=config, clean=False, recovery_point=1)
    assert recovered.recovery_point == recovered.log_end_offset == 2
    storage.lose_power(Random(0))
    assert open_log(storage, config=config, clean=False, recovery_point=2).log_end_offset == 2


def test_recovered_indexes_survive_a_power_loss_after_the_next_flush() -> None:
    storage = MemoryStorage()
    written(storage)
    log = open_log(storage, clean=False)
    before = dump(storage)
    log.flush()
    for seed in range(5):
        assert dump(storage.crash(Random(seed))) == before


def test_recovery_rebuilds_the_indexes_byte_by_byte() -> None:
    storage = MemoryStorage()
    log, batches = written(storage)
    log.close()
    before = dump(storage)
    recovered = open_log(storage, clean=False)
    assert read_all(recovered) == batches
    recovered.close()
    assert dump(storage) == before


@given(st.integers(0, 2**32), st.booleans())
def test_a_torn_tail_is_truncated_at_the_first_bad_batch(seed: int, garbage: bool) -> None:
    storage = MemoryStorage()
    log, batches = written(storage)
    active = log.segment_base_offsets[-1]
    random = Random(seed)
    written_bytes = storage.read(path(active))
    cut = random.randint(1, len(written_bytes) - 1)
    if garbage:
        noise = random.randbytes(len(written_bytes) - cut)
        if noise[0] == written_bytes[cut]:
            noise = bytes([noise[0] ^ 1]) + noise[1:]
        storage.overwrite(path(active), cut, noise)
    else:
        storage.cut(path(active), cut)
    recovered = open_log(storage, clean=False)
    left = read_all(recovered)
    assert left == batches[: len(left)]
    assert active <= recovered.log_end_offset < 2 * BATCHES
    # All complete batches are kept.
    kept_bytes = sum(len(b) for b in left if unpack_header(b).base_offset >= active)
    lost = batches[len(left)]
    assert kept_bytes <= cut < kept_bytes + len(lost)
    result = recovered.append(batch(), leader_epoch=9, now_ms=NOW_MS)
    assert result.base_offset == recovered.log_end_offset - 1 == unpack_header(lost).base_offset
    recovered.close()
    assert len(read_all(open_log(storage))) == len(left) + 1


def test_damage_above_the_recovery_point_truncates_the_rest() -> None:
    storage = MemoryStorage()
    log, batches = written(storage)
    bases = log.segment_base_offsets
    storage.overwrite(path(bases[1]), 100, b"\xff")
    recovered = open_log(storage, clean=False, recovery_point=bases[1])
    assert recovered.segment_base_offsets == bases[:2]
    left = read_all(recovered)
    assert left == batches[: len(left)]
    assert bases[1] <= recovered.log_end_offset < bases[2]
    assert not storage.exists(path(bases[2]))
    assert not storage.exists(path(bases[2], ".snapshot"))
    assert recovered.leader_epochs.latest == unpack_header(left[-1]).partition_leader_epoch


@pytest.mark.parametrize("segment", [0, 1, -1])
def test_damage_below_the_recovery_point_is_rejected(segment: int) -> None:
    storage = MemoryStorage()
    log, batches = written(storage)
    log.close()
    base = log.segment_base_offsets[segment]
    storage.overwrite(path(base), 100, b"\xff\xff")
    before = dump(storage)
    served: list[bytes] = []
    with pytest.raises(CorruptLogError) as error:
        _serve_into(served, storage, clean=False)
    assert served == batches[: len(served)]
    assert error.value.path == path(base)
    assert error.value.position <= 100
    assert path(base) in str(error.value)
    assert error.value.error_code is ErrorCode.corrupt_message
    assert {n: d for n, d in dump(storage).items() if n.endswith(".log")} == {
        n: d for n, d in before.items() if n.endswith(".log")
    }


@given(st.data())
def test_a_flipped_bit_anywhere_in_a_cleanly_stopped_log_is_never_served(
    data: st.DataObject,
) -> None:
    storage = MemoryStorage()
    log, batches = written(storage)
    log.close()
    base = data.draw(st.sampled_from(log.segment_base_offsets))
    content = storage.read(path(base))
    position = data.draw(st.integers(0, len(content) - 1))
    # As in Kafka, the CRC does not cover a batch's leader epoch.
    start = max(p for p in _positions(content) if p <= position)
    if 12 <= position - start < 16:
        return
    flipped = content[position] ^ (1 << data.draw(st.integers(0, 7)))
    storage.overwrite(path(base), position, bytes([flipped]))
    served: list[bytes] = []
    with pytest.raises(CorruptLogError, match=path(base)):
        _serve_into(served, storage)
    assert served == batches[: len(served)]


def _positions(content: bytes) -> list[int]:
    positions = [0]
    while positions[-1] < len(content):
        positions.append(positions[-1] + unpack_header(content, positions[-1]).size_bytes)
    return positions[:-1]


def _serve_into(served: list[bytes], storage: MemoryStorage, *, clean: bool = True) -> None:
    log = open_log(storage, clean=clean, recovery_point=2 * BATCHES)
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, end_offset=10**9, max_bytes=0, at_least_one_batch=True)
        assert data
        served.append(data)
        offset = unpack_header(data).next_offset


def test_a_missing_segment_in_the_middle_is_rejected() -> None:
    storage = MemoryStorage()
    log, _ = written(storage)
    log.close()
    bases = log.segment_base_offsets
    storage.remove(path(bases[1]))
    with pytest.raises(CorruptLogError, match=path(bases[1])):
        open_log(storage)


def test_a_missing_flushed_tail_is_rejected() -> None:
    storage = MemoryStorage()
    log, batches = written(storage)
    log.close()
    active = log.segment_base_offsets[-1]
    storage.cut(path(active), len(storage.read(path(active))) - len(batches[-1]))
    with pytest.raises(CorruptLogError, match=rf"\b{2 * BATCHES}\b"):
        open_log(storage, clean=False, recovery_point=2 * BATCHES)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "torn", "garbage"])
@pytest.mark.parametrize("segment", [0, 2, -1])
def test_a_damaged_index_is_rebuilt(suffix: str, damage: str, segment: int) -> None:
    storage = MemoryStorage()
    log, batches = written(storage)
    log.close()
    name = path(log.segment_base_offsets[segment], suffix)
    good = storage.read(name)
    assert good
    if damage == "missing":
        storage.remove(name)
    elif damage == "torn":
        storage.cut(name, len(good) - 3)
    else:
        entry = 8 if suffix == ".index" else 12
        storage.overwrite(name, len(good) - entry, b"\xff" * entry)
    again = open_log(storage)
    assert storage.read(name) == good
    assert read_all(again) == batches
    found = again.offset_of_max_timestamp(end_offset=2 * BATCHES)
    assert found is not None
    assert found.offset == 2 * BATCHES - 1


def test_an_index_with_invalid_positions_is_rebuilt_when_used() -> None:
    storage = MemoryStorage()
    log, batches = written(storage)
    log.close()
    name = path(0, ".index")
    good = storage.read(name)
    assert len(good) >= 24
    storage.overwrite(name, 4, b"\x00\x00\x00\x33")
    again = open_log(storage)
    assert read_all(again, max_bytes=0) == batches
    assert storage.read(name) == good


def test_left_over_files_are_removed() -> None:
    storage = MemoryStorage()
    log, _ = written(storage)
    log.close()
    for name in ("00000000000000000500.index", "00000000000000000500.timeindex",
                 "00000000000000000000.log.deleted", "00000000000000009999.snapshot"):  # fmt: skip
        storage.write_atomically(f"{DIRECTORY}/{name}", b"x" * 24)
    before = open_log(storage).segment_base_offsets
    assert before == log.segment_base_offsets
    assert not any("500" in n or "9999" in n or "deleted" in n for n in storage.list(DIRECTORY))


def test_a_log_start_offset_above_the_end_starts_an_empty_log_there() -> None:
    storage = MemoryStorage()
    log, _ = written(storage)
    log.close()
    again = open_log(storage, clean=False, log_start_offset=500)
    assert (again.log_start_offset, again.log_end_offset, again.size_bytes) == (500, 500, 0)
    assert again.append(batch(), leader_epoch=5, now_ms=NOW_MS).base_offset == 500


def test_a_checkpointed_log_start_offset_is_kept() -> None:
    storage = MemoryStorage()
    log, _ = written(storage)
    log.close()
    again = open_log(storage, log_start_offset=7)
    assert again.log_start_offset == 7
    assert again.leader_epochs.entries[0] == (0, 7)


def test_leader_epochs_are_recovered_from_the_batches() -> None:
    storage = MemoryStorage()
    log, _ = written(storage)
    storage.remove(f"{DIRECTORY}/leader-epoch-checkpoint")
    assert open_log(storage, clean=False).leader_epochs.entries == log.leader_epochs.entries


@pytest.mark.parametrize("damaged", [False, True])
def test_producers_are_recovered_from_a_snapshot_or_the_batches(damaged: bool) -> None:
    storage = MemoryStorage()
    log, _ = written(storage)
    log.close()
    if damaged:
        for name in storage.list(DIRECTORY):
            if name.endswith(".snapshot"):
                storage.overwrite(f"{DIRECTORY}/{name}", 10, b"\xff")
    again = open_log(storage)
    (entry,) = again.producer_entries
    assert (entry.producer_id, entry.last_sequence) == (5, 2 * BATCHES - 1)
    assert len(entry.batches) == (5 if damaged else 1)
    repeated = again.append(
        batch(2, producer=(5, 0, 2 * BATCHES - 2)), leader_epoch=2, now_ms=NOW_MS
    )
    assert (repeated.is_duplicate, repeated.base_offset) == (True, 2 * BATCHES - 2)


def test_expired_producers_are_not_recovered() -> None:
    storage = MemoryStorage()
    log, _ = written(storage)
    log.close()
    later_ms = NOW_MS + 2 * 86_400_000
    longer = small(producer_id_expiration_ms=3 * 86_400_000)
    log = open_log(storage, config=longer, now_ms=later_ms)
    log.producers.expire(later_ms)
    assert any(log.producer_entries)
    log.update_config(small())
    log.producers.expire(later_ms)
    assert not any(log.producer_entries)
    assert open_log(storage, now_ms=later_ms).producer_entries == ()


def test_an_emptied_log_survives_a_crash_with_its_offsets() -> None:
    storage = MemoryStorage()
    log, _ = written(storage)
    log.config = small(retention_ms=0)
    log.apply_retention(NOW_MS + 10_000)
    for seed in range(20):
        after = open_log(storage.crash(Random(seed)), clean=False)
        assert (after.log_start_offset, after.log_end_offset) == (2 * BATCHES, 2 * BATCHES)
