# Encoding of rows. The first pass assigns each row to a batch and computes the size of each batch,
# and the second pass writes the bytes. `_kernel.pyx` includes this file; `_pure_encode` is the
# readable version. For each batch, `write_rows` writes exactly as many bytes as `plan_rows` has
# computed, because both use the same functions for sizes. It may also overwrite up to PADDING_BYTES
# bytes after them.

cdef enum:
    CRC_POSITION = 17
    MAGIC_OF_FORMAT_2 = 2
    # The size of the attributes, timestamp delta 0 and offset delta 0 in the first record.
    FIRST_DELTAS_BYTES = 3
    BATCHES_AT_FIRST = 16
    SHORT_BYTES_MAX = 512

# Errors of `plan_rows`.
cdef enum:
    NO_SUCH_PARTITION = 101
    TOO_LARGE_FOR_A_BATCH = 102

cdef int64_t BYTES_MAX_OF_LENGTH = LENGTH_BYTES_MAX


cdef extern from * nogil:
    int leading_zeros "__builtin_clzll"(uint64_t)


cdef struct Column:
    # An Arrow array whose rows start at `first`. If it is not `present`, all rows are null.
    bint present
    # Whether the offsets have 64 bits.
    bint large
    # The validity bitmap, or NULL if no row is null.
    const uint8_t *valid
    int64_t first
    # For binaries and lists.
    const void *offsets
    # For binaries and numbers.
    const uint8_t *data
    # For binaries: the end of the readable bytes.
    const uint8_t *end

cdef struct Planned:
    # A batch with the values of its header and its write position.
    int32_t partition
    int32_t record_count
    int64_t size_bytes
    int64_t base_timestamp
    int64_t max_timestamp
    uint8_t *at
    int32_t written

cdef struct Sealing:
    # The values of a header that do not depend on the rows.
    int attributes
    int64_t producer_id
    int producer_epoch
    int32_t base_sequence

cdef struct Plan:
    int64_t row_count
    Column key
    Column value
    Column partition
    Column timestamp
    Column headers
    Column header_keys
    Column header_values
    int32_t partition_count
    const int32_t *unkeyed
    int32_t unkeyed_count
    int32_t turn
    int64_t now_ms
    int64_t bytes_max
    # The index of the open batch of each partition, or -1.
    int32_t *open_batches
    # For each row, the index of its batch and the size of its record without the length field.
    int32_t *batch_of_row
    int32_t *body_bytes
    Planned *batches
    int64_t batch_count
    int64_t batch_capacity
    # The details of a failure.
    int32_t failed_partition
    int64_t failed_bytes


# Arrow


cdef inline bint is_null(const Column *column, int64_t row) noexcept nogil:
    if not column.present:
        return True
    if column.valid == NULL:
        return False
    row += column.first
    return not (column.valid[row >> 3] >> (row & 7)) & 1


cdef inline int64_t offset_at(const Column *column, int64_t row) noexcept nogil:
    if column.large:
        return (<const int64_t *> column.offsets)[column.first + row]
    return (<const int32_t *> column.offsets)[column.first + row]


cdef inline int64_t field_at(
    const Column *column, int64_t row, const uint8_t **field
) noexcept nogil:
    """Return the size of a binary value, or -1 for null, and set its position."""
    cdef int64_t start
    if is_null(column, row):
        return -1
    start = offset_at(column, row)
    field[0] = column.data + start
    return offset_at(column, row + 1) - start


cdef inline int64_t header_range(const Plan *plan, int64_t row, int64_t *start) noexcept nogil:
    """Return the number of headers of a row, and set the index of the first header."""
    if is_null(&plan.headers, row):
        return 0
    start[0] = offset_at(&plan.headers, row)
    return offset_at(&plan.headers, row + 1) - start[0]


cdef inline int64_t timestamp_at(const Plan *plan, int64_t row) noexcept nogil:
    if is_null(&plan.timestamp, row):
        return plan.now_ms
    return (<const int64_t *> plan.timestamp.data)[plan.timestamp.first + row]


# Numbers


cdef inline uint64_t zigzag(int64_t number) noexcept nogil:
    return (<uint64_t> number << 1) ^ (0 - (<uint64_t> number >> 63))


cdef inline int64_t varint_bytes(int64_t number) noexcept nogil:
    """Return the size of a varint. Small numbers need no branch, which might be mispredicted."""
    cdef uint64_t unsigned = zigzag(number)
    if unsigned < 1 << 28:
        return 1 + (unsigned >= 1 << 7) + (unsigned >= 1 << 14) + (unsigned >= 1 << 21)
    return ((63 - leading_zeros(unsigned)) * 9 + 73) >> 6


