/* kafka_rdload.c - load by librdkafka, the C client under most others, with its own batching.
 *
 * Built against the library inside the confluent-kafka wheel, which has no headers: the few calls
 * that are needed are declared here.
 *
 *   -p port  -T topic  -s record bytes  -t seconds  -w warm-up seconds  -c broker pid[,pid…]
 *   -m produce | consume | both | latency | catchup   (partition 0 of the topic)
 *   -n messages that catchup reads from the beginning on, once; it prints what it read a second
 *   -r messages a second (0: as many as possible)  -X name=value (librdkafka's settings)
 *
 * The topic must exist. latency takes messages one by one, as soon as each is there.
 *
 * consume starts again at the beginning when it is at the end. Every payload begins with
 * {u64 sequence, u64 send time}; loss and repetition are counted from the sequence and printed.
 * Prints one line of JSON.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct { int err; rd_kafka_topic_t *rkt; int32_t partition; void *payload; size_t len;
                 void *key; size_t key_len; int64_t offset; void *_private; } rd_kafka_message_t;
enum { PRODUCER, CONSUMER, MSG_F_COPY = 2, QUEUE_FULL = -184, PARTITION_EOF = -191 };
enum { FROM_START = -2, FROM_END = -1 };
extern rd_kafka_conf_t *rd_kafka_conf_new(void);
extern int rd_kafka_conf_set(rd_kafka_conf_t *, const char *, const char *, char *, size_t);
extern void rd_kafka_conf_set_dr_msg_cb(rd_kafka_conf_t *,
                                        void (*)(rd_kafka_t *, const rd_kafka_message_t *, void *));
extern rd_kafka_t *rd_kafka_new(int, rd_kafka_conf_t *, char *, size_t);
extern rd_kafka_topic_t *rd_kafka_topic_new(rd_kafka_t *, const char *, void *);
extern int rd_kafka_produce(rd_kafka_topic_t *, int32_t, int, void *, size_t,
                            const void *, size_t, void *);
extern int rd_kafka_last_error(void);
extern const char *rd_kafka_err2str(int);
extern int rd_kafka_poll(rd_kafka_t *, int);
extern int rd_kafka_flush(rd_kafka_t *, int);
extern int rd_kafka_consume_start(rd_kafka_topic_t *, int32_t, int64_t);
extern ssize_t rd_kafka_consume_batch(rd_kafka_topic_t *, int32_t, int, rd_kafka_message_t **,
                                      size_t);
extern rd_kafka_message_t *rd_kafka_consume(rd_kafka_topic_t *, int32_t, int);
extern void rd_kafka_message_destroy(rd_kafka_message_t *);
extern int rd_kafka_seek(rd_kafka_topic_t *, int32_t, int64_t, int);

static int port = 9092, brokers;
static clockid_t clocks[64];
static size_t size = 100;
static double seconds = 3, warm = 1, rate;
static uint64_t wanted, caught_ns, caught_bytes;
static const char *topic = "load", *mode = "produce", *settings[64];
static int settings_count;
static _Atomic uint64_t acked, failed, received, lost, repeated;
static _Atomic int stop, sending = 1, following;
static uint64_t latency_us[1 << 20], latency_count;
static _Atomic int measuring;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static double cpu_seconds(clockid_t id) {
    struct timespec t;
    return clock_gettime(id, &t) ? 0 : t.tv_sec + t.tv_nsec / 1e9;
}

static double cpu_brokers(void) {
    double sum = 0;
    for (int i = 0; i < brokers; i++) sum += cpu_seconds(clocks[i]);
    return sum;
}

static void die(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void on_delivery(rd_kafka_t *rk, const rd_kafka_message_t *m, void *opaque) {
    (void)rk, (void)opaque;
    if (m->err) failed++; else acked++;
}

static rd_kafka_t *client(int kind) {
    char text[512], address[64];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    snprintf(address, sizeof address, "127.0.0.1:%d", port);
    rd_kafka_conf_set(conf, "bootstrap.servers", address, text, sizeof text);
    if (kind == CONSUMER)
        rd_kafka_conf_set(conf, "enable.partition.eof", "true", text, sizeof text);
    else
        rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    for (int i = 0; i < settings_count; i++) {
        char name[128];
        const char *value = strchr(settings[i], '=');
        if (!value || value - settings[i] > 127) die(settings[i], "write name=value");
        snprintf(name, sizeof name, "%.*s", (int)(value - settings[i]), settings[i]);
        /* A setting of the other kind of client is only warned about by the library. */
        if (rd_kafka_conf_set(conf, name, value + 1, text, sizeof text)) die(settings[i], text);
    }
    rd_kafka_conf_set(conf, "log_level", "3", text, sizeof text);
    rd_kafka_t *rk = rd_kafka_new(kind, conf, text, sizeof text);
    if (!rk) die("rd_kafka_new", text);
    return rk;
}

