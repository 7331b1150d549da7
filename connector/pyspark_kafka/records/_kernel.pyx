# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, auto_pickle=False, autotestdict=False
"""The compiled implementation, which does not create a Python object for each record.

It returns the same rows, batches and errors as `_pure` and `_pure_encode`, and the same checksums
as `_pure_checksums`. The docstring of `_pure` describes the format. Every length is compared with
the number of remaining bytes before it is used, so that no byte outside of the input is read. Does
not depend on the pure implementation, connections or Spark.

Decoding: `step` iterates over batches and records without the GIL, and copies rows into growing
memory blocks. It returns an `Event` for work that requires Python (a compressed or transactional
batch, a full Arrow batch, a failure). The next call continues at the same position.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT64_MAX, int8_t, int16_t, int32_t, int64_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from functools import lru_cache

import pyarrow as pa

from pyspark_kafka.columns import HEADERS_TYPE, PRODUCE_SCHEMA, SOURCE_SCHEMA, repeated
from pyspark_kafka.records.compression import compressor
from pyspark_kafka.records.contract import (
    HEADER_OVERHEAD_BYTES,
    ROWS_MAX,
    Codec,
    DecodeError,
    DecodeResult,
    DecodeFailure,
    to_kafka_error,
)
from pyspark_kafka.records.decompression import decompress
from pyspark_kafka.records.encoding import (
    LENGTH_BYTES_MAX,
    NO_SEQUENCE,
    EncodedBatch,
    next_sequence,
    no_such_partition,
    too_large,
)
from pyspark_kafka.records.read_committed import AbortedProducers, is_abort_marker

__all__ = ["crc_of", "decode", "encode", "row_checksums"]


cdef extern from "crc32c.h" nogil:
    void crc32c_prepare()
    uint32_t crc32c(const uint8_t *data, size_t size)
    uint32_t crc32c_by_tables(const uint8_t *data, size_t size)


cdef extern from "common_records.h" nogil:
    enum:
        COMMON_WORD_BYTES
        COMMON_AHEAD_BYTES
        COMMON_NUMBER_MAX

    ctypedef struct common_column:
        bint selected
        uint8_t *data
        int32_t *offsets
        uint8_t *valid
        int64_t size
        int64_t nulls
        int64_t null_from

    ctypedef struct common_rows:
        const uint8_t *record
        const uint8_t *end_max
        int64_t row
        int64_t row_end
        int32_t delta_min
        int32_t delta_max
        int64_t base_offset
        int64_t base_timestamp
        int64_t delta_unit
        int64_t *offsets
        int64_t *timestamps
        common_column key
        common_column value

    void common_prepare()
    void common_take(common_rows *rows)
    void common_note_nulls(
        uint8_t *valid, int32_t *offsets, int32_t size, int64_t null_from, int64_t row_end
    )
    void common_clear_bits(uint8_t *bits, int64_t row, int64_t row_end)
    void common_copy(uint8_t *to, const uint8_t *field, size_t size, bint ahead)


cdef extern from * nogil:
    bint add_overflows "__builtin_add_overflow"(int64_t, int64_t, int64_t *)


crc32c_prepare()
common_prepare()

include "_kernel_state.pxi"
include "_kernel_parsing.pxi"
include "_kernel_rows.pxi"
include "_kernel_common.pxi"


# Arrow


cdef class _Memory:
    """A filled memory block that Arrow owns and frees."""

    cdef uint8_t *data
    cdef Py_ssize_t size_bytes

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size_bytes, 1, flags)

    def __dealloc__(self):
        free(self.data)


cdef object take_buffer(Block *block, size_t size_bytes):
    """Move the memory of a block to an Arrow buffer.

    The memory is shrunk only if less than half of it is used. The C library reuses freed blocks of
    the same size, but returns the unused part of a shrunk block to the system, and the allocation
    of new pages is slow.
    """
    cdef _Memory memory = _Memory()
    if size_bytes < block.capacity // 2 and grow(block, size_bytes) != OK:
        raise MemoryError
    memset(block.data + size_bytes, 0, PADDING_BYTES)
    memory.data = block.data
    memory.size_bytes = <Py_ssize_t> size_bytes
    memset(block, 0, sizeof(Block))
    return pa.py_buffer(memory)


cdef object take_binary(Binary *column, object type_, int64_t rows):
    if column.null_from == 0 and rows <= ROWS_MAX:
        return _nulls(type_).slice(0, rows)
    note_nulls(column, rows)
    valid = take_buffer(&column.valid, (rows + 7) // 8) if column.nulls else None
    offsets = take_buffer(&column.offsets, (rows + 1) * sizeof(int32_t))
    data = take_buffer(&column.data, column.data.size)
    return pa.Array.from_buffers(type_, rows, [valid, offsets, data], null_count=column.nulls)


# Entry points


def decode(data, request):
    """See `contract.Decode`."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return _Decoding(memoryview(data), request).run(<const uint8_t *> view.buf, view.len)
    except DecodeError as error:
        raise to_kafka_error(error, request) from None
    finally:
        PyBuffer_Release(&view)


