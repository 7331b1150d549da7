# Reuse of batch memory. `_kernel.pyx` includes this file. The C library returns large freed blocks
# to the system, and allocating new pages takes longer than writing to them. The latest blocks are
# therefore kept for later batches: at most KEPT_BLOCKS_MAX blocks with a total of KEPT_BYTES_MAX
# bytes. All functions run with the GIL.

cdef enum:
    KEPT_BLOCKS_MAX = 64
    KEPT_BYTES_MAX = 32 * 1024 * 1024
    # The C library keeps smaller blocks.
    KEPT_BLOCK_BYTES_MIN = 128 * 1024
    KEPT_BLOCK_BYTES_MAX = 4 * 1024 * 1024
    # Capacities are rounded up, because batch sizes differ slightly. Unused pages cost nothing.
    STEP_BYTES = 64 * 1024

cdef struct Kept:
    uint8_t *data
    size_t capacity

cdef Kept kept_blocks[KEPT_BLOCKS_MAX]
cdef size_t kept_count = 0
cdef size_t kept_bytes = 0


cdef class _BatchMemory(_Memory):
    """A block that is kept for reuse when its last reference is dropped."""

    cdef size_t capacity

    def __dealloc__(self):
        keep(self.data, self.capacity)
        self.data = NULL


cdef _BatchMemory allocated(size_t size_bytes):
    """Return a block of this size, followed by padding."""
    cdef _BatchMemory memory = _BatchMemory()
    cdef size_t capacity = size_bytes + PADDING_BYTES
    if capacity >= KEPT_BLOCK_BYTES_MIN:
        capacity = (capacity + STEP_BYTES - 1) // STEP_BYTES * STEP_BYTES
        take_kept(memory, capacity)
    if memory.data == NULL:
        memory.data = <uint8_t *> realloc(NULL, capacity)
        if memory.data == NULL:
            raise MemoryError
        memory.capacity = capacity
    memory.size_bytes = <Py_ssize_t> size_bytes
    return memory


cdef void take_kept(_BatchMemory memory, size_t capacity) noexcept:
    """Take the latest kept block with at least `capacity` bytes and less than twice as many."""
    cdef size_t index = kept_count
    while index > 0:
        index -= 1
        if capacity <= kept_blocks[index].capacity < 2 * capacity:
            memory.data = kept_blocks[index].data
            memory.capacity = kept_blocks[index].capacity
            forget_kept(index)
            return


cdef void keep(uint8_t *data, size_t capacity) noexcept:
    """Keep a block, and free the oldest blocks if the limits are exceeded.

    A block that is too small or too large is freed immediately.
    """
    global kept_count, kept_bytes
    if not KEPT_BLOCK_BYTES_MIN <= capacity <= KEPT_BLOCK_BYTES_MAX:
        free(data)
        return
    while kept_count == KEPT_BLOCKS_MAX or kept_bytes + capacity > KEPT_BYTES_MAX:
        free(kept_blocks[0].data)
        forget_kept(0)
    kept_blocks[kept_count].data = data
    kept_blocks[kept_count].capacity = capacity
    kept_count += 1
    kept_bytes += capacity


cdef void forget_kept(size_t index) noexcept:
    global kept_count, kept_bytes
    kept_count -= 1
    kept_bytes -= kept_blocks[index].capacity
    while index < kept_count:
        kept_blocks[index] = kept_blocks[index + 1]
        index += 1
