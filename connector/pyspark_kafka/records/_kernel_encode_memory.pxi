# Reused memory for batches. A part of `_kernel.pyx`.
# The C library returns large freed blocks to the system, and new pages cost more than writing to
# them, so that a few blocks are kept for later batches. Invariant: at most KEPT_BYTES_MAX bytes in
# KEPT_BLOCKS_MAX blocks are kept, the latest ones. All functions run with the GIL.

cdef enum:
    KEPT_BLOCKS_MAX = 64
    KEPT_BYTES_MAX = 32 * 1024 * 1024
    # The C library keeps smaller blocks itself.
    KEPT_BLOCK_BYTES_MIN = 128 * 1024
    KEPT_BLOCK_BYTES_MAX = 4 * 1024 * 1024
    # Capacities are rounded up, since batches differ a little; untouched pages cost nothing.
    STEP_BYTES = 64 * 1024

cdef struct Kept:
    uint8_t *data
    size_t capacity

cdef Kept kept_blocks[KEPT_BLOCKS_MAX]
cdef size_t kept_count = 0
cdef size_t kept_bytes = 0


cdef class _BatchMemory(_Memory):
    """A block that is kept after its last reference is gone."""

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
    """Take the latest kept block of at least this and less than twice this capacity."""
    cdef size_t index = kept_count
    while index > 0:
        index -= 1
        if capacity <= kept_blocks[index].capacity < 2 * capacity:
            memory.data = kept_blocks[index].data
            memory.capacity = kept_blocks[index].capacity
            forget_kept(index)
            return


cdef void keep(uint8_t *data, size_t capacity) noexcept:
    """Keep a block and free the oldest ones beyond the limits; free a block of another size."""
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
