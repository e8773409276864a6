/* viewload.c - publishers of one protocol, subscribers of all of them, on one broker.   gcc -O2 -msse4.2 -o viewload viewload.c
 *   -X "pub=M subs=MKA ports=1883:9092:5672 topic=plant"     ports of MQTT, Kafka and AMQP; wait=<ms> of a fetch
 * A letter is a client: M an MQTT session that stays, QoS 1; K a Kafka group that commits every second; A a durable AMQP
 * queue bound to amq.topic, acked; m and k view everything below the topic, without any state of their own in the broker.
 * Publisher i writes to <topic>/<i>/telemetry. Subscribers take all of them, or with -x subscriber i only that one.
 * QoS 1, acks of all, confirms: every message is answered. See loadcore.h for the other options. */
#include <nmmintrin.h>
#define PORT_OF(c) port_of(c)
struct conn;
static int port_of(struct conn *c);
#include "loadcore.h"

enum { CLIENTS_MAX = 1000, FETCH_BYTES = 128 << 10, COMMIT_NS = 1000000000 };
static char publisher = 'M', kinds[CLIENTS_MAX + 1] = "", root[64] = "plant"; static int ports[3], wait_ms = 500, parsed;
typedef struct { int n; int64_t at[256]; char name[256], member[256]; int generation; uint64_t committed; } reader; /* of a Kafka topic */
static reader readers[CLIENTS_MAX];
enum { PRODUCE = 0, FETCH = 1, OFFSETS = 2, METADATA = 3, COMMIT = 8, JOIN = 11, SYNC = 14 };

static const char *proto_usage(void) { return "-X pub=M|K|A subs=<letters> ports=<mqtt>:<kafka>:<amqp> topic=<root> wait=<ms of a fetch>\n"; }
static void parse_extra(void) {
    if (parsed++) return;
    char t[CLIENTS_MAX + 256], *s, *save; snprintf(t, sizeof t, "%s", o.extra);
    for (s = strtok_r(t, " ", &save); s; s = strtok_r(NULL, " ", &save)) {
        if (!strcmp(s, "subs=") || sscanf(s, "pub=%c", &publisher) == 1 || sscanf(s, "subs=%1000s", kinds) == 1 || sscanf(s, "topic=%63s", root) == 1 || sscanf(s, "wait=%d", &wait_ms) == 1) continue;
        if (sscanf(s, "ports=%d:%d:%d", ports, ports + 1, ports + 2) != 3) { fprintf(stderr, "-X: %s\n%s", s, proto_usage()); exit(1); }
    }
    if (strspn(kinds, "MKAmk") != strlen(kinds) || (int)strlen(kinds) != o.nsub) { fprintf(stderr, "-X subs: as many of MKAmk as -S says\n"); exit(1); }
}
static char kind(conn *c) { parse_extra(); return c->is_sub ? kinds[c->idx] : publisher; }
static int port_of(conn *c) { switch (kind(c)) { case 'M': case 'm': return ports[0]; case 'K': case 'k': return ports[1]; default: return ports[2]; } }
/* The address of a client as its protocol writes it; one and rest are its wildcards. */
static size_t address(conn *c, char *t, char slash, const char *one, const char *rest) {
    if (c->is_sub && strchr("mk", kind(c))) return sprintf(t, "%s%c%s", root, slash, rest);
    if (c->is_sub && !o.pairs) return sprintf(t, "%s%c%s%ctelemetry", root, slash, one, slash);
    return sprintf(t, "%s%c%d%ctelemetry", root, slash, c->idx, slash);
}
static void text16(conn *c, const char *s) { size_t n = strlen(s); put16(c, n); put(c, s, n); }
static void own_name(conn *c, char *t) { sprintf(t, "%s-%s%d", root, c->is_sub ? "v" : "p", c->idx); }
static void put_payload(conn *c, conn *x) { c->poff = x->out_len; memset(reserve(x, o.payload), 'x', o.payload); x->out_len += o.payload; }
static void refused(conn *c, const char *what) { fprintf(stderr, "%c%d: %s was refused\n", kind(c), c->idx, what); exit(1); }