cdef inline uint8_t *put_varint(uint8_t *at, int64_t number) noexcept nogil:
    cdef uint64_t unsigned = zigzag(number)
    if 0x7F < unsigned <= 0x3FFF:
        at[0] = <uint8_t> (unsigned | 0x80)
        at[1] = <uint8_t> (unsigned >> 7)
        return at + 2
    while unsigned > 0x7F:
        at[0] = <uint8_t> (unsigned | 0x80)
        at += 1
        unsigned >>= 7
    at[0] = <uint8_t> unsigned
    return at + 1


cdef inline void put_big32(uint8_t *at, uint32_t number) noexcept nogil:
    at[0] = <uint8_t> (number >> 24)
    at[1] = <uint8_t> (number >> 16)
    at[2] = <uint8_t> (number >> 8)
    at[3] = <uint8_t> number


cdef inline void put_big64(uint8_t *at, uint64_t number) noexcept nogil:
    put_big32(at, <uint32_t> (number >> 32))
    put_big32(at + 4, <uint32_t> number)


cdef inline int64_t delta(int64_t timestamp, int64_t base) noexcept nogil:
    return <int64_t> (<uint64_t> timestamp - <uint64_t> base)


cdef inline uint32_t murmur2(const uint8_t *key, int64_t size) noexcept nogil:
    """Return the murmur2 hash of a key (`Utils.murmur2` in Kafka)."""
    cdef uint32_t multiplier = 0x5BD1E995
    cdef uint32_t mixed = <uint32_t> 0x9747B28CU ^ <uint32_t> size
    cdef uint32_t word
    while size >= 4:
        word = key[0] | <uint32_t> key[1] << 8 | <uint32_t> key[2] << 16 | <uint32_t> key[3] << 24
        word *= multiplier
        word ^= word >> 24
        mixed = (mixed * multiplier) ^ (word * multiplier)
        key += 4
        size -= 4
    if size == 3:
        mixed ^= <uint32_t> key[2] << 16
    if size >= 2:
        mixed ^= <uint32_t> key[1] << 8
    if size >= 1:
        mixed = (mixed ^ key[0]) * multiplier
    mixed = (mixed ^ (mixed >> 13)) * multiplier
    return mixed ^ (mixed >> 15)


# The first pass: batches and their sizes


cdef inline int64_t field_size(int64_t size) noexcept nogil:
    """Return the encoded size of a field of `size` bytes (-1 for null), including its length."""
    return varint_bytes(size) + (size if size > 0 else 0)


cdef int64_t headers_size(const Plan *plan, int64_t row) noexcept nogil:
    cdef const uint8_t *field
    cdef int64_t start = 0
    cdef int64_t count = header_range(plan, row, &start)
    cdef int64_t size = varint_bytes(count)
    cdef int64_t index
    for index in range(start, start + count):
        size += field_size(field_at(&plan.header_keys, index, &field))
        size += field_size(field_at(&plan.header_values, index, &field))
    return size


cdef inline bint put_into(
    Plan *plan, int32_t partition, int64_t row, int64_t timestamp, int64_t fields_bytes
) noexcept nogil:
    """Assign the row to the open batch of the partition. Return False if it does not fit."""
    cdef int32_t index = plan.open_batches[partition]
    cdef int64_t body_bytes, size_bytes
    cdef Planned *batch
    if index < 0:
        return False
    batch = &plan.batches[index]
    body_bytes = 1 + fields_bytes
    body_bytes += varint_bytes(delta(timestamp, batch.base_timestamp))
    body_bytes += varint_bytes(batch.written)
    size_bytes = batch.size_bytes + varint_bytes(body_bytes) + body_bytes
    if size_bytes > plan.bytes_max and batch.written > 0:
        return False
    batch.size_bytes = size_bytes
    batch.written += 1
    batch.max_timestamp = max(batch.max_timestamp, timestamp)
    plan.batch_of_row[row] = index
    plan.body_bytes[row] = <int32_t> body_bytes
    return True


