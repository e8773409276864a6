"""Accepts a connection, in C. Inlined."""

from libc.errno cimport EAGAIN, ECONNABORTED, EINTR, errno

from onelog.kernel._native.epoll cimport ol_accept, ol_peer


cdef inline object accept_socket(int listening, int *problem):
    """A connection's descriptor and its peer's address, as `socket.accept` has it; None: there is
    no connection, or see `problem`."""
    cdef ol_peer peer
    cdef int fd = ol_accept(listening, &peer)
    if fd < 0:
        if errno != EAGAIN and errno != EINTR and errno != ECONNABORTED:
            problem[0] = errno
        return None
    if peer.is_ip6:
        return fd, (peer.host.decode(), peer.port, peer.flow, peer.scope)
    return fd, (peer.host.decode(), peer.port)
