/* Sends by io_uring: many of them are one call of the system. No library, and no header of the
 * system's: those of a machine that builds may be older than the system that runs.
 *
 * Rules:
 * - A send is asked for with MSG_DONTWAIT and MSG_WAITALL, and without an answer for success. So
 *   when the call returns, each send is over: it went as a whole, or an answer says how far it came,
 *   or which error it met. The bytes are not needed any longer.
 * - Only the thread that opened a ring uses it.
 * - A ring that cannot be opened, or that does not keep the first rule, is not used at all.
 */
#ifndef ONELOG_URING_H
#define ONELOG_URING_H

#include "epoll.h"

#include <stdint.h>
#include <stdlib.h>

#define OL_RING_SENDS 256

typedef struct {
    int fd; /* -1: there is no ring */
    unsigned *sq_tail, sq_mask;
    unsigned *cq_head, *cq_tail, cq_mask;
    unsigned char *sqes, *cqes;
    void *rings, *requests;
    size_t rings_size, requests_size;
    struct msghdr *messages;
} ol_ring;

#if defined(__linux__) && !defined(__alpha__)
#include <sys/mman.h>
#include <sys/syscall.h>

#define OL_SYS_SETUP 425
#define OL_SYS_ENTER 426
#define OL_SETUP_COOP_TASKRUN (1U << 8)
#define OL_FEATURES ((1U << 0) | (1U << 1) | (1U << 11)) /* SINGLE_MMAP, NODROP, CQE_SKIP */
#define OL_CQE_SKIP_SUCCESS (1U << 6)
#define OL_OP_SENDMSG 9
#define OL_OP_SEND 26
#define OL_OFF_RINGS 0
#define OL_OFF_REQUESTS 0x10000000

typedef struct {
    uint32_t sq_entries, cq_entries, flags, cpu, idle, features, wq_fd, reserved[3];
    struct {
        uint32_t head, tail, mask, entries, flags, dropped, array, reserved;
        uint64_t user;
    } sq;
    struct {
        uint32_t head, tail, mask, entries, overflow, cqes, flags, reserved;
        uint64_t user;
    } cq;
} ol_ring_params;

typedef struct {
    uint8_t opcode, flags;
    uint16_t priority;
    int32_t fd;
    uint64_t offset, address;
    uint32_t length, message_flags;
    uint64_t user_data, rest[3];
} ol_sqe;

typedef struct {
    uint64_t user_data;
    int32_t result;
    uint32_t flags;
} ol_cqe;

static inline void ol_ring_close(ol_ring *ring) {
    if (ring->fd < 0) return;
    munmap(ring->requests, ring->requests_size);
    munmap(ring->rings, ring->rings_size);
    close(ring->fd);
    free(ring->messages);
    memset(ring, 0, sizeof *ring);
    ring->fd = -1;
}

/* Make sends that the rows describe, at most OL_RING_SENDS. */
static inline void ol_ring_send_all(ol_ring *ring, ol_sending *rows, int count) {
    unsigned tail = *ring->sq_tail, head;
    int begun = 0;
    for (int i = 0; i < count; i++) {
        ol_sending *row = &rows[i];
        ol_sqe *sqe = (ol_sqe *)ring->sqes + (tail & ring->sq_mask);
        memset(sqe, 0, sizeof *sqe);
        if (row->pieces == 1) {
            sqe->opcode = OL_OP_SEND;
            sqe->address = (uintptr_t)row->first->iov_base;
            sqe->length = row->first->iov_len;
        } else {
            struct msghdr *message = &ring->messages[i];
            memset(message, 0, sizeof *message);
            message->msg_iov = row->first;
            message->msg_iovlen = row->pieces;
            sqe->opcode = OL_OP_SENDMSG;
            sqe->address = (uintptr_t)message;
            sqe->length = 1;
        }
        sqe->flags = OL_CQE_SKIP_SUCCESS;
        sqe->fd = row->fd;
        sqe->message_flags = MSG_DONTWAIT | MSG_WAITALL | MSG_NOSIGNAL;
        sqe->user_data = i;
        row->sent = row->size;
        tail++;
    }
    __atomic_store_n(ring->sq_tail, tail, __ATOMIC_RELEASE);
    while (begun < count) {
        long done = syscall(OL_SYS_ENTER, ring->fd, count - begun, 0, 0, NULL, 0);
        if (done > 0)
            begun += done;
        else if (done == 0 || errno != EINTR)
            break;
    }
    head = __atomic_load_n(ring->cq_head, __ATOMIC_RELAXED);
    while (head != __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE)) {
        ol_cqe *cqe = (ol_cqe *)ring->cqes + (head++ & ring->cq_mask);
        ol_sending *row = &rows[cqe->user_data];
        row->sent = cqe->result;
        if (cqe->result == -EINTR) ol_send(row);
    }
    __atomic_store_n(ring->cq_head, head, __ATOMIC_RELEASE);
    if (begun < count) { /* the system took no more of them */
        __atomic_store_n(ring->sq_tail, tail - (count - begun), __ATOMIC_RELEASE);
        ol_send_all(&rows[begun], count - begun);
    }
}

