/* The hash of a field, which `_pure_checksums` describes.
 *
 * This is the inner loop of `_kernel_checksums.pxi`. Only the bytes of [data, data + size) affect
 * the hash, and no byte at or after `end` is read. Does not depend on Arrow.
 *
 * The product of two words of 64 bits has 128 bits. The XOR of its halves depends on all bits of
 * both words. Each step hashes 16 bytes. For long fields, four independent steps run in parallel.
 */
#ifndef PYSPARK_KAFKA_ROW_HASH_H
#define PYSPARK_KAFKA_ROW_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Arbitrary constants: the fractional parts of the square roots of the first eight primes. */
static const uint64_t row_hash_words[8] = {
    0x6A09E667F3BCC908u, 0xBB67AE8584CAA73Bu, 0x3C6EF372FE94F82Bu, 0xA54FF53A5F1D36F1u,
    0x510E527FADE682D1u, 0x9B05688C2B3E6C1Fu, 0x1F83D9ABFB41BD6Bu, 0x5BE0CD19137E2179u,
};

static inline uint64_t row_hash_fold(uint64_t one, uint64_t other) {
#ifdef __SIZEOF_INT128__
  unsigned __int128 product = (unsigned __int128)one * other;
  return (uint64_t)product ^ (uint64_t)(product >> 64);
#else
  uint64_t low = (one & 0xFFFFFFFFu) * (other & 0xFFFFFFFFu);
  uint64_t left = (one >> 32) * (other & 0xFFFFFFFFu) + (low >> 32);
  uint64_t right = (one & 0xFFFFFFFFu) * (other >> 32) + (left & 0xFFFFFFFFu);
  uint64_t high = (one >> 32) * (other >> 32) + (left >> 32) + (right >> 32);
  return (right << 32 | (low & 0xFFFFFFFFu)) ^ high;
#endif
}

/* Return eight bytes as a little-endian number. */
static inline uint64_t row_hash_load(const uint8_t *data) {
  uint64_t word;
  memcpy(&word, data, sizeof word);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  word = __builtin_bswap64(word);
#endif
  return word;
}

static inline uint64_t row_hash_null(uint64_t hash) { return hash + row_hash_words[0]; }

/* Add a field to `hash`, the hash of the previous fields. The readable memory ends at `end`. */
static inline uint64_t row_hash_field(
    uint64_t hash, const uint8_t *data, size_t size, const uint8_t *end) {
  const uint64_t *words = row_hash_words;
  size_t left = size;
  uint8_t copy[16];
  uint64_t low, high;
  if (size >= 64) {
    uint64_t a = hash, b = hash, c = hash, d = hash;
    for (; left >= 64; data += 64, left -= 64) {
      a = row_hash_fold(row_hash_load(data) ^ words[0], row_hash_load(data + 8) ^ a);
      b = row_hash_fold(row_hash_load(data + 16) ^ words[1], row_hash_load(data + 24) ^ b);
      c = row_hash_fold(row_hash_load(data + 32) ^ words[2], row_hash_load(data + 40) ^ c);
      d = row_hash_fold(row_hash_load(data + 48) ^ words[3], row_hash_load(data + 56) ^ d);
    }
    hash = (a ^ b) + (c ^ d);
  }
  if (size >= 16) {
    for (; left > 16; data += 16, left -= 16)
      hash = row_hash_fold(row_hash_load(data) ^ words[2], row_hash_load(data + 8) ^ hash);
    data += left;
    low = row_hash_load(data - 16);
    high = row_hash_load(data - 8);
  } else {
    if ((size_t)(end - data) < sizeof copy) {
      memset(copy, 0, sizeof copy);
      if (size) memcpy(copy, data, size);
      data = copy;
    }
    /* There are no branches here, because they would be mispredicted if sizes vary. */
    uint64_t mask = ((uint64_t)1 << (8 * (size & 7))) - 1;
    low = row_hash_load(data) & (size < 8 ? mask : ~(uint64_t)0);
    high = row_hash_load(data + 8) & (size < 8 ? 0 : mask);
  }
  return row_hash_fold(low ^ words[3], high ^ hash ^ (uint64_t)size * words[1]);
}

#endif
