/* The fast path of decoding: one loop converts common records to rows and keeps its variables in
 * registers.
 *
 * `_kernel_common.pxi` uses it for nearly all records. It produces the same rows as `read_record`
 * and `append`, which handle all other records. It reads no bytes outside of the records section,
 * and does not depend on the state of the kernel.
 *
 * A common record is valid, has numbers of at most three bytes, and has no headers. The section has
 * at least COMMON_AHEAD_BYTES after the record, which are read without a check. The code is written
 * in C, so that the compiler can build a loop for each common choice of columns and for newer
 * processors.
 */
#ifndef PYSPARK_KAFKA_COMMON_RECORDS_H
#define PYSPARK_KAFKA_COMMON_RECORDS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define COMMON_WORD_BYTES 32
/* The number of bytes after a record that can be read: a word, or 16 bytes for the numbers of the
 * next record. */
#define COMMON_AHEAD_BYTES COMMON_WORD_BYTES
#define COMMON_NUMBER_MAX (1 << 20)
#define COMMON_NULL 1u /* -1 in zigzag encoding */

#if defined(__GNUC__)
#define COMMON_INLINE static inline __attribute__((always_inline))
#else
#define COMMON_INLINE static inline
#endif

/* A binary column. If `null_from` is not negative, all rows from `null_from` on are null. They are
 * written before the next value, or never if all rows are null. */
typedef struct {
  int selected;
  uint8_t *data;
  int32_t *offsets;
  uint8_t *valid;
  int64_t size;
  int64_t nulls;
  int64_t null_from;
} common_column;

/* `end_max` is the latest position at which the last record may end. The columns have
 * memory for all records before it. `offsets` and `timestamps` are NULL if they are not selected.
 * The struct is updated in place. */
typedef struct {
  const uint8_t *record;
  const uint8_t *end_max;
  int64_t row;
  int64_t row_end;
  int32_t delta_min;
  int32_t delta_max;
  int64_t base_offset;
  int64_t base_timestamp; /* microseconds */
  int64_t delta_unit;     /* microseconds per unit of a timestamp delta, or 0 */
  int64_t *offsets;
  int64_t *timestamps;
  common_column key;
  common_column value;
} common_rows;

/* Copy a field to memory that has space for the field and one more word. `ahead` is true if a whole
 * word can be read.
 *
 * Two overlapping copies of constant size need one branch, which is the same for most fields of a
 * column. A loop over the size would end with a branch that is often mispredicted. */
COMMON_INLINE void common_copy(uint8_t *to, const uint8_t *field, size_t size, int ahead) {
  if (size <= COMMON_WORD_BYTES) {
    if (ahead)
      memcpy(to, field, COMMON_WORD_BYTES);
    else if (size > 0)
      memcpy(to, field, size);
  } else if (size <= 2 * COMMON_WORD_BYTES) {
    memcpy(to, field, COMMON_WORD_BYTES);
    memcpy(to + size - COMMON_WORD_BYTES, field + size - COMMON_WORD_BYTES, COMMON_WORD_BYTES);
  } else if (size <= 4 * COMMON_WORD_BYTES) {
    memcpy(to, field, 2 * COMMON_WORD_BYTES);
    memcpy(to + size - 2 * COMMON_WORD_BYTES, field + size - 2 * COMMON_WORD_BYTES,
           2 * COMMON_WORD_BYTES);
  } else {
    memcpy(to, field, size);
  }
}

COMMON_INLINE int common_number(const uint8_t **at, uint32_t *number) {
  const uint8_t *start = *at;
  uint32_t first = start[0];
  if (first <= 0x7F) {
    *number = first;
    *at = start + 1;
  } else if (start[1] <= 0x7F) {
    *number = first - 0x80 + ((uint32_t)start[1] << 7);
    *at = start + 2;
  } else if (start[2] <= 0x7F) {
    *number = first - 0x80 + ((uint32_t)(start[1] & 0x7F) << 7) + ((uint32_t)start[2] << 14);
    *at = start + 3;
  } else {
    return 0;
  }
  return 1;
}

/* Clear the bits of the rows from `row` up to `row_end` (exclusive). */
static void common_clear_bits(uint8_t *bits, int64_t row, int64_t row_end) {
  for (; row < row_end && row & 7; row++) bits[row >> 3] &= (uint8_t)~(1 << (row & 7));
  if (row_end - row >= 8) {
    memset(bits + (row >> 3), 0, (size_t)((row_end - row) >> 3));
    row += (row_end - row) & ~(int64_t)7;
  }
  for (; row < row_end; row++) bits[row >> 3] &= (uint8_t)~(1 << (row & 7));
}

