/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What anybody can send to an aggregator or a rank that one sums for: datagrams, the three messages that begin a session, and the
 * file that says where the aggregator is.
 */
#include <arpa/inet.h>
#include <string.h>

#include "switchml/aggregator.h"
#include "switchml/internal.h"
#include "switchml/marks.h"
#include "switchml/session.h"
#include "switchml/settings.h"
#include "switchml/worker.h"
#include "targets.h"

#define ELEMENTS 64
#define WORKERS 3
#define SLOTS 4

static const unsigned char key[PKI_SWITCHML_KEY_BYTES] = { 1, 2, 3 };

/* Datagrams of any workers, in any order: the sums point into the aggregator's memory, or there are none. */
static void fuzz_aggregator(const uint8_t *data, size_t size)
{
    static unsigned char datagram[PKI_SWITCHML_HEADER_BYTES + 4 * ELEMENTS];
    struct pki_switchml_aggregator a;
    unsigned sum = 0;

    require(pki_switchml_aggregator_init(&a, WORKERS, SLOTS, ELEMENTS) == PK_OK);
    for (; size >= 12; data += 12, size -= 12) {
        struct pki_switchml_packet packet;
        enum pki_switchml_verdict verdict;
        const uint32_t *sums = NULL;

        memcpy(datagram, data + 1, PKI_SWITCHML_HEADER_BYTES);
        memset(datagram + PKI_SWITCHML_HEADER_BYTES, data[11], 4 * ELEMENTS);
        if ((data[0] & 0x80) != 0) { /* believable, half of the time */
            datagram[0] = 0x11;
            datagram[1] &= 1;
            memset(datagram + 3, 0, 3);
            datagram[6] &= 0x80;
            datagram[7] %= SLOTS;
        }
        if (!pki_switchml_unpack(datagram, sizeof datagram - (data[0] & 0x40 ? 1 : 0), ELEMENTS, &packet))
            continue;
        verdict = pki_switchml_aggregate(&a, data[0] % (WORKERS + 1), &packet, datagram + PKI_SWITCHML_HEADER_BYTES, &sums);
        require(verdict < PKI_SWITCHML_VERDICTS);
        if (verdict == PKI_SWITCHML_TO_ALL || verdict == PKI_SWITCHML_TO_ONE)
            for (size_t i = 0; i < ELEMENTS; i++)
                sum += sums[i];
        for (uint32_t s = 0; s < 2 * SLOTS; s++)
            require(a.sets[s].missing <= WORKERS && a.sets[s].has >> WORKERS == 0);
    }
    *(volatile unsigned *)&sum = sum;
    pki_switchml_aggregator_close(&a);
}

/* Replies: no packet is taken twice, or that was not sent. */
static void fuzz_worker(const uint8_t *data, size_t size)
{
    const struct pki_switchml_timing timing = { .timeout_ns = 100, .least_ns = 5, .threshold = 3, .increment = 2 };
    struct pki_switchml_worker w;
    const uint32_t packets = size % 2 == 0 ? 40 : 6, ahead = size % 2 == 0 ? SLOTS : 3;
    uint64_t got = 0, now = 0, sent = (1ull << ahead) - 1;

    require(pki_switchml_worker_init(&w, 0, SLOTS, &timing) == PK_OK);
    pki_switchml_worker_begin(&w, packets, ahead, now);
    for (; size >= 5; data += 5, size -= 5) {
        struct pki_switchml_packet reply = { .id = data[0], .index = (uint16_t)(data[1] << 8 | data[2]), .job = data[3] & 1 };
        uint32_t next[2], late;

        if ((data[3] & 2) != 0)
            reply.index = pki_switchml_worker_index(&w, reply.id);
        now += data[4];
        while ((late = pki_switchml_worker_late(&w, now)) != PKI_SWITCHML_NONE)
            require((sent >> late & 1) != 0 && (got >> late & 1) == 0);
        if (!pki_switchml_worker_reply(&w, &reply, now, next))
            continue;
        require((sent >> reply.id & 1) != 0 && (got >> reply.id & 1) == 0);
        got |= 1ull << reply.id;
        for (int i = 0; i < 2; i++) {
            if (next[i] == PKI_SWITCHML_NONE)
                continue;
            require(next[i] < packets && (sent >> next[i] & 1) == 0);
            sent |= 1ull << next[i];
        }
    }
    require((got == (1ull << packets) - 1) == pki_switchml_worker_done(&w));
    pki_switchml_worker_close(&w);
}

