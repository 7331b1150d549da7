# Copying fields to columns, which are growing memory blocks. `_kernel.pyx` includes this file.
# A row is appended completely or not at all. If memory cannot be allocated, decoding fails.

cdef inline int append(State *state, Record *record, int64_t offset) noexcept nogil:
    """Append the record as a row; return `FULL` if it belongs to the next Arrow batch."""
    cdef bint log_append_time = (state.batch.attributes & LOG_APPEND_TIME_BIT) != 0
    cdef int64_t base = state.batch.max_timestamp if log_append_time else state.batch.base_timestamp
    cdef int64_t delta = 0 if log_append_time else record.timestamp_delta
    cdef int64_t payload_bytes = 0
    cdef int64_t row = state.row_count
    if state.timestamp_selected and not is_timestamp(base, delta):
        fail(state, TIMESTAMP, 2, base, delta)
        state.failure_offset = offset
        return FAILED
    if (
        state.headers_selected
        and record.header_count > 0
        and not header_keys_are_utf8(state, record)
    ):
        fail(state, HEADER_KEY, 0)
        state.failure_offset = offset
        return FAILED
    if state.key.selected:
        payload_bytes += max(record.key_bytes, 0)
    if state.value.selected:
        payload_bytes += max(record.value_bytes, 0)
    if state.headers_selected:
        payload_bytes += record.headers_bytes
    if row == state.rows_max or (row and state.payload_bytes + payload_bytes > state.bytes_max):
        return FULL
    if row == state.row_capacity and grow_rows(state) != OK:
        return MEMORY
    if state.key.selected:
        if put(&state.key, row, record.key, record.key_bytes, state.section_end) != OK:
            return MEMORY
    if state.value.selected:
        if put(&state.value, row, record.value, record.value_bytes, state.section_end) != OK:
            return MEMORY
    if state.offset_selected:
        (<int64_t *> state.offset.data)[row] = offset
    if state.timestamp_selected:
        (<int64_t *> state.timestamp.data)[row] = (base + delta) * 1000
    if state.timestamp_type_selected:
        put_timestamp_type(state, row, row + 1, log_append_time)
    if state.headers_selected:
        if record.header_count == 0:
            clear_bit(&state.header_lists_valid, row)
            state.header_lists_nulls += 1
        elif put_headers(state, record) != OK:
            return MEMORY
        (<int32_t *> state.header_lists.data)[row + 1] = <int32_t> state.header_count
    state.row_count += 1
    state.payload_bytes += payload_bytes
    return OK


cdef inline bint is_timestamp(int64_t base, int64_t delta) noexcept nogil:
    """Return whether the sum of two values in milliseconds fits into an int64 in microseconds."""
    cdef int64_t total
    return not add_overflows(base, delta, &total) and (
        -TIMESTAMP_MS_MAX <= total <= TIMESTAMP_MS_MAX
    )


cdef void put_timestamp_type(
    State *state, int64_t row, int64_t row_end, int32_t type_
) noexcept nogil:
    """Set the timestamp type of the rows from `row` up to `row_end` (exclusive).

    The block is used only if the rows have different types.
    """
    cdef int32_t *types = <int32_t *> state.timestamp_type.data
    cdef int64_t index
    if not state.timestamp_type_mixed:
        if row == 0:
            state.timestamp_type_of_all = type_
        if state.timestamp_type_of_all == type_:
            return
        for index in range(row):
            types[index] = state.timestamp_type_of_all
        state.timestamp_type_mixed = True
    for index in range(row, row_end):
        types[index] = type_


cdef inline int put(
    Binary *column, int64_t row, const uint8_t *field, int32_t field_bytes, const uint8_t *end
) noexcept nogil:
    """Append a field as row `row`, or null if `field_bytes` is -1.

    The offsets and the validity bitmap must have memory for the row.
    """
    cdef Block *data = &column.data
    if field_bytes < 0:
        if column.null_from < 0:
            column.null_from = row
        return OK
    note_nulls(column, row)
    if data.capacity - data.size < <size_t> field_bytes:
        if grow(data, max(data.capacity * 2, data.size + field_bytes)) != OK:
            return MEMORY
    common_copy(data.data + data.size, field, field_bytes, end - field >= COMMON_WORD_BYTES)
    data.size += field_bytes
    (<int32_t *> column.offsets.data)[row + 1] = <int32_t> data.size
    return OK


