"""A log with the log manager that compacts it, for tests."""

from __future__ import annotations

from broker_ref.log.batch import Compression, Record, decode_records, encode_batch
from broker_ref.log.config import LogConfig
from broker_ref.log.log_manager import LogManager
from broker_ref.log.partition_log import PartitionLog
from tests.broker_ref.log.batches import NOW_MS, compressed
from tests.broker_ref.log.logs import read_all, small
from tests.broker_ref.memory_storage import MemoryStorage

KEY = ("t", 0)
COMPACT = small(
    cleanup_policy=("compact",), segment_bytes=400, index_interval_bytes=120,
    min_cleanable_dirty_ratio=0.0,
)  # fmt: skip
Entry = tuple[bytes, bytes | None]


class Compacted:
    def __init__(
        self,
        config: LogConfig = COMPACT,
        storage: MemoryStorage | None = None,
        **options: int,
    ) -> None:
        self.storage = storage or MemoryStorage()
        self.directory = LogManager(storage=self.storage, **options)
        self.log: PartitionLog = self.directory.open_log("t", 0, config=config, now_ms=NOW_MS)

    def append(
        self,
        *entries: Entry,
        timestamp: int = NOW_MS,
        producer: tuple[int, int, int] = (-1, -1, -1),
        codec: Compression = Compression.NONE,
    ) -> None:
        records = [
            Record(timestamp=timestamp, key=key, value=value, headers=(("h", b"\xff"),))
            for key, value in entries
        ]
        data = encode_batch(
            records,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
        )
        if codec is not Compression.NONE:
            data = compressed(data, codec)
        self.log.append(data, leader_epoch=0, now_ms=timestamp)

    def fill(self, count: int, *, keys: int = 3, start: int = 0) -> None:
        for i in range(start, start + count):
            self.append((b"k%d" % (i % keys), b"v%d" % i))

    def roll(self) -> None:
        while self.log.segments.active.size_bytes:
            self.log._roll(NOW_MS, self.log.log_end_offset)

    def clean(self, now_ms: int = NOW_MS, high_watermark: int | None = None) -> None:
        end = self.log.log_end_offset if high_watermark is None else high_watermark
        while self.directory.clean(now_ms, {KEY: end}):
            pass

    def records(self, offset: int | None = None) -> list[Record]:
        return [
            record
            for data in read_all(self.log)
            for record in decode_records(data)
            if record.offset >= (offset or 0)
        ]

    def entries(self) -> list[tuple[int, Entry]]:
        return [(r.offset, (r.key or b"", r.value)) for r in self.records()]