/* Whether the ring keeps the first rule, over a pair of sockets. Returns an error, or 0. */
static inline int ol_ring_probe(ol_ring *ring) {
    enum { LARGE = 1 << 22 };
    int pair[2], problem = 0;
    char word[8];
    struct iovec piece[3];
    ol_sending rows[2];
    char *large = calloc(1, LARGE);
    if (large == NULL) return ENOMEM;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) {
        problem = errno;
        free(large);
        return problem;
    }
    piece[0] = (struct iovec){"ab", 2};
    piece[1] = (struct iovec){"c", 1};
    piece[2] = (struct iovec){large, LARGE};
    rows[0] = (ol_sending){pair[0], 2, piece, 3, 0};
    rows[1] = (ol_sending){pair[0], 1, &piece[2], LARGE, 0};
    ol_ring_send_all(ring, rows, 2);
    if (rows[0].sent < 0)
        problem = (int)-rows[0].sent;
    else if (rows[0].sent != 3 || recv(pair[1], word, 3, MSG_DONTWAIT) != 3 ||
             memcmp(word, "abc", 3) != 0)
        problem = EPROTO;
    else if (rows[1].sent == LARGE || (rows[1].sent < 0 && rows[1].sent != -EAGAIN))
        problem = EPROTO;
    else { /* a socket that is full */
        rows[1].sent = 0;
        ol_ring_send_all(ring, &rows[1], 1);
        if (rows[1].sent == LARGE) problem = EPROTO;
    }
    close(pair[0]);
    close(pair[1]);
    free(large);
    return problem;
}

/* Open a ring. Returns the number of the error, or 0. */
static inline int ol_ring_open(ol_ring *ring) {
    ol_ring_params params;
    unsigned char *rings;
    unsigned *places;
    int problem;
    memset(ring, 0, sizeof *ring);
    memset(&params, 0, sizeof params);
    params.flags = OL_SETUP_COOP_TASKRUN;
    ring->fd = (int)syscall(OL_SYS_SETUP, OL_RING_SENDS, &params);
    if (ring->fd < 0 && errno == EINVAL) { /* a system that does not know the flag */
        memset(&params, 0, sizeof params);
        ring->fd = (int)syscall(OL_SYS_SETUP, OL_RING_SENDS, &params);
    }
    if (ring->fd < 0) {
        problem = errno;
        ring->fd = -1;
        return problem;
    }
    if ((params.features & OL_FEATURES) != OL_FEATURES) {
        close(ring->fd);
        ring->fd = -1;
        return ENOSYS;
    }
    ring->rings_size = params.sq.array + params.sq_entries * sizeof(unsigned);
    if (ring->rings_size < params.cq.cqes + params.cq_entries * sizeof(ol_cqe))
        ring->rings_size = params.cq.cqes + params.cq_entries * sizeof(ol_cqe);
    ring->requests_size = params.sq_entries * sizeof(ol_sqe);
    ring->rings = mmap(NULL, ring->rings_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                       ring->fd, OL_OFF_RINGS);
    ring->requests = mmap(NULL, ring->requests_size, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_POPULATE, ring->fd, OL_OFF_REQUESTS);
    ring->messages = malloc(OL_RING_SENDS * sizeof *ring->messages);
    if (ring->rings == MAP_FAILED || ring->requests == MAP_FAILED || ring->messages == NULL) {
        if (ring->rings != MAP_FAILED) munmap(ring->rings, ring->rings_size);
        if (ring->requests != MAP_FAILED) munmap(ring->requests, ring->requests_size);
        free(ring->messages);
        close(ring->fd);
        ring->fd = -1;
        return ENOMEM;
    }
    madvise(ring->rings, ring->rings_size, MADV_DONTFORK);
    madvise(ring->requests, ring->requests_size, MADV_DONTFORK);
    rings = ring->rings;
    ring->sq_tail = (unsigned *)(rings + params.sq.tail);
    ring->sq_mask = *(unsigned *)(rings + params.sq.mask);
    ring->cq_head = (unsigned *)(rings + params.cq.head);
    ring->cq_tail = (unsigned *)(rings + params.cq.tail);
    ring->cq_mask = *(unsigned *)(rings + params.cq.mask);
    ring->cqes = rings + params.cq.cqes;
    ring->sqes = ring->requests;
    places = (unsigned *)(rings + params.sq.array);
    for (unsigned i = 0; i < params.sq_entries; i++) places[i] = i;
    problem = ol_ring_probe(ring);
    if (problem) ol_ring_close(ring);
    return problem;
}

#else
static inline void ol_ring_close(ol_ring *ring) { (void)ring; }
static inline int ol_ring_open(ol_ring *ring) {
    (void)ring;
    return ENOSYS;
}
static inline void ol_ring_send_all(ol_ring *ring, ol_sending *rows, int count) {
    (void)ring;
    ol_send_all(rows, count);
}
#endif

#endif