/* -- MQTT 3.1.1 */
static void put_rl(conn *c, size_t n) { do { unsigned b = n & 127; n >>= 7; put8(c, b | (n ? 128 : 0)); } while (n); }
static void mqtt_open(conn *c) {
    char id[96], t[128]; uint8_t r[8]; own_name(c, id);
    put8(c, 0x10); put_rl(c, 12 + strlen(id)); text16(c, "MQTT"); put8(c, 4); put8(c, kind(c) == 'M' && c->is_sub ? 0 : 2); put16(c, 0); text16(c, id);
    flush_blocking(c); rd_exact(c, r, 4);
    if (r[0] != 0x20 || r[3]) refused(c, "CONNECT");
    if (!c->is_sub) return;
    size_t tl = address(c, t, '/', "+", "#");
    put8(c, 0x82); put_rl(c, 2 + 2 + tl + 1); put16(c, 1); text16(c, t); put8(c, kind(c) == 'M');
    flush_blocking(c); rd_exact(c, r, 5);
    if (r[0] != 0x90 || r[4] == 0x80) refused(c, "SUBSCRIBE");
}
static void mqtt_template(conn *c, conn *x) {
    char t[128]; size_t tl = address(c, t, '/', "", "");
    put8(x, 0x32); put_rl(x, 2 + tl + 2 + o.payload); text16(x, t); put16(x, 0); put_payload(c, x);
}
static size_t mqtt_parse(conn *c, char *b, size_t n, uint64_t now) {
    uint8_t *p = (uint8_t *)b, *e = p + n;
    while (e - p >= 2) {
        size_t rl = p[1] & 127, h = 2;
        if (p[1] & 128) { int sh = 7; for (;; sh += 7) { if (p + h >= e) return (char *)p - b; uint8_t x = p[h++]; rl |= (size_t)(x & 127) << sh; if (!(x & 128)) break; } }
        if ((size_t)(e - p) < h + rl) break;
        uint8_t *q = p + h, ty = *p >> 4;
        if (ty == 3) {
            size_t off = 2 + (q[0] << 8 | q[1]);
            if ((*p >> 1) & 3) { put8(c, 0x40); put8(c, 2); put(c, q + off, 2); off += 2; }
            on_msg(c, (char *)q + off, rl - off, now);
        } else if (ty == 4) on_ack(c, 1);
        p += h + rl;
    }
    return (char *)p - b;
}

