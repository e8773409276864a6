"""Threads that sync files without the interpreter, compiled.

Rules: the twin is the specification. A thread here runs C only: it never touches a Python object
and never takes the interpreter's lock, so a sync neither waits for the loop nor makes it wait. The
loop asks by a condition variable (a futex) and hears by one descriptor (an eventfd): one answer is
enough for all syncs that are ready. The threads take no signals; those belong to the main thread.
A fork has none of the threads: there nothing is asked, and nothing is waited for.
"""

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free

import os

cdef extern from *:
    """
    #include <errno.h>
    #include <fcntl.h>
    #include <pthread.h>
    #include <signal.h>
    #include <stdint.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <string.h>
    #include <unistd.h>
    #ifdef __linux__
    #include <sys/eventfd.h>
    #endif

    #define OL_STACK_BYTES (256 * 1024)

    typedef struct ol_ask {
        struct ol_ask *next;
        void *owner; /* the ticket; only the interpreter's threads look at it */
        int fd;
        int error;
        int done;
    } ol_ask;

    typedef struct {
        ol_ask *first, *last;
    } ol_line;

    typedef struct {
        pthread_mutex_t lock;
        pthread_cond_t asked;    /* a thread may begin */
        pthread_cond_t answered; /* who waits for one sync may look */
        ol_line waiting, ready;
        int open; /* asked, and not taken yet */
        int watchers;
        int closing;
        int read_fd, write_fd;
        int (*call)(int fd);
        int forks;
        int threads;
        pthread_t ids[];
    } ol_disk;

    static int ol_forks; /* of how many forks this process is the end */
    static pthread_once_t ol_once = PTHREAD_ONCE_INIT;

    static void ol_forked(void) { ol_forks++; }
    static void ol_watch_forks(void) { pthread_atfork(NULL, NULL, ol_forked); }

    static void ol_push(ol_line *line, ol_ask *ask) {
        ask->next = NULL;
        if (line->last) line->last->next = ask; else line->first = ask;
        line->last = ask;
    }

    static ol_ask *ol_pop(ol_line *line) {
        ol_ask *ask = line->first;
        if (ask && !(line->first = ask->next)) line->last = NULL;
        return ask;
    }

    static int ol_fdatasync(int fd) {
        int done;
        do {
    #ifdef __APPLE__
            done = fsync(fd);
    #else
            done = fdatasync(fd);
    #endif
        } while (done != 0 && errno == EINTR);
        return done == 0 ? 0 : errno;
    }

    static void ol_tell(int fd) {
        uint64_t one = 1;
        ssize_t wrote;
    #ifdef __linux__
        do wrote = write(fd, &one, sizeof one); while (wrote < 0 && errno == EINTR);
    #else
        do wrote = write(fd, &one, 1); while (wrote < 0 && errno == EINTR);
    #endif
        (void)wrote; /* full: the loop will look anyway */
    }

    static void ol_hear(int fd) {
        char heard[64];
        while (read(fd, heard, sizeof heard) < 0 && errno == EINTR) {}
    }

    static void *ol_work(void *given) {
        ol_disk *disk = given;
        pthread_mutex_lock(&disk->lock);
        for (;;) {
            while (!disk->waiting.first && !disk->closing)
                pthread_cond_wait(&disk->asked, &disk->lock);
            ol_ask *ask = ol_pop(&disk->waiting);
            if (!ask) break;
            pthread_mutex_unlock(&disk->lock);
            int error = disk->call ? disk->call(ask->fd) : ol_fdatasync(ask->fd);
            pthread_mutex_lock(&disk->lock);
            int first = !disk->ready.first;
            ask->error = error;
            ask->done = 1;
            ol_push(&disk->ready, ask);
            if (disk->watchers) pthread_cond_broadcast(&disk->answered);
            if (first) { /* otherwise the loop will look anyway */
                pthread_mutex_unlock(&disk->lock);
                ol_tell(disk->write_fd);
                pthread_mutex_lock(&disk->lock);
            }
        }
        pthread_mutex_unlock(&disk->lock);
        return NULL;
    }

    static void ol_end(ol_disk *disk) {
        pthread_mutex_lock(&disk->lock);
        disk->closing = 1;
        pthread_cond_broadcast(&disk->asked);
        pthread_mutex_unlock(&disk->lock);
        for (int i = 0; i < disk->threads; i++) pthread_join(disk->ids[i], NULL);
        disk->threads = 0;
    }

    static void ol_free(ol_disk *disk) {
        if (disk->read_fd >= 0) close(disk->read_fd);
        if (disk->write_fd >= 0 && disk->write_fd != disk->read_fd) close(disk->write_fd);
        pthread_cond_destroy(&disk->answered);
        pthread_cond_destroy(&disk->asked);
        pthread_mutex_destroy(&disk->lock);
        free(disk);
    }

    static int ol_open_fds(ol_disk *disk) {
    #ifdef __linux__
        disk->read_fd = disk->write_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        return disk->read_fd < 0 ? -1 : 0;
    #else
        int fds[2];
        if (pipe(fds) != 0) return -1;
        disk->read_fd = fds[0];
        disk->write_fd = fds[1];
        for (int i = 0; i < 2; i++) {
            fcntl(fds[i], F_SETFD, FD_CLOEXEC);
            fcntl(fds[i], F_SETFL, O_NONBLOCK);
        }
        return 0;
    #endif
    }

    static void ol_name(pthread_t id, int number) {
    #ifdef __linux__
        char name[16];
        snprintf(name, sizeof name, "onelog-disk-%d", number % 100);
        pthread_setname_np(id, name);
    #else
        (void)id; (void)number;
    #endif
    }

    static int ol_start_threads(ol_disk *disk, int threads) {
        pthread_attr_t attributes;
        sigset_t all, before;
        int code = 0;
        sigfillset(&all);
        sigdelset(&all, SIGBUS);
        sigdelset(&all, SIGFPE);
        sigdelset(&all, SIGILL);
        sigdelset(&all, SIGSEGV);
        pthread_sigmask(SIG_SETMASK, &all, &before); /* each thread begins with this mask */
        pthread_attr_init(&attributes);
        pthread_attr_setstacksize(&attributes, OL_STACK_BYTES);
        while (disk->threads < threads) {
            pthread_t *id = &disk->ids[disk->threads];
            if ((code = pthread_create(id, &attributes, ol_work, disk)) != 0) break;
            ol_name(*id, disk->threads++);
        }
        pthread_attr_destroy(&attributes);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        return code;
    }

    /* NULL: the system has no room for it, and `*code` says why. */
    static ol_disk *ol_start(int threads, uintptr_t call, int *code) {
        ol_disk *disk = calloc(1, sizeof(ol_disk) + (size_t)threads * sizeof(pthread_t));
        if (!disk) { *code = ENOMEM; return NULL; }
        pthread_once(&ol_once, ol_watch_forks);
        pthread_mutex_init(&disk->lock, NULL);
        pthread_cond_init(&disk->asked, NULL);
        pthread_cond_init(&disk->answered, NULL);
        disk->read_fd = disk->write_fd = -1;
        disk->call = (int (*)(int))call;
        disk->forks = ol_forks;
        *code = ol_open_fds(disk) == 0 ? ol_start_threads(disk, threads) : errno;
        if (*code != 0) { ol_end(disk); ol_free(disk); return NULL; }
        return disk;
    }

    static int ol_is_mine(ol_disk *disk) { return disk->forks == ol_forks; }

    /* Whether there was room for it. */
    static int ol_add(ol_disk *disk, ol_ask *ask, int most) {
        int added = 0;
        if (!ol_is_mine(disk)) return 0;
        pthread_mutex_lock(&disk->lock);
        if (disk->open < most && !disk->closing) {
            ol_push(&disk->waiting, ask);
            disk->open++;
            added = 1;
        }
        pthread_mutex_unlock(&disk->lock);
        /* Not before: the thread that wakes up would have to wait for the lock. */
        if (added) pthread_cond_signal(&disk->asked);
        return added;
    }

    static ol_ask *ol_take(ol_disk *disk) {
        if (!ol_is_mine(disk)) return NULL;
        ol_hear(disk->read_fd);
        pthread_mutex_lock(&disk->lock);
        ol_ask *first = disk->ready.first;
        disk->ready.first = disk->ready.last = NULL;
        for (ol_ask *ask = first; ask; ask = ask->next) disk->open--;
        pthread_mutex_unlock(&disk->lock);
        return first;
    }

    static void ol_wait(ol_disk *disk, ol_ask *ask) {
        if (!ol_is_mine(disk)) return;
        pthread_mutex_lock(&disk->lock);
        disk->watchers++;
        while (!ask->done) pthread_cond_wait(&disk->answered, &disk->lock);
        disk->watchers--;
        pthread_mutex_unlock(&disk->lock);
    }
    """
    ctypedef struct ol_ask:
        ol_ask *next
        void *owner
        int fd
        int error

    ctypedef struct ol_disk:
        int read_fd
        int threads

    ol_disk *ol_start(int threads, uintptr_t call, int *code) nogil
    int ol_is_mine(ol_disk *disk) nogil
    int ol_add(ol_disk *disk, ol_ask *ask, int most) nogil
    ol_ask *ol_take(ol_disk *disk) nogil
    void ol_wait(ol_disk *disk, ol_ask *ask) nogil
    void ol_end(ol_disk *disk) nogil
    void ol_free(ol_disk *disk) nogil