/* Set the rows from `null_from` up to `row_end` (exclusive) to null. */
static void common_note_nulls(
    uint8_t *valid, int32_t *offsets, int32_t size, int64_t null_from, int64_t row_end) {
  common_clear_bits(valid, null_from, row_end);
  for (int64_t row = null_from; row < row_end; row++) offsets[row + 1] = size;
}

COMMON_INLINE void common_end_nulls(common_column *column, int64_t row_end) {
  if (column->null_from < 0) return;
  common_note_nulls(column->valid, column->offsets, (int32_t)column->size, column->null_from,
                    row_end);
  column->nulls += row_end - column->null_from;
  column->null_from = -1;
}

/* Append a field whose encoded length is `number`. */
COMMON_INLINE void common_put(
    common_column *column, int64_t row, const uint8_t *field, uint32_t number) {
  if (number == COMMON_NULL) {
    if (column->null_from < 0) column->null_from = row;
  } else {
    common_end_nulls(column, row);
    common_copy(column->data + column->size, field, number / 2, 1);
    column->size += number / 2;
    column->offsets[row + 1] = (int32_t)column->size;
  }
}

COMMON_INLINE void common_loop(
    common_rows *rows, int key_selected, int value_selected, int offset_selected,
    int timestamp_selected) {
  const uint8_t *record = rows->record, *const end_max = rows->end_max;
  const int64_t row_end = rows->row_end;
  const int64_t base_offset = rows->base_offset, base_timestamp = rows->base_timestamp;
  const int64_t delta_unit = rows->delta_unit;
  int64_t *const offsets = rows->offsets, *const timestamps = rows->timestamps;
  common_column keys = rows->key, values = rows->value;
  int64_t row = rows->row;
  /* Offset deltas in zigzag encoding are doubled. Records with negative deltas are not common. */
  uint32_t offset_min = (uint32_t)rows->delta_min * 2;
  const uint32_t offset_max = (uint32_t)rows->delta_max * 2;
  while (row < row_end) {
    const uint8_t *at = record, *end, *key_field;
    uint32_t length, timestamp, offset, key, value;
    if (!common_number(&at, &length) || length & 1 || (int64_t)(length / 2) > end_max - at) break;
    end = at + length / 2;
    at += 1; /* attributes, which Kafka does not use */
    if (!common_number(&at, &timestamp) || !common_number(&at, &offset)) break;
    if (offset & 1 || offset < offset_min || offset > offset_max) break;
    if (!common_number(&at, &key)) break;
    key_field = at;
    if (key != COMMON_NULL) {
      if (key & 1 || (int64_t)(key / 2) > end - at) break;
      at += key / 2;
    }
    if (!common_number(&at, &value)) break;
    /* The last byte of the record is the header count, which must be 0. */
    if (value == COMMON_NULL ? at != end - 1 : value & 1 || (int64_t)(value / 2) != end - at - 1)
      break;
    if (end[-1] != 0) break;
    if (key_selected) common_put(&keys, row, key_field, key);
    if (value_selected) common_put(&values, row, at, value);
    if (offset_selected) offsets[row] = base_offset + offset / 2;
    if (timestamp_selected) {
      int64_t delta = (int64_t)(timestamp / 2) ^ -(int64_t)(timestamp & 1);
      timestamps[row] = base_timestamp + delta_unit * delta;
    }
    offset_min = offset + 2;
    record = end;
    row++;
  }
  rows->record = record;
  rows->row = row;
  rows->delta_min = (int32_t)(offset_min / 2);
  rows->key = keys;
  rows->value = values;
}

COMMON_INLINE void common_choose(common_rows *rows) {
  int key = rows->key.selected, value = rows->value.selected;
  int offset = rows->offsets != NULL, timestamp = rows->timestamps != NULL;
  if (!key && value && !offset && !timestamp)
    common_loop(rows, 0, 1, 0, 0);
  else if (key && value && offset && timestamp)
    common_loop(rows, 1, 1, 1, 1);
  else
    common_loop(rows, key, value, offset, timestamp);
}

static void common_take_plainly(common_rows *rows) { common_choose(rows); }

#if defined(__x86_64__) && defined(__GNUC__)
/* AVX2 copies words of 32 bytes in one register, and BMI2 has shifts that do not change flags. */
__attribute__((target("avx2,bmi,bmi2"))) static void common_take_avx2(common_rows *rows) {
  common_choose(rows);
}
static int common_has_avx2 = 0;
static void common_prepare(void) {
  common_has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
                    __builtin_cpu_supports("bmi2");
}
static void common_take(common_rows *rows) {
  if (common_has_avx2)
    common_take_avx2(rows);
  else
    common_take_plainly(rows);
}
#else
static void common_prepare(void) {}
static void common_take(common_rows *rows) { common_take_plainly(rows); }
#endif

#endif