cdef int begin_batch(Plan *plan, int32_t partition, int64_t timestamp) noexcept nogil:
    cdef Planned *batches
    cdef int64_t capacity
    if plan.batch_count == plan.batch_capacity:
        capacity = max(plan.batch_capacity * 2, BATCHES_AT_FIRST)
        batches = <Planned *> realloc(plan.batches, capacity * sizeof(Planned))
        if batches == NULL:
            return MEMORY
        plan.batches = batches
        plan.batch_capacity = capacity
    memset(&plan.batches[plan.batch_count], 0, sizeof(Planned))
    plan.batches[plan.batch_count].partition = partition
    plan.batches[plan.batch_count].size_bytes = HEADER_BYTES
    plan.batches[plan.batch_count].base_timestamp = timestamp
    plan.batches[plan.batch_count].max_timestamp = timestamp
    plan.open_batches[partition] = <int32_t> plan.batch_count
    plan.batch_count += 1
    return OK


cdef int plan_rows(Plan *plan) noexcept nogil:
    """Assign each row to a batch. `written` counts the records, as in `write_rows`."""
    cdef const uint8_t *key = NULL
    cdef const uint8_t *value = NULL
    cdef int64_t row, key_bytes, fields_bytes, timestamp
    cdef int32_t partition
    for row in range(plan.row_count):
        key_bytes = field_at(&plan.key, row, &key)
        fields_bytes = field_size(key_bytes) + field_size(field_at(&plan.value, row, &value))
        fields_bytes += headers_size(plan, row) if plan.headers.present else 1
        timestamp = timestamp_at(plan, row)
        if not is_null(&plan.partition, row):
            partition = (<const int32_t *> plan.partition.data)[plan.partition.first + row]
            if partition < 0 or partition >= plan.partition_count:
                plan.failed_partition = partition
                return NO_SUCH_PARTITION
        elif key_bytes >= 0:
            partition = (murmur2(key, key_bytes) & 0x7FFFFFFF) % <uint32_t> plan.partition_count
        else:
            partition = plan.unkeyed[plan.turn]
            if put_into(plan, partition, row, timestamp, fields_bytes):
                continue
            if plan.open_batches[partition] >= 0:
                plan.turn = (plan.turn + 1) % plan.unkeyed_count
                partition = plan.unkeyed[plan.turn]
        if put_into(plan, partition, row, timestamp, fields_bytes):
            continue
        plan.failed_bytes = size_alone(fields_bytes)
        if plan.failed_bytes - LENGTH_END > BYTES_MAX_OF_LENGTH:
            plan.failed_partition = partition
            return TOO_LARGE_FOR_A_BATCH
        if begin_batch(plan, partition, timestamp) != OK:
            return MEMORY
        put_into(plan, partition, row, timestamp, fields_bytes)
    return OK


cdef inline int64_t size_alone(int64_t fields_bytes) noexcept nogil:
    """Return the size of a batch with only this record."""
    cdef int64_t body_bytes = FIRST_DELTAS_BYTES + fields_bytes
    return HEADER_BYTES + varint_bytes(body_bytes) + body_bytes


# The second pass: bytes


cdef inline uint8_t *put_field(
    uint8_t *at, const Column *column, int64_t row
) noexcept nogil:
    """Write the length of a field (-1 for null) and its bytes."""
    cdef const uint8_t *field = NULL
    cdef int64_t size = field_at(column, row, &field)
    cdef int64_t copied = 0
    at = put_varint(at, size)
    if size <= 0:
        return at
    if size <= SHORT_BYTES_MAX and column.end - field >= size + COMMON_WORD_BYTES:
        # Copy whole words, even past the field: the source is long enough and the batch is padded.
        while copied < size:
            memcpy(at + copied, field + copied, COMMON_WORD_BYTES)
            copied += COMMON_WORD_BYTES
    else:
        memcpy(at, field, size)
    return at + size


cdef uint8_t *put_headers_of(uint8_t *at, const Plan *plan, int64_t row) noexcept nogil:
    cdef int64_t start = 0
    cdef int64_t count = header_range(plan, row, &start)
    cdef int64_t index
    at = put_varint(at, count)
    for index in range(start, start + count):
        at = put_field(at, &plan.header_keys, index)
        at = put_field(at, &plan.header_values, index)
    return at


cdef void write_rows(Plan *plan) noexcept nogil:
    """Write each record at the write position of its batch."""
    cdef Planned *batch
    cdef uint8_t *at
    cdef int64_t row, timestamp
    cdef int32_t index = -1
    # A copy of the current batch, because most rows belong to the same batch as the previous row.
    cdef Planned current
    for row in range(plan.row_count):
        if plan.batch_of_row[row] != index:
            if index >= 0:
                plan.batches[index] = current
            index = plan.batch_of_row[row]
            current = plan.batches[index]
        timestamp = timestamp_at(plan, row)
        at = put_varint(current.at, plan.body_bytes[row])
        at[0] = 0
        at = put_varint(at + 1, delta(timestamp, current.base_timestamp))
        at = put_varint(at, current.written)
        at = put_field(at, &plan.key, row)
        at = put_field(at, &plan.value, row)
        if plan.headers.present:
            at = put_headers_of(at, plan, row)
        else:
            at[0] = 0
            at += 1
        current.at = at
        current.written += 1


