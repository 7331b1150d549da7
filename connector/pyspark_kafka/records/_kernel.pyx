# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""The compiled twin: record batches to Arrow without a Python object per record.

Purpose: the same rows, the same batches of them and the same errors as `_pure`, at the speed of
memory; the layouts stand there. Invariant: nothing outside the given bytes is read, whatever they
say; a length is compared with what is left before it is used. What it must not know: the pure
twin, connections, Spark.

How it goes: `step` runs without the GIL through batches and their records and copies rows into
growing blocks of memory. It comes back, as an `Event`, for what needs Python (a batch that is
compressed or belongs to a transaction, rows to be made an Arrow batch, a fault) and goes on where
it was.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

import pyarrow as pa

from pyspark_kafka.columns import HEADERS_TYPE, SOURCE_SCHEMA
from pyspark_kafka.records.compression import Codec, decompress
from pyspark_kafka.records.contract import (
    HEADER_OVERHEAD_BYTES,
    BatchFault,
    Decoded,
    Fault,
    as_error,
)
from pyspark_kafka.records.transactions import AbortedProducers, is_abort_marker


cdef extern from "crc32c.h" nogil:
    void crc32c_prepare()
    uint32_t crc32c(const uint8_t *data, size_t size)
    uint32_t crc32c_by_tables(const uint8_t *data, size_t size)


cdef extern from * nogil:
    bint add_overflows "__builtin_add_overflow"(int64_t, int64_t, int64_t *)


crc32c_prepare()

cdef enum:
    UP_TO_MAGIC_BYTES = 17
    LENGTH_END = 12
    HEADER_BYTES = 61
    ATTRIBUTES = 21
    CODEC_MASK = 0x07
    LOG_APPEND_TIME_BIT = 0x08
    TRANSACTIONAL_BIT = 0x10
    CONTROL_BIT = 0x20
    CODEC_MAX = 4
    DETAILS_MAX = 4
    # Blocks have so much behind their end: copies go by whole words, and Arrow likes it.
    PADDING_BYTES = 64
    WORD_BYTES = 32
    ROWS_AT_FIRST = 1024
    BLOCK_BYTES_AT_FIRST = 64 * 1024

# Why `step` comes back, and what functions under it return.
cdef enum Event:
    OK = 0
    DONE
    FULL
    LOOK
    FAULT
    MEMORY

# What reading a number can find.
cdef enum:
    CUT = 1
    TOO_LONG = 2

cdef int64_t TIMESTAMP_MS_MAX = INT64_MAX // 1000
cdef int64_t OVERHEAD = HEADER_OVERHEAD_BYTES

cdef int LEGACY = Fault.LEGACY
cdef int MAGIC = Fault.MAGIC
cdef int LENGTH = Fault.LENGTH
cdef int BACKWARD = Fault.BACKWARD
cdef int CRC = Fault.CRC
cdef int OFFSETS = Fault.OFFSETS
cdef int COUNT = Fault.COUNT
cdef int CODEC = Fault.CODEC
cdef int RECORDS_CUT = Fault.RECORDS_CUT
cdef int RECORD_LENGTH = Fault.RECORD_LENGTH
cdef int RECORD_CUT = Fault.RECORD_CUT
cdef int RECORD_REST = Fault.RECORD_REST
cdef int NUMBER = Fault.NUMBER
cdef int OFFSET = Fault.OFFSET
cdef int FIELD_LENGTH = Fault.FIELD_LENGTH
cdef int HEADER_COUNT = Fault.HEADER_COUNT
cdef int TRAILING = Fault.TRAILING
cdef int TIMESTAMP = Fault.TIMESTAMP
cdef int HEADER_KEY = Fault.HEADER_KEY


cdef struct Block:
    # Memory that grows; `size` bytes of it are in use.
    uint8_t *data
    size_t size
    size_t capacity

cdef struct Binary:
    # A column of bytes: offsets and validity have an entry for each row.
    bint wanted
    Block offsets
    Block valid
    Block data
    int64_t nulls

cdef struct Batch:
    int64_t base_offset
    int64_t last_offset
    int64_t size_bytes
    int attributes
    int32_t last_offset_delta
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t producer_id
    int32_t record_count