static void *produce(void *unused) {
    (void)unused;
    rd_kafka_t *rk = client(PRODUCER);
    rd_kafka_topic_t *rkt = rd_kafka_topic_new(rk, topic, NULL);
    char *payload = malloc(size);
    for (size_t i = 0; i < size; i++) payload[i] = 'a' + i % 26;
    uint64_t began = now_ns(), sequence = 0;
    while (!stop) {
        if (rate > 0) {
            uint64_t due = began + (uint64_t)(sequence * 1e9 / rate), t = now_ns();
            if (t < due) {
                uint64_t left_us = (due - t) / 1000;
                if (left_us > 1000) rd_kafka_poll(rk, 0);
                usleep(left_us > 1000 ? 1000 : left_us + 1);
                continue;
            }
        }
        uint64_t stamp = now_ns();
        memcpy(payload, &sequence, 8);
        memcpy(payload + 8, &stamp, 8);
        if (rd_kafka_produce(rkt, 0, MSG_F_COPY, payload, size, NULL, 0, NULL)) {
            int why = rd_kafka_last_error();
            if (why != QUEUE_FULL) die("produce", rd_kafka_err2str(why));
            rd_kafka_poll(rk, 5);
            continue;
        }
        if (++sequence % 64 == 0 || rate > 0) rd_kafka_poll(rk, 0);
    }
    rd_kafka_flush(rk, 20000);
    sending = 0;
    return NULL;
}

static void *consume(void *from) {
    rd_kafka_t *rk = client(CONSUMER);
    rd_kafka_topic_t *rkt = rd_kafka_topic_new(rk, topic, NULL);
    int replay = (intptr_t)from == FROM_START;
    uint64_t expected = UINT64_MAX;
    if (rd_kafka_consume_start(rkt, 0, (intptr_t)from)) die("consume", "could not start");
    rd_kafka_message_t *messages[1000];
    for (;;) {
        ssize_t n;
        if (rate > 0) /* a batch would wait until it is full */
            n = (messages[0] = rd_kafka_consume(rkt, 0, 50)) != NULL;
        else
            n = rd_kafka_consume_batch(rkt, 0, 50, messages, 1000);
        uint64_t t = now_ns(), ended = 0, good = 0;
        for (ssize_t i = 0; i < n; i++) {
            rd_kafka_message_t *m = messages[i];
            if (m->err == PARTITION_EOF) {
                ended = following = 1;
            } else if (m->err) {
                fprintf(stderr, "consume: %s\n", rd_kafka_err2str(m->err));
            } else if (m->len >= 16) {
                uint64_t sequence, stamp;
                memcpy(&sequence, m->payload, 8);
                memcpy(&stamp, (char *)m->payload + 8, 8);
                if (!replay && expected != UINT64_MAX) {
                    if (sequence > expected) lost += sequence - expected;
                    if (sequence < expected) repeated++;
                }
                expected = sequence + 1;
                good++;
                if (measuring && rate > 0 && latency_count < 1 << 20)
                    latency_us[latency_count++] = (t - stamp) / 1000;
            }
            rd_kafka_message_destroy(m);
        }
        received += good;
        if (ended && replay && !stop) rd_kafka_seek(rkt, 0, 0, 1000);
        if (stop && !sending && (replay || n <= 0 || ended)) return NULL;
    }
}