/* -- Kafka: versions before the flexible ones */
static uint32_t g32(const char *p) { uint32_t v; memcpy(&v, p, 4); return ntohl(v); }
static int16_t g16(const char *p) { uint16_t v; memcpy(&v, p, 2); return ntohs(v); }
static int64_t g64(const char *p) { return (int64_t)((uint64_t)g32(p) << 32 | g32(p + 4)); }
static uint32_t crc(const char *p, size_t n) { uint64_t v, k = 0xffffffff; for (; n >= 8; n -= 8, p += 8) { memcpy(&v, p, 8); k = _mm_crc32_u64(k, v); } while (n--) k = _mm_crc32_u8(k, *p++); return (uint32_t)k ^ 0xffffffff; }
static void put_vi(conn *c, int64_t v) { uint64_t z = (uint64_t)v << 1 ^ (uint64_t)(v >> 63); while (z > 127) { put8(c, z | 128); z >>= 7; } put8(c, z); }
static int64_t get_vi(const char **p) { uint64_t z = 0; int s = 0; uint8_t b; do { b = *(*p)++; z |= (uint64_t)(b & 127) << s; s += 7; } while (b & 128); return (int64_t)(z >> 1) ^ -(int64_t)(z & 1); }
static size_t ask(conn *c, int api, int version) { size_t at = c->out_len; put32(c, 0); put16(c, api); put16(c, version); put32(c, api); text16(c, "views"); return at; }
static void asked(conn *c, size_t at) { uint32_t n = htonl(c->out_len - at - 4); memcpy(c->out + at, &n, 4); }
static char *answer(conn *c) {                       /* behind the correlation id; nobody frees what is asked once */
    char l[4]; flush_blocking(c); rd_exact(c, l, 4); char *m = malloc(g32(l)); rd_exact(c, m, g32(l)); return m + 4;
}
static void put_bytes(conn *c, const void *p, size_t n) { put32(c, n); put(c, p, n); }
static void kafka_fetch(conn *c) {
    reader *r = &readers[c->idx]; size_t a = ask(c, FETCH, 4);
    put32(c, -1); put32(c, wait_ms); put32(c, 1); put32(c, FETCH_BYTES); put8(c, 0); put32(c, 1); text16(c, r->name); put32(c, r->n);
    for (int i = 0; i < r->n; i++) { put32(c, i); put64(c, r->at[i]); put32(c, FETCH_BYTES / r->n); }
    asked(c, a);
}
static void kafka_commit(conn *c) {
    char id[96]; own_name(c, id); reader *r = &readers[c->idx]; size_t a = ask(c, COMMIT, 2);
    text16(c, id); put32(c, r->generation); text16(c, r->member); put64(c, -1); put32(c, 1); text16(c, r->name); put32(c, r->n);
    for (int i = 0; i < r->n; i++) { put32(c, i); put64(c, r->at[i]); text16(c, ""); }
    asked(c, a);
}
static void kafka_join(conn *c, reader *r) {         /* alone in its group, so it leads and takes everything */
    char id[96], *m; own_name(c, id); conn x = {0};
    size_t a = ask(c, JOIN, 2); text16(c, id); put32(c, 300000); put32(c, 5000); text16(c, ""); text16(c, "consumer"); put32(c, 1); text16(c, "range");
    put16(&x, 0); put32(&x, 1); text16(&x, r->name); put32(&x, 0); put_bytes(c, x.out, x.out_len); asked(c, a); m = answer(c);
    if (g16(m + 4)) refused(c, "JoinGroup");
    r->generation = g32(m + 6); m += 10; m += 2 + g16(m); m += 2 + g16(m); snprintf(r->member, sizeof r->member, "%.*s", g16(m), m + 2);
    a = ask(c, SYNC, 1); text16(c, id); put32(c, r->generation); text16(c, r->member); put32(c, 1); text16(c, r->member); x.out_len = 0;
    put16(&x, 0); put32(&x, 1); text16(&x, r->name); put32(&x, r->n); for (int i = 0; i < r->n; i++) put32(&x, i); put32(&x, 0);
    put_bytes(c, x.out, x.out_len); asked(c, a); m = answer(c);
    if (g16(m + 4)) refused(c, "SyncGroup");
    free(x.out);
}
static void kafka_open(conn *c) {
    reader *r = &readers[c->idx], mine; if (!c->is_sub) r = &mine;
    address(c, r->name, '.', "_x2B_", "_x23_");
    size_t a = ask(c, METADATA, 4); put32(c, 1); text16(c, r->name); put8(c, 1); asked(c, a);
    char *m = answer(c) + 4; int brokers = g32(m); m += 4;
    while (brokers--) { m += 4; m += 2 + g16(m); m += 4; int n = g16(m); m += 2 + (n > 0 ? n : 0); }
    int n = g16(m); m += 2 + (n > 0 ? n : 0) + 4 + 4;
    if (g16(m)) refused(c, r->name);
    m += 2; m += 2 + g16(m) + 1; r->n = g32(m);
    if (!c->is_sub) return;
    if (r->n > 256) refused(c, "more than 256 partitions");
    a = ask(c, OFFSETS, 1); put32(c, -1); put32(c, 1); text16(c, r->name); put32(c, r->n);
    for (int i = 0; i < r->n; i++) { put32(c, i); put64(c, -1); }
    asked(c, a); m = answer(c) + 4; m += 2 + g16(m) + 4;
    for (int i = 0; i < r->n; i++, m += 22) { if (g16(m + 4)) refused(c, "ListOffsets"); r->at[g32(m)] = g64(m + 14); }
    if (kind(c) == 'K') kafka_join(c, r);
    kafka_fetch(c); flush_blocking(c);
}
static void kafka_template(conn *c, conn *x) {
    char t[128]; address(c, t, '.', "", ""); conn r = {0};
    size_t a = ask(x, PRODUCE, 7); put16(x, -1); put16(x, -1); put32(x, 30000); put32(x, 1); text16(x, t); put32(x, 1); put32(x, 0);
    put8(&r, 0); put_vi(&r, 0); put_vi(&r, 0); put_vi(&r, -1); put_vi(&r, o.payload); uint64_t ms = (uint64_t)time(0) * 1000;
    size_t whole = r.out_len + o.payload + 1; conn l = {0}; put_vi(&l, whole);
    put32(x, 61 + l.out_len + whole); size_t b = x->out_len;
    put64(x, 0); put32(x, 49 + l.out_len + whole); put32(x, 0); put8(x, 2); put32(x, 0); put16(x, 0); put32(x, 0); put64(x, ms); put64(x, ms);
    put64(x, -1); put16(x, -1); put32(x, -1); put32(x, 1); put(x, l.out, l.out_len); put(x, r.out, r.out_len);
    put_payload(c, x); put8(x, 0); asked(x, a); c->tag = b;
    free(r.out); free(l.out);
}
static void kafka_records(conn *c, int partition, const char *p, const char *e, uint64_t now) {
    reader *r = &readers[c->idx];
    while (e - p >= 61) {
        const char *next = p + 12 + g32(p + 8), *q = p + 61; int64_t base = g64(p); int count = g32(p + 57), is_control = g16(p + 21) & 32;
        if (next > e) break;
        if (g16(p + 21) & 7) refused(c, "a compressed batch");
        for (int i = 0; i < count && !is_control; i++) {
            int64_t size = get_vi(&q); const char *end = q + size; q++; get_vi(&q); int64_t at = base + get_vi(&q), n = get_vi(&q);
            if (n > 0) q += n;
            n = get_vi(&q);
            if (at >= r->at[partition]) { on_msg(c, q, n, now); r->at[partition] = at + 1; }
            q = end;
        }
        int64_t last = base + g32(p + 23) + 1; if (last > r->at[partition]) r->at[partition] = last;
        p = next;
    }
}
static void kafka_fetched(conn *c, char *m, uint64_t now) {
    m += 8; m += 2 + g16(m); int n = g32(m); m += 4;
    while (n--) {
        int partition = g32(m); if (g16(m + 4)) refused(c, "Fetch");
        m += 22; int aborted = g32(m); m += 4 + (aborted > 0 ? 16 * aborted : 0); int size = g32(m); m += 4;
        if (size > 0) { kafka_records(c, partition, m, m + size, now); m += size; }
    }
    reader *r = &readers[c->idx];
    if (kind(c) == 'K' && now - r->committed > COMMIT_NS) { r->committed = now; kafka_commit(c); }
    kafka_fetch(c);
}
static size_t kafka_parse(conn *c, char *b, size_t n, uint64_t now) {
    size_t at = 0;
    while (n - at >= 4 && n - at - 4 >= g32(b + at)) {
        char *m = b + at + 4; at += 4 + g32(b + at);
        switch (g32(m)) {
            case FETCH: kafka_fetched(c, m + 4, now); break;
            case PRODUCE: m += 8; m += 2 + g16(m); if (g16(m + 8)) refused(c, "Produce"); on_ack(c, 1); break;
            case COMMIT: m += 8; m += 2 + g16(m); if (g16(m + 8)) refused(c, "OffsetCommit"); break;
        }
    }
    return at;
}