from onelog.kernel import types

cdef int OPEN_MAX = types.OPEN_SYNCS_MAX
cdef object SYSTEM_FDATASYNC = getattr(os, "fdatasync", None)


cdef class SyncEnd:
    """What is to be done when a sync is over, compiled."""

    cdef int hear(self, SyncTicket ticket) except -1:
        """The sync is over; on the loop."""
        raise NotImplementedError


cdef class SyncTicket:
    """One sync that was asked for."""

    def __dealloc__(self):
        free(self.asked)

    @property
    def error(self):
        """The error number of the sync; 0: it succeeded, or it is not over."""
        return self.failure()

    cdef int failure(self) noexcept:
        return (<ol_ask *> self.asked).error

    def wait(self):
        """Block until the sync is over. Any thread may wait."""
        with nogil:
            ol_wait(<ol_disk *> self.threads.disk, <ol_ask *> self.asked)


cdef class SyncThreads:
    """A few threads, and the syncs that they are asked for."""

    def __cinit__(self, int threads, uintptr_t call=0):
        cdef int code = 0
        self.is_real = call == 0
        self.disk = ol_start(threads, call, &code)
        if self.disk is NULL:
            raise OSError(code, os.strerror(code))

    def __dealloc__(self):
        # A ticket that was not taken keeps its threads, so nothing is under way here.
        if self.disk is not NULL and ol_is_mine(<ol_disk *> self.disk):
            with nogil:
                ol_end(<ol_disk *> self.disk)
                ol_free(<ol_disk *> self.disk)

    def fileno(self):
        """The descriptor that is readable when syncs are over."""
        return (<ol_disk *> self.disk).read_fd

    def ask(self, file, done):
        """Sync a file that has a descriptor `fd`; the ticket keeps the file open. None: not now."""
        return self.begin(file, done)

    cdef SyncTicket begin(self, object file, object done):
        cdef SyncTicket ticket
        cdef ol_ask *asked
        if self.is_real and os.fdatasync is not SYSTEM_FDATASYNC:
            return None  # a test has a disk of its own
        ticket = SyncTicket.__new__(SyncTicket)
        asked = <ol_ask *> calloc(1, sizeof(ol_ask))
        if asked is NULL:
            raise MemoryError
        ticket.asked = asked
        ticket.threads = self
        ticket.file = file
        ticket.done = done
        asked.fd = file.fd
        asked.owner = <void *> ticket
        if not ol_add(<ol_disk *> self.disk, asked, OPEN_MAX):
            return None
        Py_INCREF(ticket)  # until it is taken: a thread has its address
        return ticket

    cpdef list take(self):
        """The tickets of all syncs that are over, and that nobody has taken yet."""
        cdef ol_ask *ask = ol_take(<ol_disk *> self.disk)
        cdef ol_ask *following
        cdef SyncTicket ticket
        cdef list found = []
        while ask is not NULL:
            following = ask.next
            ticket = <SyncTicket> ask.owner
            found.append(ticket)
            Py_DECREF(ticket)
            ask = following
        return found

    def answer(self, raised):
        """Call `done(ticket)` for all syncs that are over; `raised(done, error)` hears of one that
        raised."""
        cdef SyncTicket ticket
        for ticket in self.take():
            try:
                if isinstance(ticket.done, SyncEnd):
                    (<SyncEnd> ticket.done).hear(ticket)
                else:
                    ticket.done(ticket)
            except Exception as error:
                raised(ticket.done, error)

    def close(self):
        """Wait for all syncs, then end the threads. Blocks. What is over may still be taken."""
        if ol_is_mine(<ol_disk *> self.disk):
            with nogil:
                ol_end(<ol_disk *> self.disk)
