/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What anybody can send to an aggregator or a rank that one sums for: datagrams, the three messages that begin a session, and the
 * file that says where the aggregator is.
 */
#include <string.h>

#include "switchml/aggregator.h"
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
        verdict = pki_switchml_aggregate(&a, data[0] % (WORKERS + 1), &packet, datagram + PKI_SWITCHML_HEADER_BYTES,
                                         &sums);
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
                s.window >= s.threads && s.window <= PKI_SWITCHML_SLOTS_MAX &&
                pki_switchml_elements_ok(s.elements));
}

const struct fuzz_target fuzz_targets[] = {
    { "aggregator", fuzz_aggregator }, { "worker", fuzz_worker },     { "hello", fuzz_hello },
    { "answer", fuzz_answer },         { "settings", fuzz_settings }, { NULL, NULL },
};
