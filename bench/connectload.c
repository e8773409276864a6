/* connectload.c - opens MQTT connections, so many at once.   gcc -O2 -o connectload connectload.c
 *   one after the other:   connectload -p 1883 -c BROKER_PID -n 4000 -k 1
 *   50 at once:            connectload -k 50
 *   kept sessions:         connectload -k 50 -s    (version 5, clean start 0, expiry 3600 s)
 *   sessions come back:    connectload -k 50 -s -N NAME twice    (with -e: sessions that never expire)
 *   with wills:            connectload -w
 * A connection is TCP, CONNECT and its CONNACK; all stay open to the end, then all send DISCONNECT.
 * One JSON line on stdout: connections per second, the broker's CPU for each, answers by what they were. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef struct { int fd, stage, got; unsigned char in[256]; } conn;
enum { CONNECTING, ASKED, ACCEPTED };

static int port = 1883, count = 4000, at_once = 1, pid, kept, for_ever, with_will, leave = 1;
static char name[64];
static conn *conns;
static int ep, begun, done, present;

static uint64_t now_ns(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000ull + t.tv_nsec; }

static double cpu_s(void) {
    char path[64], line[1024]; unsigned long user = 0, system = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r"); if (!f) return 0;
    if (fgets(line, sizeof line, f)) sscanf(strrchr(line, ')') + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system);
    fclose(f); return (double)(user + system) / sysconf(_SC_CLK_TCK);
}

static int packet_of(int index, unsigned char *out) {
    char id[96]; unsigned char body[300]; int n = snprintf(id, sizeof id, "%s-%d", name, index), at = 0;
    int version = kept ? 5 : 4;
    memcpy(body, "\0\4MQTT", 6); at = 6;
    body[at++] = version; body[at++] = (kept ? 0 : 2) | (with_will ? 4 : 0); body[at++] = 0; body[at++] = 60;
    if (kept) { memcpy(body + at, for_ever ? "\5\x11\xff\xff\xff\xff" : "\5\x11\0\0\x0e\x10", 6); at += 6; }
    body[at++] = n >> 8; body[at++] = n; memcpy(body + at, id, n); at += n;
    if (with_will) {
        if (kept) body[at++] = 0;
        memcpy(body + at, "\0\6will/t\0\4gone", 14); at += 14;
    }
    out[0] = 0x10; out[1] = at; memcpy(out + 2, body, at); return at + 2;
}

static void fail(const char *why) { fprintf(stderr, "connectload: %s: %s\n", why, strerror(errno)); exit(1); }

static void begin(void) {
    int index = begun++, yes = 1; conn *c = &conns[index];
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)}; a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0); if (c->fd < 0) fail("socket");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (connect(c->fd, (void *)&a, sizeof a) && errno != EINPROGRESS) fail("connect");
    struct epoll_event e = {.events = EPOLLOUT, .data.u32 = index};
    if (epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e)) fail("epoll_ctl");
}

static void ready(int index) {
    conn *c = &conns[index];
    if (c->stage == CONNECTING) {
        unsigned char out[400]; int n = packet_of(index, out), error = 0; socklen_t size = sizeof error;
        getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size);
        if (error) { errno = error; fail("connect"); }
        if (write(c->fd, out, n) != n) fail("write");
        struct epoll_event e = {.events = EPOLLIN, .data.u32 = index};
        epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e); c->stage = ASKED; return;
    }
    ssize_t n = read(c->fd, c->in + c->got, sizeof c->in - c->got);
    if (n <= 0) { if (n < 0 && errno == EAGAIN) return; fail("the broker closed a connection"); }
    if (c->stage == ACCEPTED) return;
    c->got += n;
    if (c->got < 2 || c->got < 2 + c->in[1]) return;
    if (c->in[0] != 0x20 || c->in[3]) { fprintf(stderr, "connectload: CONNACK refused: %d\n", c->in[3]); exit(1); }
    present += c->in[2] & 1; c->stage = ACCEPTED; done++;
    if (begun < count) begin();
}

int main(int argc, char **argv) {
    int opt; snprintf(name, sizeof name, "c%d", getpid());
    while ((opt = getopt(argc, argv, "p:n:k:c:N:sewl")) != -1) switch (opt) {
        case 'p': port = atoi(optarg); break; case 'n': count = atoi(optarg); break; case 'k': at_once = atoi(optarg); break;
        case 'c': pid = atoi(optarg); break; case 'N': snprintf(name, sizeof name, "%s", optarg); break;
        case 's': kept = 1; break; case 'e': for_ever = 1; break; case 'w': with_will = 1; break; case 'l': leave = 0; break;
        default: fprintf(stderr, "connectload [-p port] [-n count] [-k at once] [-c pid] [-N name] [-s kept] [-e never expires] [-w will] [-l leave without DISCONNECT]\n"); return 2;
    }
    conns = calloc(count, sizeof *conns); ep = epoll_create1(0);
    double before = cpu_s(); uint64_t start = now_ns();
    while (begun < at_once && begun < count) begin();
    while (done < count) {
        struct epoll_event events[256]; int n = epoll_wait(ep, events, 256, 20000);
        if (n <= 0) { errno = ETIMEDOUT; fail("no answer"); }
        for (int i = 0; i < n; i++) ready(events[i].data.u32);
    }
    double took = (now_ns() - start) / 1e9, cpu = cpu_s() - before;
    for (int i = 0; i < count; i++) { if (leave && write(conns[i].fd, "\xe0\0", 2) != 2) fail("write"); close(conns[i].fd); }
    printf("{\"conn_per_s\":%.0f,\"cpu_us_per_conn\":%.1f,\"present\":%d,\"count\":%d}\n", count / took, cpu * 1e6 / count, present, count);
    return 0;
}