def crc_of(data, by_tables=False):
    """Compute the CRC-32C with the processor's CRC instruction, or with tables."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if by_tables:
            return crc32c_by_tables(<const uint8_t *> view.buf, view.len)
        return crc32c(<const uint8_t *> view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef class _Decoding:
    """One call to `decode`, which does the work between the calls to `step`."""

    cdef State state
    cdef const uint8_t *start
    cdef object data
    cdef object request
    cdef object aborted
    cdef object section
    cdef object schema
    cdef list batches

    def __cinit__(self, data, request):
        memset(&self.state, 0, sizeof(State))
        self.data = data.cast("B")
        self.request = request
        self.aborted = None if request.aborted is None else AbortedProducers(request.aborted)
        self.schema = request.schema
        self.batches = []
        columns = request.columns
        self.state.key.selected = "key" in columns
        self.state.value.selected = "value" in columns
        self.state.offset_selected = "offset" in columns
        self.state.timestamp_selected = "timestamp" in columns
        self.state.timestamp_type_selected = "timestampType" in columns
        self.state.headers_selected = "headers" in columns
        self.state.filters = self.aborted is not None
        self.state.start_offset = request.start_offset
        self.state.end_offset = request.end_offset
        self.state.next_offset = request.start_offset
        self.state.bytes_max = request.bytes_max
        self.state.rows_max = request.rows_max
        self.state.batches_max = request.batches_max

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
            elif event == NEEDS_PYTHON:
                self.handle_batch()
            else:
                self.fail(event)
        if self.state.row_count:
            self.flush()
        return DecodeResult(batches=self.batches, next_offset=self.state.next_offset)

    cdef int fail(self, int event) except -1:
        cdef int index
        if event == MEMORY:
            raise MemoryError
        details = [self.state.details[index] for index in range(self.state.failure_details)]
        if self.state.failure == TIMESTAMP:
            details = [sum(details)]
        raise DecodeError(DecodeFailure(self.state.failure), self.state.failure_offset, *details)

    cdef int handle_batch(self) except -1:
        """Enter or skip a compressed batch, a transactional batch or a control batch."""
        cdef BatchHeader *batch = &self.state.batch
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
        """Enter the records of the batch, after decompression if the batch is compressed."""
        cdef BatchHeader *batch = &self.state.batch
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
            bytes_max=self.request.decompressed_bytes_max,
        )
        plain = <const uint8_t *> <const char *> (<bytes> self.section)
        enter_records(&self.state, plain, plain + len(self.section))
        return 0

    cdef int flush(self) except -1:
        """Convert the current rows to an Arrow batch."""
        arrays = [self.column(name) for name in self.request.columns]
        self.batches.append(pa.RecordBatch.from_arrays(arrays, schema=self.schema))
        release_rows(&self.state)
        self.state.full_batches += 1
        return 0

    cdef object column(self, name):
        cdef State *state = &self.state
        cdef int64_t rows = state.row_count
        type_ = SOURCE_SCHEMA.field(name).type
        if name == "key":
            return take_binary(&state.key, type_, rows)
        if name == "value":
            return take_binary(&state.value, type_, rows)
        if name == "topic":
            return _same_for_all(self.request.topic).slice(0, rows)
        if name == "partition":
            return _same_for_all(self.request.partition).slice(0, rows)
        if name == "offset":
            return fixed(type_, rows, take_buffer(&state.offset, rows * sizeof(int64_t)))
        if name == "timestamp":
            return fixed(type_, rows, take_buffer(&state.timestamp, rows * sizeof(int64_t)))
        if name == "timestampType":
            if not state.timestamp_type_mixed:
                return _same_for_all(state.timestamp_type_of_all).slice(0, rows)
            return fixed(type_, rows, take_buffer(&state.timestamp_type, rows * sizeof(int32_t)))
        return self.headers()

    cdef object headers(self):
        cdef State *state = &self.state
        cdef int64_t rows = state.row_count
        pair = HEADERS_TYPE.value_type
        keys = take_binary(&state.header_keys, pair.field("key").type, state.header_count)
        values = take_binary(&state.header_values, pair.field("value").type, state.header_count)
        pairs = pa.StructArray.from_buffers(
            pair, state.header_count, [None], null_count=0, children=[keys, values]
        )
        valid = None
        if state.header_lists_nulls:
            valid = take_buffer(&state.header_lists_valid, (rows + 7) // 8)
        offsets = take_buffer(&state.header_lists, (rows + 1) * sizeof(int32_t))
        return pa.Array.from_buffers(
            HEADERS_TYPE,
            rows,
            [valid, offsets],
            null_count=state.header_lists_nulls,
            children=[pairs],
        )


@lru_cache(maxsize=8)
def _same_for_all(value):
    """Return a column of maximum length that repeats one value. Batches use slices of it."""
    return repeated(value, ROWS_MAX)


@lru_cache(maxsize=2)
def _nulls(type_):
    return pa.nulls(ROWS_MAX, type_)


cdef object fixed(object type_, int64_t rows, object data):
    return pa.Array.from_buffers(type_, rows, [None, data], null_count=0)


include "_kernel_encode_memory.pxi"
include "_kernel_encode.pxi"
include "_kernel_checksums.pxi"