static void *catch_up(void *unused) {
    (void)unused;
    rd_kafka_t *rk = client(CONSUMER);
    rd_kafka_topic_t *rkt = rd_kafka_topic_new(rk, topic, NULL);
    if (rd_kafka_consume_start(rkt, 0, FROM_START)) die("catchup", "could not start");
    rd_kafka_message_t *messages[1000];
    uint64_t began = 0, bytes = 0, count = 0;
    while (count < wanted) {
        ssize_t n = rd_kafka_consume_batch(rkt, 0, 1000, messages, 1000);
        for (ssize_t i = 0; i < n; i++) {
            if (messages[i]->err && messages[i]->err != PARTITION_EOF)
                die("catchup", rd_kafka_err2str(messages[i]->err));
            if (!messages[i]->err && messages[i]->offset != (int64_t)(count + i)) lost++;
            bytes += messages[i]->len;
            rd_kafka_message_destroy(messages[i]);
        }
        if (n > 0) count += n;
        if (!began && n > 0) began = now_ns(), bytes = 0; /* the client has found its broker */
    }
    caught_ns = now_ns() - began;
    caught_bytes = bytes;
    return NULL;
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
    int option;
    while ((option = getopt(argc, argv, "p:T:s:t:w:c:m:r:n:X:")) != -1) switch (option) {
        case 'p': port = atoi(optarg); break;
        case 'T': topic = optarg; break;
        case 's': size = atoi(optarg); break;
        case 't': seconds = atof(optarg); break;
        case 'w': warm = atof(optarg); break;
        case 'c':
            for (char *p = strtok(optarg, ","); p && brokers < 64; p = strtok(NULL, ","))
                if (clock_getcpuclockid(atoi(p), &clocks[brokers++])) die("-c", "no such process");
            break;
        case 'm': mode = optarg; break;
        case 'r': rate = atof(optarg); break;
        case 'n': wanted = strtoull(optarg, NULL, 10); break;
        case 'X': if (settings_count < 64) settings[settings_count++] = optarg; break;
        default: return 1;
    }
    if (size < 16) die("-s", "a record has at least 16 bytes");
    int sends = strcmp(mode, "consume") != 0, reads = strcmp(mode, "produce") != 0;
    pthread_t writer, reader;
    intptr_t from = sends ? FROM_END : FROM_START;
    if (!strcmp(mode, "catchup")) {
        double cpu0 = cpu_brokers();
        pthread_create(&reader, NULL, catch_up, NULL);
        pthread_join(reader, NULL);
        printf("{\"out_MBs\":%.2f,\"broker_cpu_s\":%.3f,\"lost\":%llu}\n",
               caught_bytes * 1e3 / caught_ns, cpu_brokers() - cpu0,
               (unsigned long long)lost);
        fflush(stdout);
        _exit(0);
    }
    if (reads) pthread_create(&reader, NULL, consume, (void *)from);
    for (int i = 0; reads && sends && !following && i < 1000; i++) usleep(10000);
    if (sends) pthread_create(&writer, NULL, produce, NULL); else sending = 0;
    usleep((useconds_t)(warm * 1e6));
    uint64_t began = now_ns(), in0 = acked, out0 = received;
    double cpu0 = cpu_brokers(), own0 = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
    measuring = 1;
    usleep((useconds_t)(seconds * 1e6));
    double took = (now_ns() - began) / 1e9, in = (acked - in0) / took, out = (received - out0) / took;
    double cpu = (cpu_brokers() - cpu0) / took;
    double own = (cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - own0) / took;
    measuring = 0;
    stop = 1;
    if (sends) pthread_join(writer, NULL);
    if (reads) pthread_join(reader, NULL);
    qsort(latency_us, latency_count, sizeof *latency_us, by_value);
    uint64_t p50 = latency_count ? latency_us[latency_count / 2] : 0;
    uint64_t p99 = latency_count ? latency_us[latency_count * 99 / 100] : 0;
    printf("{\"in_msg_s\":%.0f,\"in_MBs\":%.2f,\"out_msg_s\":%.0f,\"out_MBs\":%.2f,"
           "\"broker_cpu\":%.3f,\"gen_cpu\":%.2f,\"failed\":%llu,\"lost\":%llu,\"repeated\":%llu,"
           "\"p50_us\":%llu,\"p99_us\":%llu}\n",
           in, in * size / 1e6, out, out * size / 1e6, cpu, own,
           (unsigned long long)failed, (unsigned long long)lost, (unsigned long long)repeated,
           (unsigned long long)p50, (unsigned long long)p99);
    fflush(stdout);
    _exit(0); /* the library would wait for its own threads */
}