/* -- AMQP 0-9-1 */
static void text8(conn *c, const char *s) { size_t n = strlen(s); put8(c, n); put(c, s, n); }
static size_t frame(conn *c, int type, int ch) { put8(c, type); put16(c, ch); size_t at = c->out_len; put32(c, 0); return at; }
static void framed(conn *c, size_t at) { uint32_t n = htonl(c->out_len - at - 4); memcpy(c->out + at, &n, 4); put8(c, 0xCE); }
static size_t method(conn *c, int ch, int cls, int m) { size_t a = frame(c, 1, ch); put16(c, cls); put16(c, m); return a; }
static void await(conn *c, int cls, int m) {
    uint8_t h[7]; static uint8_t b[1 << 17]; flush_blocking(c);
    for (;;) {
        rd_exact(c, h, 7); rd_exact(c, b, (h[3] << 24 | h[4] << 16 | h[5] << 8 | h[6]) + 1);
        int k = b[0] << 8 | b[1], x = b[2] << 8 | b[3];
        if (h[0] == 1 && k == cls && x == m) return;
        if (h[0] == 1 && ((k == 10 && x == 50) || (k == 20 && x == 40))) { fprintf(stderr, "%.*s\n", (int)b[6], b + 7); refused(c, "a method"); }
    }
}
static void amqp_open(conn *c) {
    size_t a; char q[96], t[128]; own_name(c, q);
    put(c, "AMQP\0\0\x09\x01", 8); await(c, 10, 10);
    a = method(c, 0, 10, 11); put32(c, 0); text8(c, "PLAIN"); put32(c, 12); put(c, "\0guest\0guest", 12); text8(c, "en_US"); framed(c, a); await(c, 10, 30);
    a = method(c, 0, 10, 31); put16(c, 2047); put32(c, 131072); put16(c, 0); framed(c, a);
    a = method(c, 0, 10, 40); text8(c, "/"); put8(c, 0); put8(c, 0); framed(c, a); await(c, 10, 41);
    a = method(c, 1, 20, 10); put8(c, 0); framed(c, a); await(c, 20, 11);
    if (!c->is_sub) { a = method(c, 1, 85, 10); put8(c, 0); framed(c, a); await(c, 85, 11); return; }
    address(c, t, '.', "*", "#");
    a = method(c, 1, 50, 10); put16(c, 0); text8(c, q); put8(c, 2); put32(c, 0); framed(c, a); await(c, 50, 11);
    a = method(c, 1, 50, 20); put16(c, 0); text8(c, q); text8(c, "amq.topic"); text8(c, t); put8(c, 0); put32(c, 0); framed(c, a); await(c, 50, 21);
    a = method(c, 1, 60, 10); put32(c, 0); put16(c, 1000); put8(c, 0); framed(c, a); await(c, 60, 11);
    a = method(c, 1, 60, 20); put16(c, 0); text8(c, q); text8(c, "t"); put8(c, 0); put32(c, 0); framed(c, a); await(c, 60, 21);
}
static void amqp_template(conn *c, conn *x) {
    char t[128]; address(c, t, '.', "", "");
    size_t a = method(x, 1, 60, 40); put16(x, 0); text8(x, "amq.topic"); text8(x, t); put8(x, 0); framed(x, a);
    a = frame(x, 2, 1); put16(x, 60); put16(x, 0); put64(x, o.payload); put16(x, 0x1000); put8(x, 2); framed(x, a);
    a = frame(x, 3, 1); put_payload(c, x); framed(x, a);
}
static uint64_t be64(const uint8_t *p) { uint64_t v = 0; for (int i = 0; i < 8; i++) v = v << 8 | p[i]; return v; }
static void amqp_ack(conn *c) { size_t a = method(c, 1, 60, 80); put64(c, c->need); /* the last whole message's, not that of one on its way */ put8(c, 1); framed(c, a); c->unacked = 0; }
static size_t amqp_parse(conn *c, char *b, size_t n, uint64_t now) {
    uint8_t *p = (uint8_t *)b, *e = p + n;
    while (e - p >= 8) {
        uint32_t len = (uint32_t)p[3] << 24 | p[4] << 16 | p[5] << 8 | p[6];
        if ((size_t)(e - p) < 8 + (size_t)len) break;
        uint8_t *q = p + 7;
        if (p[0] == 1) {
            int cls = q[0] << 8 | q[1], m = q[2] << 8 | q[3];
            if (cls == 60 && m == 60) { uint8_t *t = q + 4; t += 1 + t[0]; c->tag = be64(t); }
            else if (cls == 60 && m == 80) { uint64_t tag = be64(q + 4); if (q[12] & 1) { if (tag > c->acked) on_ack(c, tag - c->acked); } else on_ack(c, 1); }
            else if (m == 50 || (cls == 20 && m == 40)) { fprintf(stderr, "%.*s\n", (int)q[6], q + 7); refused(c, "a method"); }
        } else if (p[0] == 3) { on_msg(c, (char *)q, len, now); c->need = c->tag; if (++c->unacked >= 100) amqp_ack(c); }
        p += 8 + len;
    }
    if (c->unacked) amqp_ack(c);
    return (char *)p - b;
}