cdef struct Record:
    int64_t timestamp_delta
    int32_t offset_delta
    int32_t key_bytes
    int32_t value_bytes
    int32_t header_count
    const uint8_t *key
    const uint8_t *value
    const uint8_t *headers
    int64_t headers_bytes
    const uint8_t *end

cdef struct State:
    # What is read, and how far it is.
    const uint8_t *data
    const uint8_t *end
    const uint8_t *position
    int64_t start_offset
    int64_t end_offset
    int64_t next_offset
    int64_t offset_min
    bint filters
    Batch batch
    # The records of `batch`, while `in_records`.
    bint in_records
    const uint8_t *record
    const uint8_t *section_end
    int32_t index
    int64_t delta_min
    # The rows of the next Arrow batch.
    int64_t row_count
    int64_t row_capacity
    int64_t rows_max
    int64_t payload_bytes
    int64_t bytes_max
    Binary key
    Binary value
    bint offset_wanted
    Block offset
    bint timestamp_wanted
    Block timestamp
    bint timestamp_type_wanted
    Block timestamp_type
    # Headers: a list for each row of the pairs in `header_keys` and `header_values`.
    bint headers_wanted
    Block header_lists
    Block header_lists_valid
    int64_t header_lists_nulls
    int64_t header_count
    int64_t header_capacity
    Binary header_keys
    Binary header_values
    # What was found wrong.
    int fault
    int64_t fault_offset
    int fault_details
    int64_t details[DETAILS_MAX]


# Numbers


cdef inline uint32_t big32(const uint8_t *at) noexcept nogil:
    return (<uint32_t> at[0] << 24) | (<uint32_t> at[1] << 16) | (<uint32_t> at[2] << 8) | at[3]


cdef inline int64_t big64(const uint8_t *at) noexcept nogil:
    return <int64_t> ((<uint64_t> big32(at) << 32) | big32(at + 4))


cdef inline int varint32(const uint8_t **at, const uint8_t *end, int32_t *number) noexcept nogil:
    cdef uint32_t unsigned
    cdef int shift
    cdef uint8_t byte
    if at[0] == end:
        return CUT
    unsigned = at[0][0]
    at[0] += 1
    if unsigned > 0x7F:
        unsigned &= 0x7F
        shift = 7
        while True:
            if at[0] == end:
                return CUT
            byte = at[0][0]
            at[0] += 1
            if shift == 28 and byte > 0x0F:
                return TOO_LONG
            unsigned |= <uint32_t> (byte & 0x7F) << shift
            if byte <= 0x7F:
                break
            shift += 7
    number[0] = <int32_t> ((unsigned >> 1) ^ (0 - (unsigned & 1)))
    return 0


cdef inline int varint64(const uint8_t **at, const uint8_t *end, int64_t *number) noexcept nogil:
    cdef uint64_t unsigned
    cdef int shift
    cdef uint8_t byte
    if at[0] == end:
        return CUT
    unsigned = at[0][0]
    at[0] += 1
    if unsigned > 0x7F:
        unsigned &= 0x7F
        shift = 7
        while True:
            if at[0] == end:
                return CUT
            byte = at[0][0]
            at[0] += 1
            if shift == 63 and byte > 0x01:
                return TOO_LONG
            unsigned |= <uint64_t> (byte & 0x7F) << shift
            if byte <= 0x7F:
                break
            shift += 7
    number[0] = <int64_t> ((unsigned >> 1) ^ (0 - (unsigned & 1)))
    return 0