#define BASE 16 /* of a thread that is not the first one */
#define UNITS_MAX 10

/* A rank whose packets go nowhere. */
static struct pki_switchml *session(void)
{
    static struct pki_switchml s = { .nslices = 1, .elements = ELEMENTS, .size = WORKERS, .id = { 7 } };
    const struct pki_switchml_timing timing = { .timeout_ns = 100, .least_ns = 5, .threshold = 3, .increment = 2 };
    struct sockaddr_in *peer = (struct sockaddr_in *)&s.peer;
    struct pki_switchml_slice *l = &s.slices[0];

    if (l->session == NULL) {
        struct sockaddr_storage own = { .ss_family = AF_INET };

        require(pki_datagrams_open(&l->datagrams, &own, 4096, PKI_DATAGRAMS_PLAIN) == PK_OK);
        l->datagrams.loss = 1ull << 32;
        l->session = &s;
        *peer = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(5), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    }
    pki_switchml_worker_close(&l->worker);
    require(pki_switchml_worker_init(&l->worker, BASE, SLOTS, &timing) == PK_OK);
    return &s;
}

/* What the data says, or most of the time what the worker waits for but for one field. */
static size_t make_reply(const struct pki_switchml *s, const uint8_t data[12], unsigned char *datagram)
{
    const struct pki_switchml_worker *w = &s->slices[0].worker;
    const uint32_t id = w->flights[data[1] % SLOTS].id;
    struct pki_switchml_packet p = { .id = id, .job = w->job };
    const bool exponent = s->job.floats && id < s->slices[0].units;

    memcpy(datagram, data + 1, PKI_SWITCHML_HEADER_BYTES);
    memset(datagram + PKI_SWITCHML_HEADER_BYTES, data[11], 4 * ELEMENTS);
    if ((data[0] & 3) == 0 || id == PKI_SWITCHML_NONE)
        return (data[0] & 4) != 0 ? data[11] : PKI_SWITCHML_HEADER_BYTES + 4 * ELEMENTS;
    p.index = pki_switchml_worker_index(w, id);
    p.exponents[0] = (int8_t)data[9];
    pki_switchml_mark(s->job.operation, exponent, &p);
    if ((data[0] & 0x38) == 0x38)
        p.exponents[1] = (int8_t)data[10];
    if ((data[0] & 0x38) == 0x30)
        p.job ^= data[2];
    if ((data[0] & 0x38) == 0x28)
        p.id ^= data[2];
    if ((data[0] & 0x38) == 0x20)
        p.index ^= data[2];
    pki_switchml_pack(&p, ELEMENTS, datagram);
    return PKI_SWITCHML_HEADER_BYTES + 4 * ELEMENTS;
}

/* One datagram, of the aggregator or not: a stranger's changes nothing, and a unit has its sums when its packet has come. */
static void fuzz_datagram(struct pki_switchml *s, const uint8_t data[12])
{
    static unsigned char made[PKI_SWITCHML_PACKET_MAX];
    struct pki_switchml_slice *l = &s->slices[0];
    struct sockaddr_storage from = s->peer;
    const uint32_t replies = l->worker.replies;
    const bool stranger = (data[0] & 0xc0) == 0xc0;
    const size_t bytes = make_reply(s, data, made);
    unsigned char *datagram = malloc(bytes > 0 ? bytes : 1);

    require(datagram != NULL);
    memcpy(datagram, made, bytes);
    if (stranger)
        ((struct sockaddr_in *)&from)->sin_port ^= (in_port_t)(data[11] | 1);
    l->now++;
    pki_switchml_slice_take(l, datagram, bytes, &from);
    require(l->worker.replies == replies || (l->worker.replies == replies + 1 && !stranger));
    require(!atomic_load(&l->disagree) || l->mixed >= 3);
    free(datagram);
}

/* Replies to allreduces one after the other, of floats and integers; buffers are as long as these are. */
static void fuzz_reply(const uint8_t *data, size_t size)
{
    struct pki_switchml *s = session();

    for (uint64_t number = 1; size >= 2; number += 4) {
        const size_t count = 1 + (data[0] * 3 + data[1]) % (UNITS_MAX * ELEMENTS);
        float *in = malloc(4 * count), *out = malloc(4 * count);

        require(in != NULL && out != NULL);
        memset(in, data[1], 4 * count);
        memset(out, 0, 4 * count);
        require(pki_switchml_begin(s, in, out, count, (data[0] & 1) != 0 ? PK_F32 : PK_INT32, number, data[1] & 1) == PK_OK);
        data += 2;
        size -= 2;
        for (; size >= 12 && !pki_switchml_slice_over(&s->slices[0]); data += 12, size -= 12)
            fuzz_datagram(s, data);
        for (size_t u = 0; u < s->job.units && pki_switchml_worker_done(&s->slices[0].worker); u++)
            require(s->job.summed[u] != (s->job.floats && !pki_switchml_unit_fits(&s->slices[0], u)));
        free(in);
        free(out);
        if (!pki_switchml_worker_done(&s->slices[0].worker))
            return;
    }
}