cdef void put_header(
    uint8_t *data, int64_t size_bytes, const Planned *batch, const Sealing *sealing
) noexcept nogil:
    """Write the header and the CRC of a batch whose records have already been written."""
    put_big64(data, 0)
    put_big32(data + 8, <uint32_t> (size_bytes - LENGTH_END))
    put_big32(data + 12, <uint32_t> -1)
    data[16] = MAGIC_OF_FORMAT_2
    data[21] = <uint8_t> (sealing.attributes >> 8)
    data[22] = <uint8_t> sealing.attributes
    put_big32(data + 23, <uint32_t> (batch.record_count - 1))
    put_big64(data + 27, <uint64_t> batch.base_timestamp)
    put_big64(data + 35, <uint64_t> batch.max_timestamp)
    put_big64(data + 43, <uint64_t> sealing.producer_id)
    data[51] = <uint8_t> (sealing.producer_epoch >> 8)
    data[52] = <uint8_t> sealing.producer_epoch
    put_big32(data + 53, <uint32_t> sealing.base_sequence)
    put_big32(data + 57, <uint32_t> batch.record_count)
    put_big32(data + CRC_POSITION, crc32c(data + ATTRIBUTES, size_bytes - ATTRIBUTES))


# Entry point


def encode(rows, encoding):
    """See `encoding.Encode`."""
    return _Encoding(rows, encoding).run() if rows.num_rows else []