cdef bint is_utf8(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Strictly: the shortest form, no surrogates, nothing above U+10FFFF (RFC 3629)."""
    cdef uint8_t first, low, high
    cdef int more
    while at < end:
        first = at[0]
        at += 1
        if first < 0x80:
            continue
        low = 0x80
        high = 0xBF
        if 0xC2 <= first <= 0xDF:
            more = 1
        elif 0xE0 <= first <= 0xEF:
            more = 2
            if first == 0xE0:
                low = 0xA0
            elif first == 0xED:
                high = 0x9F
        elif 0xF0 <= first <= 0xF4:
            more = 3
            if first == 0xF0:
                low = 0x90
            elif first == 0xF4:
                high = 0x8F
        else:
            return False
        while more > 0:
            if at == end or at[0] < low or at[0] > high:
                return False
            at += 1
            more -= 1
            low = 0x80
            high = 0xBF
    return True


# Faults


cdef int fail(
    State *state, int fault, int count, int64_t first=0, int64_t second=0, int64_t third=0
) noexcept nogil:
    """A fault of the batch, with as many details."""
    state.fault = fault
    state.fault_offset = state.batch.base_offset
    state.fault_details = count
    state.details[0] = first
    state.details[1] = second
    state.details[2] = third
    return FAULT


cdef int fail_record(
    State *state, int fault, int count, int64_t first=0, int64_t second=0, int64_t third=0
) noexcept nogil:
    """A fault of the record at `index`, which is its first detail."""
    fail(state, fault, count + 1, state.index, first, second)
    state.details[3] = third
    return FAULT


cdef int fail_number(State *state, int found) noexcept nogil:
    return fail_record(state, RECORD_CUT if found == CUT else NUMBER, 0)


# Batches


cdef int step(State *state) noexcept nogil:
    """Go on until the range is done or Python is needed."""
    cdef int event
    cdef Batch *batch = &state.batch
    while True:
        if state.in_records:
            event = read_records(state)
            if event != OK:
                return event
            leave_batch(state)
        event = read_header(state)
        if event != OK:
            return event
        if state.filters and batch.attributes & (CONTROL_BIT | TRANSACTIONAL_BIT):
            return LOOK
        if batch.attributes & CONTROL_BIT or batch.last_offset < state.start_offset:
            leave_batch(state)
        elif batch.attributes & CODEC_MASK:
            return LOOK
        else:
            enter_records(state, state.position + HEADER_BYTES, state.position + batch.size_bytes)


cdef void enter_records(State *state, const uint8_t *start, const uint8_t *end) noexcept nogil:
    state.record = start
    state.section_end = end
    state.index = 0
    state.delta_min = 0
    state.in_records = True


cdef void leave_batch(State *state) noexcept nogil:
    state.in_records = False
    state.position += state.batch.size_bytes
    state.offset_min = state.batch.last_offset + 1
    state.next_offset = min(max(state.next_offset, state.offset_min), state.end_offset)


cdef int read_header(State *state) noexcept nogil:
    """Read and check the header and the CRC of the batch at `position`."""
    cdef const uint8_t *at = state.position
    cdef Batch *batch = &state.batch
    cdef int8_t magic
    cdef int32_t length
    cdef uint32_t found
    if state.next_offset >= state.end_offset or state.end - at < UP_TO_MAGIC_BYTES:
        return DONE
    batch.base_offset = big64(at)
    if batch.base_offset >= state.end_offset:
        state.next_offset = state.end_offset
        return DONE
    length = <int32_t> big32(at + 8)
    magic = <int8_t> at[16]
    if magic == 0 or magic == 1:
        return fail(state, LEGACY, 1, magic)
    if magic != 2:
        return fail(state, MAGIC, 1, magic)
    if length < HEADER_BYTES - LENGTH_END:
        return fail(state, LENGTH, 1, length)
    batch.size_bytes = <int64_t> length + LENGTH_END
    if batch.size_bytes > state.end - at:
        return DONE
    if batch.base_offset < state.offset_min:
        return fail(state, BACKWARD, 1, state.offset_min)
    found = crc32c(at + ATTRIBUTES, batch.size_bytes - ATTRIBUTES)
    if found != big32(at + 17):
        return fail(state, CRC, 2, big32(at + 17), found)
    batch.attributes = <int16_t> ((at[21] << 8) | at[22])
    batch.last_offset_delta = <int32_t> big32(at + 23)
    batch.base_timestamp = big64(at + 27)
    batch.max_timestamp = big64(at + 35)
    batch.producer_id = big64(at + 43)
    batch.record_count = <int32_t> big32(at + 57)
    if batch.last_offset_delta < 0 or batch.base_offset >= INT64_MAX - batch.last_offset_delta:
        return fail(state, OFFSETS, 1, batch.last_offset_delta)
    batch.last_offset = batch.base_offset + batch.last_offset_delta
    if batch.record_count < 0 or batch.record_count > <int64_t> batch.last_offset_delta + 1:
        return fail(state, COUNT, 2, batch.record_count, <int64_t> batch.last_offset_delta + 1)
    if (batch.attributes & CODEC_MASK) > CODEC_MAX:
        return fail(state, CODEC, 1, batch.attributes & CODEC_MASK)
    return OK


# Records


cdef int read_records(State *state) noexcept nogil:
    """The records from `index` on; `FULL` comes before a record, which then is read again."""
    cdef Record record
    cdef int event
    cdef int64_t offset
    while state.index < state.batch.record_count:
        event = read_record(state, &record)
        if event != OK:
            return event
        offset = state.batch.base_offset + record.offset_delta
        if state.start_offset <= offset < state.end_offset:
            event = append(state, &record, offset)
            if event != OK:
                return event
        state.record = record.end
        state.index += 1
        state.delta_min = <int64_t> record.offset_delta + 1
    if state.record < state.section_end:
        return fail(state, TRAILING, 1, state.section_end - state.record)
    return OK


cdef int read_record(State *state, Record *record) noexcept nogil:
    """Where the fields of the record at `state.record` are; all of them are checked."""
    cdef const uint8_t *at = state.record
    cdef const uint8_t *end = state.section_end
    cdef int32_t length = 0
    cdef int found = varint32(&at, end, &length)
    if found == CUT:
        return fail_record(state, RECORDS_CUT, 1, state.batch.record_count)
    if found != 0:
        return fail_number(state, found)
    if length < 0 or length > end - at:
        return fail_record(state, RECORD_LENGTH, 2, length, end - at)
    end = at + length
    record.end = end
    if at == end:
        return fail_number(state, CUT)
    at += 1  # attributes, of which none is in use
    found = varint64(&at, end, &record.timestamp_delta)
    if found == 0:
        found = varint32(&at, end, &record.offset_delta)
    if found != 0:
        return fail_number(state, found)
    if (
        record.offset_delta < state.delta_min
        or record.offset_delta > state.batch.last_offset_delta
    ):
        return fail_record(
            state, OFFSET, 3, record.offset_delta, state.delta_min, state.batch.last_offset_delta
        )
    if read_field(state, &at, end, &record.key, &record.key_bytes, -1) != OK:
        return FAULT
    if read_field(state, &at, end, &record.value, &record.value_bytes, -1) != OK:
        return FAULT
    found = varint32(&at, end, &record.header_count)
    if found != 0:
        return fail_number(state, found)
    if record.header_count < 0 or record.header_count > (end - at) // 2:
        return fail_record(state, HEADER_COUNT, 2, record.header_count, end - at)
    record.headers = at
    record.headers_bytes = 0
    if record.header_count > 0 and read_headers(state, record, &at) != OK:
        return FAULT
    if at < end:
        return fail_record(state, RECORD_REST, 1, end - at)
    return OK


cdef inline int read_field(
    State *state,
    const uint8_t **at,
    const uint8_t *end,
    const uint8_t **field,
    int32_t *field_bytes,
    int32_t bytes_min,
) noexcept nogil:
    """A length of at least `bytes_min`, -1 for null, and so many bytes."""
    cdef int found = varint32(at, end, field_bytes)
    if found != 0:
        return fail_number(state, found)
    if field_bytes[0] < bytes_min or field_bytes[0] > end - at[0]:
        return fail_record(state, FIELD_LENGTH, 2, field_bytes[0], end - at[0])
    field[0] = at[0]
    if field_bytes[0] > 0:
        at[0] += field_bytes[0]
    return OK


cdef int read_headers(State *state, Record *record, const uint8_t **at) noexcept nogil:
    """Check the headers, and add up what they count."""
    cdef const uint8_t *field
    cdef int32_t key_bytes = 0, value_bytes = 0
    cdef int32_t index
    for index in range(record.header_count):
        if read_field(state, at, record.end, &field, &key_bytes, 0) != OK:
            return FAULT
        if read_field(state, at, record.end, &field, &value_bytes, -1) != OK:
            return FAULT
        record.headers_bytes += OVERHEAD + key_bytes + max(value_bytes, 0)
    return OK


cdef bint header_keys_are_utf8(State *state, Record *record) noexcept nogil:
    cdef const uint8_t *at = record.headers
    cdef const uint8_t *field = NULL
    cdef int32_t field_bytes = 0
    cdef int32_t index
    for index in range(record.header_count):
        read_field(state, &at, record.end, &field, &field_bytes, 0)
        if not is_utf8(field, field + field_bytes):
            return False
        read_field(state, &at, record.end, &field, &field_bytes, -1)
    return True


# Rows


cdef int append(State *state, Record *record, int64_t offset) noexcept nogil:
    """The record as a row; `FULL` if it belongs into the next Arrow batch."""
    cdef bint log_append_time = (state.batch.attributes & LOG_APPEND_TIME_BIT) != 0
    cdef int64_t base = state.batch.max_timestamp if log_append_time else state.batch.base_timestamp
    cdef int64_t delta = 0 if log_append_time else record.timestamp_delta
    cdef int64_t payload_bytes = 0
    cdef int64_t row = state.row_count
    if state.timestamp_wanted and not is_timestamp(base, delta):
        fail(state, TIMESTAMP, 2, base, delta)
        state.fault_offset = offset
        return FAULT
    if state.headers_wanted and not header_keys_are_utf8(state, record):
        fail(state, HEADER_KEY, 0)
        state.fault_offset = offset
        return FAULT
    if state.key.wanted:
        payload_bytes += max(record.key_bytes, 0)
    if state.value.wanted:
        payload_bytes += max(record.value_bytes, 0)
    if state.headers_wanted:
        payload_bytes += record.headers_bytes
    if row == state.rows_max or (row and state.payload_bytes + payload_bytes > state.bytes_max):
        return FULL
    if row == state.row_capacity and grow_rows(state) != OK:
        return MEMORY
    if state.key.wanted:
        if put(&state.key, row, record.key, record.key_bytes, state.section_end) != OK:
            return MEMORY
    if state.value.wanted:
        if put(&state.value, row, record.value, record.value_bytes, state.section_end) != OK:
            return MEMORY
    if state.offset_wanted:
        (<int64_t *> state.offset.data)[row] = offset
    if state.timestamp_wanted:
        (<int64_t *> state.timestamp.data)[row] = (base + delta) * 1000
    if state.timestamp_type_wanted:
        (<int32_t *> state.timestamp_type.data)[row] = log_append_time
    if state.headers_wanted and put_headers(state, row, record) != OK:
        return MEMORY
    state.row_count += 1
    state.payload_bytes += payload_bytes
    return OK


cdef inline bint is_timestamp(int64_t base, int64_t delta) noexcept nogil:
    """Whether their sum is milliseconds that as microseconds are an int64."""
    cdef int64_t total
    return not add_overflows(base, delta, &total) and (
        -TIMESTAMP_MS_MAX <= total <= TIMESTAMP_MS_MAX
    )


cdef inline int put(
    Binary *column, int64_t row, const uint8_t *field, int32_t field_bytes, const uint8_t *end
) noexcept nogil:
    """Bytes, or null for -1, as row `row`, for which there is room in offsets and validity."""
    cdef Block *data = &column.data
    cdef uint8_t *target
    cdef int32_t copied = 0
    if field_bytes < 0:
        clear_bit(&column.valid, row)
        column.nulls += 1
        field_bytes = 0
    elif data.capacity - data.size < <size_t> field_bytes:
        if grow(data, max(data.capacity * 2, data.size + field_bytes)) != OK:
            return MEMORY
    target = data.data + data.size
    if end - field >= field_bytes + WORD_BYTES and field_bytes <= 512:
        # Whole words, beyond the field: the source has them, the block its padding.
        while copied < field_bytes:
            memcpy(target + copied, field + copied, WORD_BYTES)
            copied += WORD_BYTES
    elif field_bytes > 0:
        memcpy(target, field, field_bytes)
    data.size += field_bytes
    (<int32_t *> column.offsets.data)[row + 1] = <int32_t> data.size
    return OK


cdef int put_headers(State *state, int64_t row, Record *record) noexcept nogil:
    cdef const uint8_t *at = record.headers
    cdef const uint8_t *field = NULL
    cdef int32_t field_bytes = 0
    cdef int32_t index
    if record.header_count == 0:
        clear_bit(&state.header_lists_valid, row)
        state.header_lists_nulls += 1
    if state.header_capacity - state.header_count < record.header_count:
        if grow_headers(state, record.header_count) != OK:
            return MEMORY
    for index in range(record.header_count):
        read_field(state, &at, record.end, &field, &field_bytes, 0)
        if put(&state.header_keys, state.header_count, field, field_bytes, record.end) != OK:
            return MEMORY
        read_field(state, &at, record.end, &field, &field_bytes, -1)
        if put(&state.header_values, state.header_count, field, field_bytes, record.end) != OK:
            return MEMORY
        state.header_count += 1
    (<int32_t *> state.header_lists.data)[row + 1] = <int32_t> state.header_count
    return OK


# Memory


cdef inline void clear_bit(Block *bits, int64_t row) noexcept nogil:
    bits.data[row >> 3] &= ~(<uint8_t> (1 << (row & 7)))


cdef int grow(Block *block, size_t capacity) noexcept nogil:
    """Room for `capacity` bytes; what is in it stays."""
    cdef uint8_t *data = <uint8_t *> realloc(block.data, capacity + PADDING_BYTES)
    if data == NULL:
        return MEMORY
    block.data = data
    block.capacity = capacity
    return OK


cdef int grow_bits(Block *block, int64_t rows) noexcept nogil:
    """Validity of so many rows; the new ones are valid."""
    cdef size_t before = block.capacity
    if grow(block, (rows + 7) // 8) != OK:
        return MEMORY
    memset(block.data + before, 0xFF, block.capacity - before)
    return OK


cdef int grow_binary(Binary *column, int64_t rows, size_t bytes_at_first) noexcept nogil:
    if grow(&column.offsets, (rows + 1) * sizeof(int32_t)) != OK:
        return MEMORY
    (<int32_t *> column.offsets.data)[0] = 0
    if column.data.data == NULL and grow(&column.data, bytes_at_first) != OK:
        return MEMORY
    return grow_bits(&column.valid, rows)


cdef int grow_rows(State *state) noexcept nogil:
    """Room for twice as many rows, as far as a batch may have them."""
    cdef int64_t rows = min(max(state.row_capacity * 2, ROWS_AT_FIRST), state.rows_max)
    cdef size_t left = min(state.end - state.position, state.bytes_max)
    if state.key.wanted and grow_binary(&state.key, rows, BLOCK_BYTES_AT_FIRST) != OK:
        return MEMORY
    if state.value.wanted:
        if grow_binary(&state.value, rows, max(left, BLOCK_BYTES_AT_FIRST)) != OK:
            return MEMORY
    if state.offset_wanted and grow(&state.offset, rows * sizeof(int64_t)) != OK:
        return MEMORY
    if state.timestamp_wanted and grow(&state.timestamp, rows * sizeof(int64_t)) != OK:
        return MEMORY
    if state.timestamp_type_wanted and grow(&state.timestamp_type, rows * sizeof(int32_t)) != OK:
        return MEMORY
    if state.headers_wanted:
        if grow(&state.header_lists, (rows + 1) * sizeof(int32_t)) != OK:
            return MEMORY
        (<int32_t *> state.header_lists.data)[0] = 0
        if grow_bits(&state.header_lists_valid, rows) != OK or grow_headers(state, 0) != OK:
            return MEMORY
    state.row_capacity = rows
    return OK


cdef int grow_headers(State *state, int32_t more) noexcept nogil:
    """Room for `more` headers than there are."""
    cdef int64_t headers = max(state.header_count + more, ROWS_AT_FIRST)
    if more:
        headers = max(headers, state.header_capacity * 2)
    if headers <= state.header_capacity:
        return OK
    if grow_binary(&state.header_keys, headers, BLOCK_BYTES_AT_FIRST) != OK:
        return MEMORY
    if grow_binary(&state.header_values, headers, BLOCK_BYTES_AT_FIRST) != OK:
        return MEMORY
    state.header_capacity = headers
    return OK


cdef void release(Block *block) noexcept nogil:
    free(block.data)
    memset(block, 0, sizeof(Block))


cdef void release_binary(Binary *column) noexcept nogil:
    release(&column.offsets)
    release(&column.valid)
    release(&column.data)
    column.nulls = 0


cdef void release_rows(State *state) noexcept nogil:
    release_binary(&state.key)
    release_binary(&state.value)
    release_binary(&state.header_keys)
    release_binary(&state.header_values)
    release(&state.offset)
    release(&state.timestamp)
    release(&state.timestamp_type)
    release(&state.header_lists)
    release(&state.header_lists_valid)
    state.header_lists_nulls = 0
    state.header_count = 0
    state.header_capacity = 0
    state.row_count = 0
    state.row_capacity = 0
    state.payload_bytes = 0


cdef class Memory:
    """A block that was filled, for Arrow to hold and in the end to free."""

    cdef uint8_t *data
    cdef Py_ssize_t size_bytes

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size_bytes, 1, flags)

    def __dealloc__(self):
        free(self.data)


cdef object taken(Block *block, size_t size_bytes):
    """The block as an Arrow buffer, without what it has too much; the block is empty again."""
    cdef Memory memory = Memory()
    cdef uint8_t *data = <uint8_t *> realloc(block.data, size_bytes + PADDING_BYTES)
    if data == NULL:
        raise MemoryError
    memset(data + size_bytes, 0, PADDING_BYTES)
    memory.data = data
    memory.size_bytes = <Py_ssize_t> size_bytes
    memset(block, 0, sizeof(Block))
    return pa.py_buffer(memory)


cdef object taken_binary(Binary *column, object type_, int64_t rows):
    valid = taken(&column.valid, (rows + 7) // 8) if column.nulls else None
    offsets = taken(&column.offsets, (rows + 1) * sizeof(int32_t))
    data = taken(&column.data, column.data.size)
    return pa.Array.from_buffers(type_, rows, [valid, offsets, data], null_count=column.nulls)


# The way in


def decode(data, wanted):
    """As `contract.Decode` says."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return Decoding(memoryview(data), wanted).run(<const uint8_t *> view.buf, view.len)
    except BatchFault as fault:
        raise as_error(fault, wanted) from None
    finally:
        PyBuffer_Release(&view)


def crc_of(data, by_tables=False):
    """CRC-32C by the processor or by tables, to be tested against each other."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if by_tables:
            return crc32c_by_tables(<const uint8_t *> view.buf, view.len)
        return crc32c(<const uint8_t *> view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef class Decoding:
    """One call of `decode`: what goes on between one `step` and the next."""

    cdef State state
    cdef const uint8_t *start
    cdef object data
    cdef object wanted
    cdef object aborted
    cdef object section
    cdef object schema
    cdef list batches

    def __cinit__(self, data, wanted):
        memset(&self.state, 0, sizeof(State))
        self.data = data.cast("B")
        self.wanted = wanted
        self.aborted = None if wanted.aborted is None else AbortedProducers(wanted.aborted)
        self.schema = wanted.schema
        self.batches = []
        columns = wanted.columns
        self.state.key.wanted = "key" in columns
        self.state.value.wanted = "value" in columns
        self.state.offset_wanted = "offset" in columns
        self.state.timestamp_wanted = "timestamp" in columns
        self.state.timestamp_type_wanted = "timestampType" in columns
        self.state.headers_wanted = "headers" in columns
        self.state.filters = self.aborted is not None
        self.state.start_offset = wanted.start_offset
        self.state.end_offset = wanted.end_offset
        self.state.next_offset = wanted.start_offset
        self.state.bytes_max = wanted.bytes_max
        self.state.rows_max = wanted.rows_max

    def __dealloc__(self):
        release_rows(&self.state)

    cdef object run(self, const uint8_t *data, Py_ssize_t size_bytes):
        cdef int event
        self.start = data
        self.state.data = data
        self.state.end = data + size_bytes
        self.state.position = data
        while True:
            with nogil:
                event = step(&self.state)
            if event == DONE:
                break
            if event == FULL:
                self.flush()
            elif event == LOOK:
                self.look()
            else:
                self.fail(event)
        if self.state.row_count:
            self.flush()
        return Decoded(batches=self.batches, next_offset=self.state.next_offset)

    cdef int fail(self, int event) except -1:
        cdef int index
        if event == MEMORY:
            raise MemoryError
        details = [self.state.details[index] for index in range(self.state.fault_details)]
        if self.state.fault == TIMESTAMP:
            details = [sum(details)]
        raise BatchFault(Fault(self.state.fault), self.state.fault_offset, *details)

    cdef int look(self) except -1:
        """Enter or leave a batch that is compressed, transactional or control."""
        cdef Batch *batch = &self.state.batch
        if self.aborted is not None:
            self.aborted.admit(batch.last_offset)
        if batch.attributes & CONTROL_BIT:
            if self.aborted is not None and batch.record_count > 0 and self.is_abort_marker():
                self.aborted.end(batch.producer_id)
            leave_batch(&self.state)
        elif batch.last_offset < self.state.start_offset:
            leave_batch(&self.state)
        elif (
            self.aborted is not None
            and batch.attributes & TRANSACTIONAL_BIT
            and batch.producer_id in self.aborted
        ):
            leave_batch(&self.state)
        else:
            self.open_section()
        return 0

    cdef bint is_abort_marker(self) except -1:
        cdef Record record
        cdef int event
        self.open_section()
        event = read_record(&self.state, &record)
        if event != OK:
            self.fail(event)
        key = None if record.key_bytes < 0 else (<const char *> record.key)[: record.key_bytes]
        return is_abort_marker(key, base_offset=self.state.batch.base_offset)

    cdef int open_section(self) except -1:
        """Go to the records of the batch, decompressed where they are not plain."""
        cdef Batch *batch = &self.state.batch
        cdef Py_buffer view
        cdef Py_ssize_t first = self.state.position - self.start + HEADER_BYTES
        cdef Py_ssize_t last = first - HEADER_BYTES + batch.size_bytes
        cdef const uint8_t *plain
        if not batch.attributes & CODEC_MASK or (first == last and batch.record_count == 0):
            enter_records(&self.state, self.start + first, self.start + last)
            return 0
        self.section = decompress(
            Codec(batch.attributes & CODEC_MASK),
            self.data[first:last],
            base_offset=batch.base_offset,
            bytes_max=self.wanted.decompressed_bytes_max,
        )
        plain = <const uint8_t *> <const char *> (<bytes> self.section)
        enter_records(&self.state, plain, plain + len(self.section))
        return 0

    cdef int flush(self) except -1:
        """The rows so far as an Arrow batch."""
        arrays = [self.column(name) for name in self.wanted.columns]
        self.batches.append(pa.RecordBatch.from_arrays(arrays, schema=self.schema))
        release_rows(&self.state)
        return 0

    cdef object column(self, name):
        cdef State *state = &self.state
        cdef int64_t rows = state.row_count
        type_ = SOURCE_SCHEMA.field(name).type
        if name == "key":
            return taken_binary(&state.key, type_, rows)
        if name == "value":
            return taken_binary(&state.value, type_, rows)
        if name == "topic":
            return pa.repeat(pa.scalar(self.wanted.topic, type_), rows)
        if name == "partition":
            return pa.repeat(pa.scalar(self.wanted.partition, type_), rows)
        if name == "offset":
            return fixed(type_, rows, taken(&state.offset, rows * sizeof(int64_t)))
        if name == "timestamp":
            return fixed(type_, rows, taken(&state.timestamp, rows * sizeof(int64_t)))
        if name == "timestampType":
            return fixed(type_, rows, taken(&state.timestamp_type, rows * sizeof(int32_t)))
        return self.headers()

    cdef object headers(self):
        cdef State *state = &self.state
        cdef int64_t rows = state.row_count
        pair = HEADERS_TYPE.value_type
        keys = taken_binary(&state.header_keys, pair.field("key").type, state.header_count)
        values = taken_binary(&state.header_values, pair.field("value").type, state.header_count)
        pairs = pa.StructArray.from_buffers(
            pair, state.header_count, [None], null_count=0, children=[keys, values]
        )
        valid = None
        if state.header_lists_nulls:
            valid = taken(&state.header_lists_valid, (rows + 7) // 8)
        offsets = taken(&state.header_lists, (rows + 1) * sizeof(int32_t))
        return pa.Array.from_buffers(
            HEADERS_TYPE,
            rows,
            [valid, offsets],
            null_count=state.header_lists_nulls,
            children=[pairs],
        )


cdef object fixed(object type_, int64_t rows, object data):
    return pa.Array.from_buffers(type_, rows, [None, data], null_count=0)
