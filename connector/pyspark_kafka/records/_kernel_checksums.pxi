# The sum of the hashes of rows (`checksums.RowChecksums`). `_kernel.pyx` includes this file.
# `_pure_checksums` is the readable version, and `row_hash.h` contains the inner loop.

cdef extern from "row_hash.h" nogil:
    const uint64_t[8] row_hash_words
    uint64_t row_hash_fold(uint64_t one, uint64_t other)
    uint64_t row_hash_null(uint64_t hash)
    uint64_t row_hash_field(
        uint64_t hash, const uint8_t *data, size_t size, const uint8_t *end
    )

cdef enum:
    HAS_PARTITION = 1
    HAS_TIMESTAMP = 2

cdef struct Hashed:
    int64_t row_count
    # The topic of each row, or the dictionary of topics if `topic_indices` is present.
    Column topic
    Column topic_indices
    Column partition
    Column timestamp
    Column key
    Column value
    Column headers
    Column header_keys
    Column header_values
    # The hash of each topic in the dictionary.
    const uint64_t *topic_hashes


cdef inline uint64_t with_field(
    uint64_t hash, const Column *column, int64_t row
) noexcept nogil:
    cdef const uint8_t *field = NULL
    cdef int64_t size = field_at(column, row, &field)
    if size < 0:
        return row_hash_null(hash)
    return row_hash_field(hash, field, <size_t> size, column.end)


cdef inline uint64_t with_headers(
    uint64_t hash, const Hashed *rows, int64_t row
) noexcept nogil:
    """Hash the headers and their count. Null and an empty list have the same hash."""
    cdef int64_t start = 0
    cdef int64_t count = 0
    cdef int64_t index
    if not is_null(&rows.headers, row):
        start = offset_at(&rows.headers, row)
        count = offset_at(&rows.headers, row + 1) - start
    for index in range(start, start + count):
        hash = with_field(hash, &rows.header_keys, index)
        hash = with_field(hash, &rows.header_values, index)
    return row_hash_fold(hash ^ row_hash_words[6], <uint64_t> count ^ row_hash_words[7])


cdef inline uint64_t topic_hash(const Hashed *rows, int64_t row) noexcept nogil:
    if rows.topic_hashes == NULL:
        return with_field(0, &rows.topic, row)
    if is_null(&rows.topic_indices, row):
        return row_hash_null(0)
    return rows.topic_hashes[
        (<const int32_t *> rows.topic_indices.data)[rows.topic_indices.first + row]
    ]


cdef uint64_t sum_of_hashes(const Hashed *rows) noexcept nogil:
    cdef uint64_t sum = 0
    cdef uint64_t hash, timestamp, place
    cdef int64_t row
    for row in range(rows.row_count):
        place = timestamp = 0
        if not is_null(&rows.partition, row):
            place = <uint32_t> (<const int32_t *> rows.partition.data)[rows.partition.first + row]
            place |= <uint64_t> HAS_PARTITION << 32
        if not is_null(&rows.timestamp, row):
            timestamp = <uint64_t> (<const int64_t *> rows.timestamp.data)[
                rows.timestamp.first + row
            ]
            place |= <uint64_t> HAS_TIMESTAMP << 32
        hash = topic_hash(rows, row) ^ row_hash_words[4]
        hash = row_hash_fold(hash ^ place, timestamp ^ row_hash_words[5])
        hash = with_field(hash, &rows.key, row)
        hash = with_field(hash, &rows.value, row)
        sum += with_headers(hash, rows, row)
    return sum


def row_checksums(batch):
    """See `checksums.RowChecksums`."""
    return _Checksums(batch).sum()


cdef class _Checksums:
    """One call to `row_checksums`. `rows` points into the memory of the arrays."""

    cdef Hashed rows
    cdef object batch
    cdef object topic_indices
    cdef uint64_t *topic_hashes

    def __cinit__(self, batch):
        memset(&self.rows, 0, sizeof(Hashed))
        self.topic_hashes = NULL
        self.batch = batch

    def __dealloc__(self):
        free(self.topic_hashes)

    cdef object sum(self):
        cdef Hashed *rows = &self.rows
        cdef uint64_t found
        self.point_to_columns()
        with nogil:
            found = sum_of_hashes(rows)
        return found

    cdef int point_to_columns(self) except -1:
        cdef Hashed *rows = &self.rows
        batch = self.batch
        names = batch.schema.names
        rows.row_count = batch.num_rows
        if "topic" in names:
            self.point_to_topics(batch.column("topic"))
        if "partition" in names:
            point_to_numbers(&rows.partition, batch.column("partition"), (pa.int32(),))
        if "timestamp" in names:
            point_to_numbers(&rows.timestamp, batch.column("timestamp"), _TIMESTAMP_TYPES)
        if "key" in names:
            point_to_binary(&rows.key, batch.column("key"))
        if "value" in names:
            point_to_binary(&rows.value, batch.column("value"))
        if "headers" in names:
            headers = batch.column("headers")
            assert pa.types.is_list(headers.type), headers.type
            point_to_lists(&rows.headers, headers)
            pairs = headers.values
            point_to_binary(&rows.header_keys, pairs.field("key"))
            point_to_binary(&rows.header_values, pairs.field("value"))
        return 0

    cdef int point_to_topics(self, topics) except -1:
        """Point to the `topic` column. The topics of a dictionary are hashed only once."""
        cdef int64_t count, index
        if not pa.types.is_dictionary(topics.type):
            point_to_binary(&self.rows.topic, topics)
            return 0
        names = topics.dictionary
        point_to_binary(&self.rows.topic, names)
        self.topic_indices = topics.indices.cast(pa.int32())
        point_to_numbers(&self.rows.topic_indices, self.topic_indices, (pa.int32(),))
        count = len(names)
        self.topic_hashes = <uint64_t *> realloc(NULL, (count + 1) * sizeof(uint64_t))
        if self.topic_hashes == NULL:
            raise MemoryError
        for index in range(count):
            self.topic_hashes[index] = with_field(0, &self.rows.topic, index)
        self.rows.topic_hashes = self.topic_hashes
        return 0
