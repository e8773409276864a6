"""C face of `epoll.h`: the system's calls for sockets."""

from libc.stdint cimport uint32_t

cdef extern from "epoll.h":
    cdef enum:
        EPOLLIN
        EPOLLOUT
        EPOLL_CTL_ADD
        EPOLL_CTL_DEL
        EPOLL_CTL_MOD
        EPOLL_CLOEXEC
        MSG_DONTWAIT
        SHUT_WR
    ctypedef union epoll_data:
        void *ptr
    cdef struct epoll_event:
        uint32_t events
        epoll_data data
    cdef struct iovec:
        void *iov_base
        size_t iov_len
    ctypedef struct ol_sending:
        int fd
        int pieces
        iovec *first
        Py_ssize_t size
        Py_ssize_t sent
    ctypedef struct ol_peer:
        char host[64]
        unsigned port
        unsigned flow
        unsigned scope
        int is_ip6
    int ol_accept(int listening, ol_peer *peer)
    int epoll_create1(int flags)
    int epoll_wait(int fd, epoll_event *events, int most, int ms)
    int ol_watch(int fd, int what, int socket, unsigned events, void *owner)
    void ol_send(ol_sending *row) nogil
    void ol_send_all(ol_sending *rows, int count) nogil
    ssize_t recv(int fd, void *buffer, size_t size, int flags) nogil
    int shutdown(int fd, int how)
    int close_fd "close"(int fd)