cdef class _Encoding:
    """One call to `encode`. `plan` points into the memory of the arrays of `rows`."""

    cdef Plan plan
    cdef object rows
    cdef object encoding
    cdef int32_t *unkeyed

    def __cinit__(self, rows, encoding):
        memset(&self.plan, 0, sizeof(Plan))
        self.unkeyed = NULL
        self.rows = rows
        self.encoding = encoding

    def __dealloc__(self):
        free(self.unkeyed)
        free(self.plan.open_batches)
        free(self.plan.batch_of_row)
        free(self.plan.body_bytes)
        free(self.plan.batches)

    cdef object run(self):
        cdef Plan *plan = &self.plan
        cdef int event
        cdef int64_t index
        cdef _Memory memory
        self.point_to_columns()
        self.prepare()
        with nogil:
            event = plan_rows(plan)
        if event == NO_SUCH_PARTITION:
            raise no_such_partition(self.encoding, plan.failed_partition)
        if event == TOO_LARGE_FOR_A_BATCH:
            raise too_large(self.encoding, plan.failed_partition, plan.failed_bytes)
        if event != OK:
            raise MemoryError
        memories = []
        for index in range(plan.batch_count):
            memory = allocated(plan.batches[index].size_bytes)
            memories.append(memory)
            plan.batches[index].record_count = plan.batches[index].written
            plan.batches[index].written = 0
            plan.batches[index].at = memory.data + HEADER_BYTES
        with nogil:
            write_rows(plan)
        return self.sealed(memories)

    cdef int point_to_columns(self) except -1:
        cdef Plan *plan = &self.plan
        names = self.rows.schema.names
        plan.row_count = self.rows.num_rows
        if "key" in names:
            point_to_binary(&plan.key, self.rows.column("key"))
        if "value" in names:
            point_to_binary(&plan.value, self.rows.column("value"))
        if "partition" in names:
            point_to_numbers(&plan.partition, self.rows.column("partition"), (pa.int32(),))
        if "timestamp" in names:
            point_to_numbers(&plan.timestamp, self.rows.column("timestamp"), _TIMESTAMP_TYPES)
        if "headers" in names:
            headers = self.rows.column("headers")
            assert pa.types.is_list(headers.type), headers.type
            point_to_lists(&plan.headers, headers)
            pairs = headers.values
            point_to_binary(&plan.header_keys, pairs.field("key"))
            point_to_binary(&plan.header_values, pairs.field("value"))
        return 0

    cdef int prepare(self) except -1:
        cdef Plan *plan = &self.plan
        cdef int32_t index
        encoding = self.encoding
        plan.partition_count = encoding.partition_count
        plan.unkeyed_count = len(encoding.unkeyed)
        plan.now_ms = encoding.now_ms
        plan.bytes_max = encoding.batch_bytes_max
        self.unkeyed = numbers(plan.unkeyed_count)
        for index in range(plan.unkeyed_count):
            self.unkeyed[index] = encoding.unkeyed[index]
        plan.unkeyed = self.unkeyed
        plan.open_batches = numbers(plan.partition_count)
        memset(plan.open_batches, 0xFF, plan.partition_count * sizeof(int32_t))
        plan.batch_of_row = numbers(plan.row_count)
        plan.body_bytes = numbers(plan.row_count)
        return 0

    cdef object sealed(self, list memories):
        """Compress the batches in `memories`, write their headers, and clear the list."""
        cdef Sealing sealing
        cdef Planned *batch
        cdef _Memory memory
        cdef Py_ssize_t index
        encoding = self.encoding
        producer, codec = encoding.producer, encoding.codec
        compress = None if codec is Codec.NONE else compressor(codec, encoding.level)
        next_sequences = dict(producer.next_sequences)
        sealing.attributes = codec | (TRANSACTIONAL_BIT if producer.is_transactional else 0)
        sealing.producer_id = producer.producer_id
        sealing.producer_epoch = producer.producer_epoch
        sealing.base_sequence = NO_SEQUENCE
        found = []
        for index in range(len(memories)):
            batch = &self.plan.batches[index]
            memory = memories[index]
            memories[index] = None
            if producer.is_idempotent:
                sealing.base_sequence = next_sequences.get(batch.partition, 0)
                next_sequences[batch.partition] = next_sequence(
                    sealing.base_sequence, batch.record_count
                )
            if compress is not None:
                memory = self.compressed(compress, memory, batch.partition)
            with nogil:
                put_header(memory.data, memory.size_bytes, batch, &sealing)
            found.append(
                EncodedBatch(
                    partition=batch.partition,
                    base_sequence=sealing.base_sequence,
                    record_count=batch.record_count,
                    data=memoryview(memory),
                )
            )
        return found

    cdef _Memory compressed(self, compress, _Memory plain, int32_t partition):
        """Return the compressed batch. Like `plain`, it does not have a header yet."""
        cdef Py_buffer view
        cdef _Memory memory
        section = compress(memoryview(plain)[HEADER_BYTES:])
        PyObject_GetBuffer(section, &view, PyBUF_SIMPLE)
        try:
            if HEADER_BYTES + view.len - LENGTH_END > BYTES_MAX_OF_LENGTH:
                raise too_large(self.encoding, partition, HEADER_BYTES + view.len)
            memory = allocated(HEADER_BYTES + view.len)
            memcpy(memory.data + HEADER_BYTES, view.buf, view.len)
        finally:
            PyBuffer_Release(&view)
        return memory


_TIMESTAMP_TYPES = (PRODUCE_SCHEMA.field("timestamp").type, pa.timestamp("ms"), pa.int64())
_LARGE_TYPES = (pa.large_binary(), pa.large_string())
_BINARY_TYPES = (pa.binary(), pa.string(), *_LARGE_TYPES)


cdef int32_t *numbers(int64_t count) except NULL:
    cdef void *memory = realloc(NULL, count * sizeof(int32_t))
    if memory == NULL:
        raise MemoryError
    return <int32_t *> memory


cdef uint8_t *address(buffer) except? NULL:
    """Return the address of a buffer. Arrow uses None for an empty buffer."""
    return NULL if buffer is None else <uint8_t *> <uintptr_t> buffer.address


cdef int point_to(Column *column, array, buffers) except -1:
    column.present = True
    column.valid = address(buffers[0]) if array.null_count else NULL
    column.first = array.offset
    return 0


cdef int point_to_binary(Column *column, array) except -1:
    assert array.type in _BINARY_TYPES, array.type
    buffers = array.buffers()
    point_to(column, array, buffers)
    column.large = array.type in _LARGE_TYPES
    column.offsets = address(buffers[1])
    column.data = address(buffers[2])
    column.end = column.data + (0 if buffers[2] is None else <Py_ssize_t> buffers[2].size)
    return 0


cdef int point_to_lists(Column *column, array) except -1:
    buffers = array.buffers()
    point_to(column, array, buffers)
    column.offsets = address(buffers[1])
    return 0


cdef int point_to_numbers(Column *column, array, types) except -1:
    assert array.type in types, array.type
    buffers = array.buffers()
    point_to(column, array, buffers)
    column.data = address(buffers[1])
    return 0
