# Parsing and validation of numbers, batches and records. `_kernel.pyx` includes this file; `_pure`
# is the readable version. No byte at or after an `end` pointer is read.

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
    """Return whether the bytes are valid UTF-8 according to RFC 3629.

    Overlong forms, surrogates and code points above U+10FFFF are invalid.
    """
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


# Failures


cdef int fail(
    State *state, int failure, int count, int64_t first=0, int64_t second=0, int64_t third=0
) noexcept nogil:
    """Store a failure of the batch, with `count` details."""
    state.failure = failure
    state.failure_offset = state.batch.base_offset
    state.failure_details = count
    state.details[0] = first
    state.details[1] = second
    state.details[2] = third
    return FAILED


cdef int fail_record(
    State *state, int failure, int count, int64_t first=0, int64_t second=0, int64_t third=0
) noexcept nogil:
    """Store a failure of the record at `index`, which is the first detail."""
    fail(state, failure, count + 1, state.index, first, second)
    state.details[3] = third
    return FAILED


cdef int fail_number(State *state, int found) noexcept nogil:
    return fail_record(state, RECORD_CUT if found == CUT else NUMBER, 0)


# Batches


cdef int step(State *state) noexcept nogil:
    """Decode up to the end of the range, or until an event requires Python."""
    cdef int event
    cdef BatchHeader *batch = &state.batch
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
            return NEEDS_PYTHON
        if batch.attributes & CONTROL_BIT or batch.last_offset < state.start_offset:
            leave_batch(state)
        elif batch.attributes & CODEC_MASK:
            return NEEDS_PYTHON
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
    cdef BatchHeader *batch = &state.batch
    cdef int8_t magic
    cdef int32_t length
    cdef uint32_t found
    if state.next_offset >= state.end_offset or state.end - at < UP_TO_MAGIC_BYTES:
        return DONE
    if state.full_batches >= state.batches_max:
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
    """Read the records from `index` on. After `FULL`, the next call rereads the record."""
    cdef Record record
    cdef bint common = is_common(state)
    cdef int event
    while state.index < state.batch.record_count:
        if common:
            event = take_common_records(state)
            if event != OK:
                return event
            if state.index == state.batch.record_count:
                break
        event = read_record(state, &record)
        if event == OK:
            event = take_record(state, &record)
        if event != OK:
            return event
    if state.record < state.section_end:
        return fail(state, TRAILING, 1, state.section_end - state.record)
    return OK


cdef inline int take_record(State *state, Record *record) noexcept nogil:
    """Append the record as a row if it is in the range, and advance."""
    cdef int64_t offset = state.batch.base_offset + record.offset_delta
    cdef int event
    if state.start_offset <= offset < state.end_offset:
        event = append(state, record, offset)
        if event != OK:
            return event
    state.record = record.end
    state.index += 1
    state.delta_min = <int64_t> record.offset_delta + 1
    return OK


cdef int read_record(State *state, Record *record) noexcept nogil:
    """Locate and check all fields of the record at `state.record`."""
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
    at += 1  # attributes, which Kafka does not use
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
        return FAILED
    if read_field(state, &at, end, &record.value, &record.value_bytes, -1) != OK:
        return FAILED
    found = varint32(&at, end, &record.header_count)
    if found != 0:
        return fail_number(state, found)
    if record.header_count < 0 or record.header_count > (end - at) // 2:
        return fail_record(state, HEADER_COUNT, 2, record.header_count, end - at)
    record.headers = at
    record.headers_bytes = 0
    if record.header_count > 0 and read_headers(state, record, &at) != OK:
        return FAILED
    if at < end:
        return fail_record(state, RECORD_TRAILING, 1, end - at)
    return OK


cdef inline int read_field(
    State *state,
    const uint8_t **at,
    const uint8_t *end,
    const uint8_t **field,
    int32_t *field_bytes,
    int32_t bytes_min,
) noexcept nogil:
    """Read a length of at least `bytes_min` (-1 means null) and a field of this length."""
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
    """Validate the headers and compute their total size."""
    cdef const uint8_t *field
    cdef int32_t key_bytes = 0, value_bytes = 0
    cdef int32_t index
    for index in range(record.header_count):
        if read_field(state, at, record.end, &field, &key_bytes, 0) != OK:
            return FAILED
        if read_field(state, at, record.end, &field, &value_bytes, -1) != OK:
            return FAILED
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