/* -- what the core asks for */
static const struct row { const char *letters; void (*open)(conn *); void (*template)(conn *, conn *); size_t (*parse)(conn *, char *, size_t, uint64_t); } table[] = {
    {"Mm", mqtt_open, mqtt_template, mqtt_parse}, {"Kk", kafka_open, kafka_template, kafka_parse}, {"A", amqp_open, amqp_template, amqp_parse}};
static const struct row *of(conn *c) { for (int i = 0;; i++) if (strchr(table[i].letters, kind(c))) return &table[i]; }
static size_t msg_size(conn *c) { (void)c; return 120 + o.payload; }
static void proto_open(conn *c) { of(c)->open(c); int fl = fcntl(c->fd, F_GETFL); fcntl(c->fd, F_SETFL, fl | O_NONBLOCK); }
static size_t proto_parse(conn *c, char *b, size_t n, uint64_t now) { return of(c)->parse(c, b, n, now); }
static void proto_encode(conn *c, int n, uint64_t ts) {
    if (!c->tpl) { conn x = {0}; of(c)->template(c, &x); c->tlen = x.out_len; c->tpl = x.out; }
    char *p = reserve(c, c->tlen * n);
    for (int i = 0; i < n; i++, p += c->tlen) {
        memcpy(p, c->tpl, c->tlen); stamp(p + c->poff, c, ts);
        if (publisher == 'M') { unsigned id = c->seq % 65535 + 1; p[c->poff - 2] = id >> 8; p[c->poff - 1] = id; }
        if (publisher == 'K') { char *b = p + c->tag; uint32_t k = htonl(crc(b + 21, p + c->tlen - (b + 21))); memcpy(b + 17, &k, 4); }
        c->seq++;
    }
    c->out_len += c->tlen * n;
}
