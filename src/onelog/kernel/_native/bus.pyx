"""Pages of mapped files that cannot be read: zeros take their place, and the reader is told.

Why: touching a page that the disk does not give, or that the file no longer has, raises SIGBUS,
which ends the process.
Rules: only maps that are watched are looked after. In one of them, the handler puts a page of
zeros where the page was, notes the map as failed and counts; the read goes on with zeros. A fault
anywhere else goes to the handler that was there before. The handler calls nothing but `mmap`, takes
no lock and allocates nothing. Whoever reads a watched map compares `bus_faults` before it believes
what it read, or has a CRC for it.
"""

from libc.stdint cimport uintptr_t

cdef extern from *:
    """
    #include <errno.h>
    #include <signal.h>
    #include <stdatomic.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <sys/mman.h>
    #include <unistd.h>

    #ifndef MAP_ANONYMOUS
    #define MAP_ANONYMOUS MAP_ANON
    #endif
    #define OL_SLOTS 1024

    typedef struct {
        _Atomic uintptr_t address; /* 0: nobody has the slot */
        _Atomic size_t size;
        atomic_int failed;
    } ol_slot;

    typedef struct ol_chunk {
        ol_slot slots[OL_SLOTS];
        _Atomic(struct ol_chunk *) next;
    } ol_chunk;

    static ol_chunk ol_chunks; /* further ones are never freed: the handler may be in them */
    static atomic_long ol_faults;
    static struct sigaction ol_before;
    static uintptr_t ol_page;

    static void ol_on_bus(int number, siginfo_t *info, void *context) {
        (void)number; (void)context;
        int kept = errno;
        uintptr_t at = (uintptr_t)info->si_addr;
        for (ol_chunk *chunk = &ol_chunks; chunk; chunk = atomic_load(&chunk->next)) {
            for (int i = 0; i < OL_SLOTS; i++) {
                ol_slot *slot = &chunk->slots[i];
                uintptr_t start = atomic_load(&slot->address);
                if (!start || at < start || at - start >= atomic_load(&slot->size)) continue;
                void *page = (void *)(at & ~(ol_page - 1));
                if (mmap(page, ol_page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                         -1, 0) == MAP_FAILED) break;
                atomic_store(&slot->failed, 1);
                atomic_fetch_add(&ol_faults, 1);
                errno = kept;
                return;
            }
        }
        sigaction(SIGBUS, &ol_before, NULL); /* not ours: it faults again, and that one decides */
        errno = kept;
    }

    static int ol_install(void) {
        struct sigaction ours = {0};
        ol_page = (uintptr_t)sysconf(_SC_PAGESIZE);
        ours.sa_sigaction = ol_on_bus;
        ours.sa_flags = SA_SIGINFO;
        sigemptyset(&ours.sa_mask);
        return sigaction(SIGBUS, &ours, &ol_before);
    }

    static ol_slot *ol_at(long number) {
        ol_chunk *chunk = &ol_chunks;
        for (; chunk && number >= OL_SLOTS; number -= OL_SLOTS) chunk = atomic_load(&chunk->next);
        return chunk ? &chunk->slots[number] : NULL;
    }

    /* The interpreter's lock is held. */
    static long ol_watch(uintptr_t address, size_t size) {
        long first = 0;
        for (ol_chunk *chunk = &ol_chunks;; first += OL_SLOTS) {
            for (int i = 0; i < OL_SLOTS; i++) {
                ol_slot *slot = &chunk->slots[i];
                if (atomic_load(&slot->address)) continue;
                atomic_store(&slot->failed, 0);
                atomic_store(&slot->size, size);
                atomic_store(&slot->address, address);
                return first + i;
            }
            ol_chunk *next = atomic_load(&chunk->next);
            if (!next) {
                next = calloc(1, sizeof(ol_chunk));
                if (!next) return -1;
                atomic_store(&chunk->next, next);
            }
            chunk = next;
        }
    }

    static void ol_forget(long number) {
        ol_slot *slot = ol_at(number);
        if (slot) atomic_store(&slot->address, 0);
    }

    static int ol_failed(long number) {
        ol_slot *slot = ol_at(number);
        return slot ? atomic_load(&slot->failed) : 0;
    }

    static long ol_count(void) { return atomic_load(&ol_faults); }
    """
    int ol_install() nogil
    long ol_watch(uintptr_t address, size_t size)
    void ol_forget(long number)
    int ol_failed(long number)
    long ol_count()

cdef bint _installed = False


def watch_map(uintptr_t address, size_t size):
    """Look after a map; its number, or -1 when that cannot be done. `forget_map` before it goes."""
    global _installed
    if not _installed:
        if ol_install() != 0:
            return -1
        _installed = True
    return ol_watch(address, size)


def forget_map(long number):
    """A map goes."""
    if number >= 0:
        ol_forget(number)


def map_failed(long number):
    """Whether a page of a map could not be read, and zeros lie there now."""
    return number >= 0 and ol_failed(number) != 0


def bus_faults():
    """How many pages could not be read since the process began."""
    return ol_count()
