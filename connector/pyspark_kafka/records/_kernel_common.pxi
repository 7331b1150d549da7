# The fast way: common records become rows in one loop that keeps in registers what changes.
# A part of `_kernel.pyx`. Invariant: it takes only what `read_record` and `append` would take as
# it does, and leaves any other record, whole, to them.
#
# A common record is sound, has numbers of at most three bytes and no headers, and is followed by
# `AHEAD_BYTES` of its section, which are read without asking. A common batch is wanted with all of
# its offsets, and every timestamp that such a number gives has a place.

cdef enum:
    # Of what is read beyond a record: numbers (15 bytes with attributes), and a word of a field.
    AHEAD_BYTES = 32
    NUMBER_MAX = 1 << 20
    NULL_LENGTH = 1


cdef struct Sink:
    # Where the next bytes of a column go. `null_from` is the row with which a run of nulls began,
    # whose bits are cleared when it ends; -1 where there is none.
    uint8_t *data
    int32_t *offsets
    int64_t size
    int64_t null_from


cdef inline bint is_common(const State *state) noexcept nogil:
    cdef const Batch *batch = &state.batch
    cdef int64_t room = TIMESTAMP_MS_MAX - NUMBER_MAX
    return (
        batch.base_offset >= state.start_offset
        and batch.last_offset < state.end_offset
        and -room <= batch.base_timestamp <= room
        and -room <= batch.max_timestamp <= room
    )


cdef int take_common_records(State *state) noexcept nogil:
    """Make rows of the next records, as long as they are common and there is room for them."""
    if state.row_count == state.row_capacity and state.row_count < state.rows_max:
        if grow_rows(state) != OK:
            return MEMORY
    # What is constant is left out by the compiler.
    if not state.key.wanted and not state.offset_wanted and not state.timestamp_wanted:
        take_into(state, False, state.value.wanted, False, False)
    elif state.key.wanted and state.value.wanted and state.offset_wanted and state.timestamp_wanted:
        take_into(state, True, True, True, True)
    else:
        take_into(
            state,
            state.key.wanted,
            state.value.wanted,
            state.offset_wanted,
            state.timestamp_wanted,
        )
    return OK


cdef inline void take_into(
    State *state, bint key_wanted, bint value_wanted, bint offset_wanted, bint timestamp_wanted
) noexcept nogil:
    cdef Sink keys, values
    cdef const uint8_t *record = state.record
    cdef const uint8_t *end_max = last_end(state)
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef const uint8_t *key
    cdef uint32_t number = 0, key_number = 0
    cdef int32_t offset_delta, timestamp_delta, key_bytes
    cdef int32_t delta_min = <int32_t> state.delta_min
    cdef int32_t delta_max = state.batch.last_offset_delta
    cdef bint log_append_time = (state.batch.attributes & LOG_APPEND_TIME_BIT) != 0
    cdef int64_t base_timestamp = 1000 * (
        state.batch.max_timestamp if log_append_time else state.batch.base_timestamp
    )
    cdef int64_t delta_unit = 0 if log_append_time else 1000
    cdef int64_t base_offset = state.batch.base_offset
    cdef int64_t *offsets = <int64_t *> state.offset.data
    cdef int64_t *timestamps = <int64_t *> state.timestamp.data
    cdef int64_t row = state.row_count
    cdef int64_t row_end = row + min(
        state.row_capacity - row, <int64_t> state.batch.record_count - state.index
    )
    if state.delta_min > delta_max or record > end_max:
        return
    open_sink(&keys, &state.key)
    open_sink(&values, &state.value)
    while row < row_end:
        at = record
        if not read_short(&at, &number) or number & 1 or (number >> 1) > end_max - at:
            break
        end = at + (number >> 1)
        at += 1  # attributes, of which none is in use
        if not read_short(&at, &number):
            break
        timestamp_delta = signed_of(number)
        if not read_short(&at, &number):
            break
        offset_delta = signed_of(number)
        if offset_delta < delta_min or offset_delta > delta_max:
            break
        if not read_short(&at, &key_number):
            break
        key = at
        key_bytes = 0
        if key_number != NULL_LENGTH:
            key_bytes = <int32_t> (key_number >> 1)
            if key_number & 1 or key_bytes > end - at:
                break
            at += key_bytes
        if not read_short(&at, &number):
            break
        # The header count, 0, is the byte before the end.
        if (end - 1)[0] != 0:
            break
        if number & 1:
            if number != NULL_LENGTH or at != end - 1:
                break
        elif (number >> 1) != end - at - 1:
            break
        if key_wanted:
            if key_number == NULL_LENGTH:
                keys.null_from = row if keys.null_from < 0 else keys.null_from
            else:
                if keys.null_from >= 0:
                    put_nulls(&state.key, keys.null_from, row)
                    keys.null_from = -1
                copy_field_of_batch(keys.data + keys.size, key, key_bytes)
                keys.size += key_bytes
            keys.offsets[row + 1] = <int32_t> keys.size
        if value_wanted:
            if number == NULL_LENGTH:
                values.null_from = row if values.null_from < 0 else values.null_from
            else:
                if values.null_from >= 0:
                    put_nulls(&state.value, values.null_from, row)
                    values.null_from = -1
                copy_field_of_batch(values.data + values.size, at, <int32_t> (number >> 1))
                values.size += number >> 1
            values.offsets[row + 1] = <int32_t> values.size
        if offset_wanted:
            offsets[row] = base_offset + offset_delta
        if timestamp_wanted:
            timestamps[row] = base_timestamp + delta_unit * timestamp_delta
        delta_min = offset_delta + 1
        record = end
        row += 1
    if key_wanted:
        close_sink(&keys, state, &state.key, row)
    if value_wanted:
        close_sink(&values, state, &state.value, row)
    put_constants(state, row, log_append_time)
    state.record = record
    state.index += <int32_t> (row - state.row_count)
    state.delta_min = delta_min
    state.row_count = row


