/* Calls of the system for sockets: an epoll set, and sends that are described first and made later.
 *
 * Where there is no epoll, a set cannot be made, and nothing else here is called.
 */
#ifndef ONELOG_EPOLL_H
#define ONELOG_EPOLL_H

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

#ifdef __linux__
#include <sys/epoll.h>
#else
#define EPOLLIN 1
#define EPOLLOUT 4
#define EPOLL_CTL_ADD 1
#define EPOLL_CTL_DEL 2
#define EPOLL_CTL_MOD 3
#define EPOLL_CLOEXEC 0
struct epoll_event {
    unsigned events;
    union {
        void *ptr;
    } data;
};
static inline int epoll_create1(int flags) {
    (void)flags;
    errno = ENOSYS;
    return -1;
}
static inline int epoll_ctl(int set, int what, int fd, struct epoll_event *event) {
    (void)set, (void)what, (void)fd, (void)event;
    errno = ENOSYS;
    return -1;
}
static inline int accept4(int fd, struct sockaddr *found, socklen_t *size, int flags) {
    (void)fd, (void)found, (void)size, (void)flags;
    errno = ENOSYS;
    return -1;
}
#define SOCK_NONBLOCK 0
#define SOCK_CLOEXEC 0
static inline int epoll_wait(int set, struct epoll_event *events, int most, int ms) {
    (void)set, (void)events, (void)most, (void)ms;
    errno = ENOSYS;
    return -1;
}
#endif

typedef struct {
    int fd;
    int pieces;
    struct iovec *first;
    ssize_t size; /* bytes of the pieces */
    ssize_t sent; /* bytes that the system took; negative: the number of the error */
} ol_sending;

typedef struct {
    char host[64];
    unsigned port;
    unsigned flow;
    unsigned scope;
    int is_ip6;
} ol_peer;

/* Accept a connection. Returns its socket, or -1: nothing is there any more, or see errno. */
static inline int ol_accept(int listening, ol_peer *peer) {
    struct sockaddr_storage found;
    socklen_t size = sizeof found;
    int fd = accept4(listening, (struct sockaddr *)&found, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return -1;
    memset(peer, 0, sizeof *peer);
    if (found.ss_family == AF_INET) {
        peer->port = ntohs(((struct sockaddr_in *)&found)->sin_port);
    } else if (found.ss_family == AF_INET6) {
        struct sockaddr_in6 *ip6 = (struct sockaddr_in6 *)&found;
        peer->is_ip6 = 1;
        peer->port = ntohs(ip6->sin6_port);
        peer->flow = ntohl(ip6->sin6_flowinfo);
        peer->scope = ip6->sin6_scope_id;
    }
    if (getnameinfo((struct sockaddr *)&found, size, peer->host, sizeof peer->host, NULL, 0,
                    NI_NUMERICHOST) != 0) {
        close(fd);
        errno = ECONNABORTED;
        return -1;
    }
    return fd;
}

/* Change what a set watches a socket for. Returns the number of the error, or 0. */
static inline int ol_watch(int set, int what, int fd, unsigned events, void *owner) {
    struct epoll_event event;
    memset(&event, 0, sizeof event);
    event.events = events;
    event.data.ptr = owner;
    return epoll_ctl(set, what, fd, &event) == 0 ? 0 : errno;
}

static inline void ol_send(ol_sending *row) {
    ssize_t sent;
    do {
        if (row->pieces == 1) {
            sent = send(row->fd, row->first->iov_base, row->first->iov_len,
                        MSG_DONTWAIT | MSG_NOSIGNAL);
        } else {
            struct msghdr message;
            memset(&message, 0, sizeof message);
            message.msg_iov = row->first;
            message.msg_iovlen = row->pieces;
            sent = sendmsg(row->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        }
    } while (sent < 0 && errno == EINTR);
    row->sent = sent < 0 ? -errno : sent;
}

static inline void ol_send_all(ol_sending *rows, int count) {
    for (int i = 0; i < count; i++) ol_send(&rows[i]);
}

#endif
