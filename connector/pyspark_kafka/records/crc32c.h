/* CRC-32C (Castagnoli), the checksum of record batches.
 *
 * The code uses the CRC instruction of SSE 4.2 or ARMv8 if the processor supports it, and tables
 * otherwise. `crc32c_prepare` must be called before `crc32c`. No byte outside of
 * [data, data + size) is read.
 *
 * The instruction has a latency of three cycles and a throughput of one per cycle, so the sums of
 * three adjacent blocks are computed in parallel. The sum of A followed by n bytes B is
 * sum(A B) = map_n(sum(A)) ^ sum(B). The linear function map_n appends n zero bytes. For the two
 * block sizes, map_n is stored in a table for each byte of the sum.
 */
#ifndef PYSPARK_KAFKA_CRC32C_H
#define PYSPARK_KAFKA_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <nmmintrin.h>
#define CRC32C_HARDWARE __attribute__((target("sse4.2")))
#define CRC32C_WORD(crc, word) ((uint32_t)_mm_crc32_u64((crc), (word)))
#define CRC32C_BYTE(crc, byte) (_mm_crc32_u8((crc), (byte)))
static int crc32c_has_hardware(void) { return __builtin_cpu_supports("sse4.2"); }

#elif defined(__AARCH64EL__) && defined(__GNUC__)
#define CRC32C_HARDWARE
static inline uint32_t crc32c_word(uint32_t crc, uint64_t word) {
  __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
  return crc;
}
static inline uint32_t crc32c_byte(uint32_t crc, uint8_t byte) {
  __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"((uint32_t)byte));
  return crc;
}
#define CRC32C_WORD(crc, word) crc32c_word((crc), (word))
#define CRC32C_BYTE(crc, byte) crc32c_byte((crc), (byte))
#if defined(__APPLE__)
static int crc32c_has_hardware(void) { return 1; }
#elif defined(__linux__)
#include <sys/auxv.h>
static int crc32c_has_hardware(void) { return (getauxval(AT_HWCAP) >> 7) & 1; }
#else
static int crc32c_has_hardware(void) { return 0; }
#endif
#endif

#define CRC32C_POLYNOMIAL 0x82F63B78u /* reflected */
#define CRC32C_LONG 2048              /* powers of two */
#define CRC32C_SHORT 128

typedef uint32_t crc32c_map[4][256];

static uint32_t crc32c_tables[8][256];
static crc32c_map crc32c_after_long, crc32c_after_short;
static int crc32c_uses_hardware = 0;

static uint32_t crc32c_apply(const uint32_t columns[32], uint32_t sum) {
  uint32_t mapped = 0;
  for (int bit = 0; bit < 32; bit++)
    if ((sum >> bit) & 1) mapped ^= columns[bit];
  return mapped;
}

/* Compute the map for `size` zero bytes by repeatedly squaring the map for one zero byte. `size` is
 * a power of two. */
static void crc32c_prepare_map(crc32c_map map, size_t size) {
  uint32_t columns[32], squared[32];
  for (int bit = 0; bit < 32; bit++) {
    uint32_t sum = (uint32_t)1 << bit;
    columns[bit] = crc32c_tables[0][sum & 0xFF] ^ (sum >> 8);
  }
  for (; size > 1; size /= 2) {
    for (int bit = 0; bit < 32; bit++) squared[bit] = crc32c_apply(columns, columns[bit]);
    memcpy(columns, squared, sizeof columns);
  }
  for (int place = 0; place < 4; place++)
    for (uint32_t byte = 0; byte < 256; byte++)
      map[place][byte] = crc32c_apply(columns, byte << (8 * place));
}

static void crc32c_prepare(void) {
  for (uint32_t byte = 0; byte < 256; byte++) {
    uint32_t sum = byte;
    for (int bit = 0; bit < 8; bit++) sum = (sum >> 1) ^ (sum & 1 ? CRC32C_POLYNOMIAL : 0);
    crc32c_tables[0][byte] = sum;
  }
  for (int place = 1; place < 8; place++)
    for (int byte = 0; byte < 256; byte++) {
      uint32_t sum = crc32c_tables[place - 1][byte];
      crc32c_tables[place][byte] = crc32c_tables[0][sum & 0xFF] ^ (sum >> 8);
    }
  crc32c_prepare_map(crc32c_after_long, CRC32C_LONG);
  crc32c_prepare_map(crc32c_after_short, CRC32C_SHORT);
#ifdef CRC32C_HARDWARE
  crc32c_uses_hardware = crc32c_has_hardware();
#endif
}

static uint32_t crc32c_software(uint32_t sum, const uint8_t *data, size_t size) {
  for (; size >= 8; data += 8, size -= 8)
    sum = crc32c_tables[7][(sum ^ data[0]) & 0xFF] ^
          crc32c_tables[6][((sum >> 8) ^ data[1]) & 0xFF] ^
          crc32c_tables[5][((sum >> 16) ^ data[2]) & 0xFF] ^
          crc32c_tables[4][(sum >> 24) ^ data[3]] ^ crc32c_tables[3][data[4]] ^
          crc32c_tables[2][data[5]] ^ crc32c_tables[1][data[6]] ^ crc32c_tables[0][data[7]];
  for (; size > 0; data++, size--) sum = crc32c_tables[0][(sum ^ *data) & 0xFF] ^ (sum >> 8);
  return sum;
}

#ifdef CRC32C_HARDWARE
static inline uint32_t crc32c_after(const crc32c_map map, uint32_t sum) {
  return map[0][sum & 0xFF] ^ map[1][(sum >> 8) & 0xFF] ^ map[2][(sum >> 16) & 0xFF] ^
         map[3][sum >> 24];
}

static inline uint64_t crc32c_load(const uint8_t *data) {
  uint64_t word;
  memcpy(&word, data, sizeof word);
  return word;
}

#define CRC32C_THREE_AT_ONCE(block, map)                             \
  for (; size >= 3 * (block); data += 3 * (block), size -= 3 * (block)) { \
    uint32_t second = 0, third = 0;                                  \
    for (size_t at = 0; at < (block); at += 8) {                     \
      sum = CRC32C_WORD(sum, crc32c_load(data + at));                \
      second = CRC32C_WORD(second, crc32c_load(data + (block) + at)); \
      third = CRC32C_WORD(third, crc32c_load(data + 2 * (block) + at)); \
    }                                                                \
    sum = crc32c_after(map, sum) ^ second;                           \
    sum = crc32c_after(map, sum) ^ third;                            \
  }

CRC32C_HARDWARE
static uint32_t crc32c_hardware(uint32_t sum, const uint8_t *data, size_t size) {
  CRC32C_THREE_AT_ONCE(CRC32C_LONG, crc32c_after_long)
  CRC32C_THREE_AT_ONCE(CRC32C_SHORT, crc32c_after_short)
  for (; size >= 8; data += 8, size -= 8) sum = CRC32C_WORD(sum, crc32c_load(data));
  for (; size > 0; data++, size--) sum = CRC32C_BYTE(sum, *data);
  return sum;
}
#endif

static uint32_t crc32c(const uint8_t *data, size_t size) {
#ifdef CRC32C_HARDWARE
  if (crc32c_uses_hardware) return ~crc32c_hardware(0xFFFFFFFFu, data, size);
#endif
  return ~crc32c_software(0xFFFFFFFFu, data, size);
}

/* Compute the CRC with tables on any processor, for tests. */
static uint32_t crc32c_by_tables(const uint8_t *data, size_t size) {
  return ~crc32c_software(0xFFFFFFFFu, data, size);
}

#endif
