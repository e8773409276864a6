"""Which bytes of a mapped file are in memory, compiled: `cachestat` where there is one, `mincore`.

Why both: `mincore` looks at each page (14 to 20 µs a MiB), `cachestat` at each folio (3 µs). But
`cachestat` also counts pages that the disk is just bringing. These are the last of a range as a
rule, so the last page is looked at by `mincore`.
"""

from libc.stdint cimport uintptr_t

cdef extern from *:
    """
    #include <errno.h>
    #include <stdint.h>
    #include <string.h>
    #include <sys/mman.h>
    #include <unistd.h>
    #ifdef __linux__
    #include <sys/syscall.h>
    #ifndef SYS_cachestat
    #define SYS_cachestat 451
    #endif
    #endif

    #define OL_PAGES 4096
    #define OL_FEW 8

    static int64_t ol_page_bytes = 0;
    static int ol_no_cachestat = 0;

    /* Whether all pages of [start, end) are in the page cache; 0: unknown, or not. */
    static int ol_all_cached(int fd, int64_t start, int64_t end, int64_t pages) {
    #ifdef __linux__
        struct { uint64_t offset, length; } range = {(uint64_t)start, (uint64_t)(end - start)};
        struct { uint64_t cache, dirty, writeback, evicted, recently; } found;
        if (fd < 0 || ol_no_cachestat) return 0;
        if (syscall(SYS_cachestat, fd, &range, &found, 0) == 0)
            return found.cache >= (uint64_t)pages;
        if (errno == ENOSYS || errno == EPERM) ol_no_cachestat = 1;
    #endif
        return 0;
    }

    #ifdef __linux__
    typedef unsigned char ol_seen;
    #else
    typedef char ol_seen;
    #endif

    static int64_t ol_here_to(uintptr_t map, int fd, int64_t start, int64_t end) {
        ol_seen seen[OL_PAGES];
        if (!ol_page_bytes) ol_page_bytes = sysconf(_SC_PAGESIZE);
        int64_t page = ol_page_bytes, at = start - start % page;
        int64_t pages = (end - at + page - 1) / page;
        if (pages > OL_FEW && ol_all_cached(fd, at, end, pages)) {
            int64_t last = at + (pages - 1) * page;
            if (mincore((void *)(map + last), (size_t)(end - last), seen) == 0 && (seen[0] & 1))
                return end;
        }
        while (at < end) {
            int64_t size = end - at;
            if (size > OL_PAGES * page) size = OL_PAGES * page;
            if (mincore((void *)(map + at), (size_t)size, seen) != 0)
                return end; /* the system does not tell */
            int64_t count = (size + page - 1) / page;
            for (int64_t i = 0; i < count; i++)
                if (!(seen[i] & 1)) return at + i * page > start ? at + i * page : start;
            at += size;
        }
        return end;
    }
    """
    long long ol_here_to(uintptr_t map, int fd, long long start, long long end) nogil


def here_to(uintptr_t address, int fd, long long start, long long end):
    """The end of the bytes between `start` and `end` that are in memory without a gap.

    `address` is that of the map (0: unknown), `fd` an open descriptor of its file (-1: none).
    """
    return ol_here_to(address, fd, start, end) if address else end