cdef inline void note_nulls(Binary *column, int64_t row_end) noexcept nogil:
    """Write the nulls from `null_from` up to `row_end` (exclusive), if there are any."""
    if column.null_from >= 0:
        column.nulls += row_end - column.null_from
        common_note_nulls(
            column.valid.data,
            <int32_t *> column.offsets.data,
            <int32_t> column.data.size,
            column.null_from,
            row_end,
        )
        column.null_from = -1


cdef int put_headers(State *state, Record *record) noexcept nogil:
    cdef const uint8_t *at = record.headers
    cdef const uint8_t *field = NULL
    cdef int32_t field_bytes = 0
    cdef int32_t index
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
    return OK


# Memory


cdef inline void clear_bit(Block *bits, int64_t row) noexcept nogil:
    bits.data[row >> 3] &= ~(<uint8_t> (1 << (row & 7)))


cdef int grow(Block *block, size_t capacity) noexcept nogil:
    """Grow the block to `capacity` bytes and keep its content."""
    cdef uint8_t *data = <uint8_t *> realloc(block.data, capacity + PADDING_BYTES)
    if data == NULL:
        return MEMORY
    block.data = data
    block.capacity = capacity
    return OK


cdef int grow_bits(Block *block, int64_t rows) noexcept nogil:
    """Grow a validity bitmap. The new rows are valid."""
    cdef size_t before = block.capacity
    if grow(block, (rows + 7) // 8) != OK:
        return MEMORY
    memset(block.data + before, 0xFF, block.capacity - before)
    return OK


cdef int grow_binary(Binary *column, int64_t rows, size_t bytes_at_first) noexcept nogil:
    if grow(&column.offsets, (rows + 1) * sizeof(int32_t)) != OK:
        return MEMORY
    (<int32_t *> column.offsets.data)[0] = 0
    if column.data.data == NULL:
        column.null_from = -1
        if grow(&column.data, bytes_at_first) != OK:
            return MEMORY
    return grow_bits(&column.valid, rows)


cdef int grow_rows(State *state) noexcept nogil:
    """Double the capacity for rows, up to the limit of an Arrow batch.

    The initial capacity is estimated from the number of records per byte in the current batch.
    """
    cdef int64_t left = min(<int64_t> (state.end - state.position), state.bytes_max)
    cdef int64_t rows = max(state.row_capacity * 2, ROWS_AT_FIRST)
    cdef double alike = 1.05 * state.batch.record_count * left / state.batch.size_bytes
    if alike > rows and state.row_capacity == 0:
        rows = <int64_t> min(alike, <double> state.rows_max)
    rows = min(rows, state.rows_max)
    if state.key.selected and grow_binary(&state.key, rows, BLOCK_BYTES_AT_FIRST) != OK:
        return MEMORY
    if state.value.selected:
        if grow_binary(&state.value, rows, max(left, <int64_t> BLOCK_BYTES_AT_FIRST)) != OK:
            return MEMORY
    if state.offset_selected and grow(&state.offset, rows * sizeof(int64_t)) != OK:
        return MEMORY
    if state.timestamp_selected and grow(&state.timestamp, rows * sizeof(int64_t)) != OK:
        return MEMORY
    if state.timestamp_type_selected and grow(&state.timestamp_type, rows * sizeof(int32_t)) != OK:
        return MEMORY
    if state.headers_selected:
        if grow(&state.header_lists, (rows + 1) * sizeof(int32_t)) != OK:
            return MEMORY
        (<int32_t *> state.header_lists.data)[0] = 0
        if grow_bits(&state.header_lists_valid, rows) != OK or grow_headers(state, 0) != OK:
            return MEMORY
    state.row_capacity = rows
    return OK


cdef int grow_headers(State *state, int32_t more) noexcept nogil:
    """Grow the header columns so that `more` headers fit."""
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
    column.null_from = -1


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
    state.timestamp_type_mixed = False
    state.header_lists_nulls = 0
    state.header_count = 0
    state.header_capacity = 0
    state.row_count = 0
    state.row_capacity = 0
    state.payload_bytes = 0
