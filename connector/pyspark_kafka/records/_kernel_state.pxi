# The state of the kernel: constants of the format, structs, and failures as C integers.
# `_kernel.pyx` includes this file.

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
    # The number of bytes after each block, because copies use whole words. Arrow recommends 64.
    PADDING_BYTES = 64
    ROWS_AT_FIRST = 1024
    BLOCK_BYTES_AT_FIRST = 64 * 1024

# The results of `step` and of the functions that it calls.
cdef enum Event:
    OK = 0
    DONE
    FULL
    NEEDS_PYTHON
    FAILED
    MEMORY

# The errors that can occur while reading a number.
cdef enum:
    CUT = 1
    TOO_LONG = 2

cdef int64_t TIMESTAMP_MS_MAX = INT64_MAX // 1000
cdef int64_t OVERHEAD = HEADER_OVERHEAD_BYTES

cdef int LEGACY = DecodeFailure.LEGACY
cdef int MAGIC = DecodeFailure.MAGIC
cdef int LENGTH = DecodeFailure.LENGTH
cdef int BACKWARD = DecodeFailure.BACKWARD
cdef int CRC = DecodeFailure.CRC
cdef int OFFSETS = DecodeFailure.OFFSETS
cdef int COUNT = DecodeFailure.COUNT
cdef int CODEC = DecodeFailure.CODEC
cdef int RECORDS_CUT = DecodeFailure.RECORDS_CUT
cdef int RECORD_LENGTH = DecodeFailure.RECORD_LENGTH
cdef int RECORD_CUT = DecodeFailure.RECORD_CUT
cdef int RECORD_TRAILING = DecodeFailure.RECORD_TRAILING
cdef int NUMBER = DecodeFailure.NUMBER
cdef int OFFSET = DecodeFailure.OFFSET
cdef int FIELD_LENGTH = DecodeFailure.FIELD_LENGTH
cdef int HEADER_COUNT = DecodeFailure.HEADER_COUNT
cdef int TRAILING = DecodeFailure.TRAILING
cdef int TIMESTAMP = DecodeFailure.TIMESTAMP
cdef int HEADER_KEY = DecodeFailure.HEADER_KEY


cdef struct Block:
    # A growing memory block, in which `size` bytes are used.
    uint8_t *data
    size_t size
    size_t capacity

cdef struct Binary:
    # A binary column. Offsets and validity have an entry for each row. If `null_from` is not
    # negative, all rows from `null_from` on are null and not yet in offsets and validity.
    bint selected
    Block offsets
    Block valid
    Block data
    int64_t nulls
    int64_t null_from

cdef struct BatchHeader:
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
    # The input, the current position in it, and the requested offsets.
    const uint8_t *data
    const uint8_t *end
    const uint8_t *position
    int64_t start_offset
    int64_t end_offset
    int64_t next_offset
    int64_t offset_min
    bint filters
    BatchHeader batch
    # The records of `batch`, if `in_records` is true.
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
    int64_t full_batches
    int64_t batches_max
    Binary key
    Binary value
    bint offset_selected
    Block offset
    bint timestamp_selected
    Block timestamp
    bint timestamp_type_selected
    # The block is used only if the rows have both types (`timestamp_type_mixed`).
    Block timestamp_type
    int32_t timestamp_type_of_all
    bint timestamp_type_mixed
    # The headers: each row has a list of pairs in `header_keys` and `header_values`.
    bint headers_selected
    Block header_lists
    Block header_lists_valid
    int64_t header_lists_nulls
    int64_t header_count
    int64_t header_capacity
    Binary header_keys
    Binary header_values
    # The failure and its details.
    int failure
    int64_t failure_offset
    int failure_details
    int64_t details[DETAILS_MAX]