cdef inline const uint8_t *last_end(const State *state) noexcept nogil:
    """Where the last record that can be taken may end: fields take less room than their record.

    So neither the blocks' room nor the payload of an Arrow batch needs a look at each record.
    """
    cdef int64_t left = state.section_end - state.record - AHEAD_BYTES
    left = min(left, state.bytes_max - state.payload_bytes)
    if state.key.wanted:
        left = min(left, <int64_t> (state.key.data.capacity - state.key.data.size))
    if state.value.wanted:
        left = min(left, <int64_t> (state.value.data.capacity - state.value.data.size))
    return state.record + left


cdef inline void open_sink(Sink *sink, const Binary *column) noexcept nogil:
    sink.data = column.data.data
    sink.offsets = <int32_t *> column.offsets.data
    sink.size = column.data.size
    sink.null_from = -1


cdef inline void close_sink(
    const Sink *sink, State *state, Binary *column, int64_t row_end
) noexcept nogil:
    if sink.null_from >= 0:
        put_nulls(column, sink.null_from, row_end)
    state.payload_bytes += sink.size - column.data.size
    column.data.size = sink.size


cdef void put_nulls(Binary *column, int64_t row, int64_t row_end) noexcept nogil:
    """Rows from `row` to before `row_end`, which are valid so far, are null."""
    column.nulls += row_end - row
    clear_bits(&column.valid, row, row_end)


cdef void put_constants(State *state, int64_t row_end, bint log_append_time) noexcept nogil:
    """What rows from the last one that counts on have alike: the timestamp's type, no headers."""
    cdef int64_t row
    if state.timestamp_type_wanted:
        for row in range(state.row_count, row_end):
            (<int32_t *> state.timestamp_type.data)[row] = log_append_time
    if state.headers_wanted:
        state.header_lists_nulls += row_end - state.row_count
        clear_bits(&state.header_lists_valid, state.row_count, row_end)
        for row in range(state.row_count, row_end):
            (<int32_t *> state.header_lists.data)[row + 1] = <int32_t> state.header_count


cdef inline bint read_short(const uint8_t **at, uint32_t *number) noexcept nogil:
    """A number of at most three bytes, as it is written: its sign is the lowest bit."""
    cdef const uint8_t *start = at[0]
    cdef uint32_t first = start[0]
    if first <= 0x7F:
        number[0] = first
        at[0] = start + 1
    elif start[1] <= 0x7F:
        number[0] = (first - 0x80) + (<uint32_t> start[1] << 7)
        at[0] = start + 2
    elif start[2] <= 0x7F:
        number[0] = (
            (first - 0x80) + (<uint32_t> (start[1] & 0x7F) << 7) + (<uint32_t> start[2] << 14)
        )
        at[0] = start + 3
    else:
        return False
    return True


cdef inline int32_t signed_of(uint32_t number) noexcept nogil:
    return <int32_t> ((number >> 1) ^ (0 - (number & 1)))


cdef inline void copy_field_of_batch(
    uint8_t *target, const uint8_t *field, int32_t field_bytes
) noexcept nogil:
    """A field that is followed by `AHEAD_BYTES`."""
    copy_field(target, field, field_bytes, field + WORD_BYTES)