/* As it came, which proves nothing; and with the proof that its own fields have. */
static void fuzz_hello(const uint8_t *data, size_t size)
{
    unsigned char bytes[PKI_SWITCHML_HELLO_BYTES] = { 0 };
    struct pki_switchml_greeting greeting;
    struct pki_switchml_hello hello, got;

    memcpy(bytes, data, size < sizeof bytes ? size : sizeof bytes);
    (void)pki_switchml_greeting_unpack(bytes, &greeting);
    require(!pki_switchml_hello_unpack(bytes, key, &greeting, &hello));
    memset(&hello, 0, sizeof hello);
    memcpy(hello.id, bytes, sizeof hello.id);
    hello.rank = bytes[16] % 40;
    hello.workers = bytes[17] % 40;
    hello.elements = bytes[18] == 0 ? 64 : bytes[18] == 1 ? 256 : bytes[18];
    memcpy(&hello.window, bytes + 20, sizeof hello.window);
    memcpy(&hello.port, bytes + 24, sizeof hello.port);
    hello.threads = bytes[26];
    require(pki_switchml_hello_pack(&hello, key, &greeting, bytes) == PK_OK);
    if (pki_switchml_hello_unpack(bytes, key, &greeting, &got))
        require(got.rank < got.workers && got.workers <= 32 && got.window <= PKI_SWITCHML_SLOTS_MAX && got.threads >= 1 &&
                got.threads <= PKI_SWITCHML_THREADS_MAX && got.threads <= got.window && got.port + got.threads <= 65536 &&
                pki_switchml_elements_ok(got.elements));
}

static void fuzz_answer(const uint8_t *data, size_t size)
{
    const struct pki_switchml_greeting greeting = { { 1 } };
    const struct pki_switchml_hello hello = { .window = 100, .threads = (uint16_t)(1 + size % PKI_SWITCHML_THREADS_MAX) };
    unsigned char bytes[PKI_SWITCHML_ANSWER_BYTES] = { 0 };
    struct pki_switchml_answer answer = { .accepted = false }, got;

    memcpy(bytes, data, size < sizeof bytes ? size : sizeof bytes);
    require(!pki_switchml_answer_unpack(bytes, key, &greeting, &hello, &got));
    answer.accepted = (bytes[0] & 1) != 0;
    answer.window = bytes[1];
    answer.port = bytes[2];
    memcpy(answer.text, bytes + 3, sizeof answer.text);
    require(pki_switchml_answer_pack(&answer, key, &greeting, &hello, bytes) == PK_OK);
    if (pki_switchml_answer_unpack(bytes, key, &greeting, &hello, &got))
        require(strlen(got.text) < sizeof got.text &&
                (!got.accepted || (got.window >= hello.threads && got.window <= 100 && got.window % hello.threads == 0)));
}

static void fuzz_settings(const uint8_t *data, size_t size)
{
    struct pki_switchml_settings s;
    char text[512];

    size = size < sizeof text - 1 ? size : sizeof text - 1;
    memcpy(text, data, size);
    text[size] = '\0';
    if (strchr(text, '/') == NULL && pki_switchml_settings_read(text, &s) == PK_OK)
        require(s.host[0] != '\0' && s.port != 0);
    if (pki_switchml_settings_parse(text, "input", &s) == PK_OK)
        require(s.host[0] != '\0' && s.port != 0 && s.threads >= 1 && s.threads <= PKI_SWITCHML_THREADS_MAX &&
                s.window >= s.threads && s.window <= PKI_SWITCHML_SLOTS_MAX && pki_switchml_elements_ok(s.elements));
}

const struct fuzz_target fuzz_targets[] = {
    { "aggregator", fuzz_aggregator }, { "worker", fuzz_worker }, { "hello", fuzz_hello }, { "answer", fuzz_answer },
    { "settings", fuzz_settings },     { "reply", fuzz_reply },   { NULL, NULL },
};
