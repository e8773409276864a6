"""CRC-32C: the processor's own instruction where it has one, eight tables where not.

Rules: the choice is made once, at import, by asking the processor. Long inputs run as three
independent chains, because the instruction takes three cycles but starts one each cycle; the chains
are joined by tables that advance a CRC over a fixed number of zero bytes.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint32_t

cdef enum:
    ALONE_BYTES = 65536  # so many are worth letting other threads of the interpreter go on

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #include <stddef.h>

    #define OL_POLY 0x82F63B78u  /* Castagnoli, low bit first */
    #define OL_LONG 4096         /* bytes per chain, long inputs */
    #define OL_SHORT 256         /* bytes per chain, shorter ones */

    static uint32_t ol_table[8][256];
    static uint32_t ol_skip_long[4][256];
    static uint32_t ol_skip_short[4][256];

    /* Product of two polynomials modulo OL_POLY; bit 31 is x^0. */
    static uint32_t ol_multiply(uint32_t a, uint32_t b) {
        uint32_t product = 0;
        for (uint32_t bit = 0x80000000u; bit; bit >>= 1) {
            if (a & bit) product ^= b;
            b = (b & 1) ? (b >> 1) ^ OL_POLY : b >> 1;
        }
        return product;
    }

    static void ol_fill_skip(uint32_t skip[4][256], size_t bytes) {
        uint32_t power = 0x80000000u, square = 0x00800000u; /* x^0, x^8 */
        for (; bytes; bytes >>= 1) {
            if (bytes & 1) power = ol_multiply(power, square);
            square = ol_multiply(square, square);
        }
        for (int byte = 0; byte < 4; byte++)
            for (uint32_t v = 0; v < 256; v++)
                skip[byte][v] = ol_multiply(v << (8 * byte), power);
    }

    static inline uint32_t ol_skip(uint32_t skip[4][256], uint32_t crc) {
        return skip[0][crc & 255] ^ skip[1][(crc >> 8) & 255]
             ^ skip[2][(crc >> 16) & 255] ^ skip[3][crc >> 24];
    }

    static uint32_t ol_crc_table(uint32_t crc, const unsigned char *p, size_t n) {
        while (n >= 8) {
            crc ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16
                 | (uint32_t)p[3] << 24;
            crc = ol_table[7][crc & 255] ^ ol_table[6][(crc >> 8) & 255]
                ^ ol_table[5][(crc >> 16) & 255] ^ ol_table[4][crc >> 24]
                ^ ol_table[3][p[4]] ^ ol_table[2][p[5]] ^ ol_table[1][p[6]] ^ ol_table[0][p[7]];
            p += 8; n -= 8;
        }
        while (n--) crc = (crc >> 8) ^ ol_table[0][(crc ^ *p++) & 255];
        return crc;
    }

    /* One body for every instruction set that has a CRC-32C step. */
    #define OL_THREE_CHAINS(STEP8, STEP1, SPAN, SKIP)                               \\
        while (n >= 3 * (SPAN)) {                                                   \\
            uint64_t a = crc, b = 0, c = 0, x, y, z;                                \\
            for (size_t i = 0; i < (SPAN); i += 8) {                                \\
                memcpy(&x, p + i, 8);                                               \\
                memcpy(&y, p + (SPAN) + i, 8);                                      \\
                memcpy(&z, p + 2 * (SPAN) + i, 8);                                  \\
                a = STEP8(a, x); b = STEP8(b, y); c = STEP8(c, z);                  \\
            }                                                                       \\
            crc = ol_skip(SKIP, (uint32_t)a) ^ (uint32_t)b;                         \\
            crc = ol_skip(SKIP, crc) ^ (uint32_t)c;                                 \\
            p += 3 * (SPAN); n -= 3 * (SPAN);                                       \\
        }
    #define OL_CRC_BODY(STEP8, STEP1)                                               \\
        OL_THREE_CHAINS(STEP8, STEP1, OL_LONG, ol_skip_long)                        \\
        OL_THREE_CHAINS(STEP8, STEP1, OL_SHORT, ol_skip_short)                      \\
        { uint64_t a = crc, x;                                                      \\
          for (; n >= 8; p += 8, n -= 8) { memcpy(&x, p, 8); a = STEP8(a, x); }     \\
          crc = (uint32_t)a; }                                                      \\
        for (; n; p++, n--) crc = (uint32_t)STEP1(crc, *p);                         \\
        return crc;

    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    #define OL_HAS_STEP 1
    #include <nmmintrin.h>
    __attribute__((target("sse4.2")))
    static uint32_t ol_crc_step(uint32_t crc, const unsigned char *p, size_t n) {
        OL_CRC_BODY(_mm_crc32_u64, _mm_crc32_u8)
    }
    static int ol_has_step(void) { __builtin_cpu_init(); return __builtin_cpu_supports("sse4.2"); }
    #elif defined(__aarch64__) && (defined(__GNUC__) || defined(__clang__)) \\
        && (defined(__linux__) || defined(__APPLE__)) && !defined(__AARCH64EB__)
    #define OL_HAS_STEP 1
    #if defined(__clang__)
    #define OL_CRC_TARGET __attribute__((target("crc")))
    #else
    #define OL_CRC_TARGET __attribute__((target("+crc")))
    #endif
    OL_CRC_TARGET static inline uint32_t ol_step8(uint32_t crc, uint64_t x) {
        uint32_t out;
        __asm__("crc32cx %w0, %w1, %x2" : "=r"(out) : "r"(crc), "r"(x));
        return out;
    }
    OL_CRC_TARGET static inline uint32_t ol_step1(uint32_t crc, unsigned char x) {
        uint32_t out;
        __asm__("crc32cb %w0, %w1, %w2" : "=r"(out) : "r"(crc), "r"((uint32_t)x));
        return out;
    }
    OL_CRC_TARGET static uint32_t ol_crc_step(uint32_t crc, const unsigned char *p, size_t n) {
        OL_CRC_BODY(ol_step8, ol_step1)
    }
    #if defined(__APPLE__)
    static int ol_has_step(void) { return 1; }
    #else
    #include <sys/auxv.h>
    static int ol_has_step(void) { return (getauxval(AT_HWCAP) & (1u << 7)) != 0; }
    #endif
    #endif

    static uint32_t (*ol_crc)(uint32_t, const unsigned char *, size_t) = ol_crc_table;

    static void ol_crc_init(void) {
        for (uint32_t v = 0; v < 256; v++) {
            uint32_t crc = v;
            for (int bit = 0; bit < 8; bit++) crc = (crc & 1) ? (crc >> 1) ^ OL_POLY : crc >> 1;
            ol_table[0][v] = crc;
        }
        for (int k = 1; k < 8; k++)
            for (uint32_t v = 0; v < 256; v++)
                ol_table[k][v] = (ol_table[k - 1][v] >> 8) ^ ol_table[0][ol_table[k - 1][v] & 255];
        ol_fill_skip(ol_skip_long, OL_LONG);
        ol_fill_skip(ol_skip_short, OL_SHORT);
    #ifdef OL_HAS_STEP
        if (ol_has_step()) ol_crc = ol_crc_step;
    #endif
    }
    """
    uint32_t ol_crc(uint32_t crc, const unsigned char *p, size_t n) noexcept nogil
    uint32_t ol_crc_table(uint32_t crc, const unsigned char *p, size_t n) noexcept nogil
    void ol_crc_init() noexcept nogil

ol_crc_init()


cdef uint32_t crc_of(const unsigned char *data, size_t size, uint32_t value) noexcept nogil:
    return ~ol_crc(~value, data, size)


def crc32c(data, value=0):
    """CRC-32C of `data`, going on from `value`."""
    cdef Py_buffer view
    cdef uint32_t crc = value
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    if view.len < ALONE_BYTES:
        crc = crc_of(<const unsigned char *> view.buf, view.len, crc)
    else:
        with nogil:
            crc = crc_of(<const unsigned char *> view.buf, view.len, crc)
    PyBuffer_Release(&view)
    return crc


def crc32c_by_table(data, value=0):
    """The same by the tables alone, so that tests reach them on any machine."""
    cdef Py_buffer view
    cdef uint32_t crc = value
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    crc = ~ol_crc_table(~crc, <const unsigned char *> view.buf, view.len)
    PyBuffer_Release(&view)
    return crc


def topic_hash(topic):
    """The u32 under which the topic index and the router know a topic."""
    return crc32c(topic)
