# The calls to the fast path in `common_records.h`. They determine which batches the fast path can
# handle and how many rows have enough memory. `read_record` and `append` handle all other records.
# `_kernel.pyx` includes this file.

cdef inline bint is_common(const State *state) noexcept nogil:
    """Return whether all offsets are in the range, and short timestamp deltas cannot overflow."""
    cdef const BatchHeader *batch = &state.batch
    cdef int64_t room = TIMESTAMP_MS_MAX - COMMON_NUMBER_MAX
    return (
        batch.base_offset >= state.start_offset
        and batch.last_offset < state.end_offset
        and -room <= batch.base_timestamp <= room
        and -room <= batch.max_timestamp <= room
    )


cdef int take_common_records(State *state) noexcept nogil:
    """Append the next records as rows while they are common and there is enough memory."""
    cdef common_rows rows
    cdef bint log_append_time = (state.batch.attributes & LOG_APPEND_TIME_BIT) != 0
    if state.row_count == state.row_capacity and state.row_count < state.rows_max:
        if grow_rows(state) != OK:
            return MEMORY
    rows.record = state.record
    rows.end_max = last_end(state)
    if state.delta_min > state.batch.last_offset_delta or rows.record > rows.end_max:
        return OK
    rows.row = state.row_count
    rows.row_end = state.row_count + min(
        state.row_capacity - state.row_count, <int64_t> state.batch.record_count - state.index
    )
    rows.delta_min = <int32_t> state.delta_min
    rows.delta_max = state.batch.last_offset_delta
    rows.base_offset = state.batch.base_offset
    rows.base_timestamp = 1000 * (
        state.batch.max_timestamp if log_append_time else state.batch.base_timestamp
    )
    rows.delta_unit = 0 if log_append_time else 1000
    rows.offsets = <int64_t *> state.offset.data
    rows.timestamps = <int64_t *> state.timestamp.data
    open_column(&rows.key, &state.key)
    open_column(&rows.value, &state.value)
    common_take(&rows)
    close_column(&rows.key, &state.key, state)
    close_column(&rows.value, &state.value, state)
    if state.timestamp_type_selected:
        put_timestamp_type(state, state.row_count, rows.row, log_append_time)
    if state.headers_selected:
        put_no_headers(state, rows.row)
    state.record = rows.record
    state.index += <int32_t> (rows.row - state.row_count)
    state.delta_min = rows.delta_min
    state.row_count = rows.row
    return OK


cdef inline const uint8_t *last_end(const State *state) noexcept nogil:
    """Return the latest position at which the last record may end.

    The fields of a record are smaller than the record. Therefore the fields of all records before
    this position fit into the blocks and into the Arrow batch, and need no further checks.
    """
    cdef int64_t left = state.section_end - state.record - COMMON_AHEAD_BYTES
    left = min(left, state.bytes_max - state.payload_bytes)
    if state.key.selected:
        left = min(left, <int64_t> (state.key.data.capacity - state.key.data.size))
    if state.value.selected:
        left = min(left, <int64_t> (state.value.data.capacity - state.value.data.size))
    return state.record + left


cdef inline void open_column(common_column *column, const Binary *binary) noexcept nogil:
    column.selected = binary.selected
    column.data = binary.data.data
    column.offsets = <int32_t *> binary.offsets.data
    column.valid = binary.valid.data
    column.size = binary.data.size
    column.nulls = binary.nulls
    column.null_from = binary.null_from


cdef inline void close_column(
    const common_column *column, Binary *binary, State *state
) noexcept nogil:
    if binary.selected:
        state.payload_bytes += column.size - <int64_t> binary.data.size
        binary.data.size = column.size
        binary.nulls = column.nulls
        binary.null_from = column.null_from


cdef void put_no_headers(State *state, int64_t row_end) noexcept nogil:
    """Set the headers of the rows from `row_count` up to `row_end` (exclusive) to null."""
    cdef int64_t row
    state.header_lists_nulls += row_end - state.row_count
    common_clear_bits(state.header_lists_valid.data, state.row_count, row_end)
    for row in range(state.row_count, row_end):
        (<int32_t *> state.header_lists.data)[row + 1] = <int32_t> state.header_count
