"""C face of the CRC."""

from libc.stdint cimport uint32_t

cdef uint32_t crc_of(const unsigned char *data, size_t size, uint32_t value) noexcept nogil
