/* SPDX-License-Identifier: Apache-2.0 */
/* The control channel of the shm transport, and the table of transports. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm_pair.h"
#include "util/clock.h"
#include "util/futex.h"

/* Both directions begin with message `next` and data position `data`, as after so many before. */
static void pair_wind(struct pair *pair, uint32_t next, uint32_t data)
{
    for (int i = 0; i < 2; i++) {
        struct pki_shm_ep *ep = (struct pki_shm_ep *)(void *)pair->ep[i];

        ep->rx.next = ep->rx.reported_next = ep->tx.next = ep->tx.taken_next = ep->tx.heard = next;
        ep->rx.data_end = ep->rx.reported_data = ep->tx.data_next = ep->tx.taken_data = data;
        atomic_store(&ep->mine->header.taken, (uint64_t)data << 32 | next);
    }
}

/* All of the data area is used. */
static void pair_widen(struct pair *pair)
{
    for (int i = 0; i < 2; i++)
        ((struct pki_shm_ep *)(void *)pair->ep[i])->tx.data_used = PKI_SHM_DATA_BYTES;
}

/* ---- Messages that follow from their number ---- */

static unsigned char pattern[2 * PKI_SHM_PAYLOAD_MAX];

static uint32_t hash(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

static void pattern_fill(void)
{
    for (uint32_t i = 0; i < sizeof pattern; i++)
        pattern[i] = (unsigned char)hash(i);
}

static struct pki_msg numbered(uint32_t number, uint32_t payload)
{
    uint32_t h = hash(number);
    struct pki_msg msg = { .kind = (uint8_t)(PKI_MSG_EAGER + h % PKI_MSG_CREDIT), .flags = h & 3, .index = (uint16_t)(h >> 8) };

    msg.sig = hash(number + 1);
    msg.op = (uint64_t)number << 32 | h;
    msg.payload = (uint16_t)payload;
    if (msg.kind == PKI_MSG_EAGER)
        return msg;
    msg.offset = ~msg.op;
    msg.bytes = msg.op * 3;
    msg.region = h ^ 5;
    msg.signal_slot = (uint16_t)number;
    msg.signal_value = ~number;
    return msg;
}

static const unsigned char *numbered_payload(uint32_t number)
{
    return pattern + hash(number ^ 0x55aa) % PKI_SHM_PAYLOAD_MAX;
}

static pk_result_t send_numbered(struct pki_ep *ep, uint32_t number, uint32_t payload)
{
    struct pki_msg msg = numbered(number, payload);

    return shm()->send(ep, &msg, numbered_payload(number));
}

/* Does the message at the front equal number `number`? Pops it. */
static bool take_numbered(struct pki_ep *ep, uint32_t number, uint32_t payload)
{
    struct pki_msg want = numbered(number, payload), got;
    const void *data;
    bool same;

    memset(&got, 0xee, sizeof got);
    if (!shm()->peek(ep, &got, &data))
        return false;
    same = memcmp(&want, &got, sizeof got) == 0 && memcmp(data, numbered_payload(number), payload) == 0 &&
           (uintptr_t)data % (payload > 40 ? 64 : 8) == 0;
    shm()->pop(ep);
    return same;
}

/* Mostly small, some long, all up to the longest; the edges often. */
static uint32_t random_payload(uint32_t number)
{
    static const uint32_t edges[] = { 0, 1, 8, 9, 40, 41, 64, 65, 2048, PKI_SHM_PAYLOAD_MAX - 1, PKI_SHM_PAYLOAD_MAX };
    uint32_t h = hash(number + 77);

    if (h % 100 < 88)
        return (h >> 8) % 64;
    if (h % 100 < 98)
        return (h >> 8) % 4096;
    return h % 100 == 98 ? edges[(h >> 8) % (sizeof edges / sizeof *edges)] : (h >> 8) % (PKI_SHM_PAYLOAD_MAX + 1);
}

TestSuite(shm, .init = pattern_fill);

/* ---- The table ---- */

#ifdef PICKLE_HAVE_RDMA
#define COUNT 4
#else
#define COUNT 3
#endif

Test(transports, order_and_stubs)
{
    const struct pki_transport *const *all = pki_transports();
    struct pki_iface iface;

    cr_assert(strcmp(all[0]->name, "nvlink") == 0 && all[1] == shm() && strcmp(all[COUNT - 1]->name, "tcp") == 0);
    cr_assert(all[COUNT] == NULL && (COUNT == 3 || strcmp(all[2]->name, "rdma") == 0));
    cr_assert(pki_transports() == all && pki_transport_find("carrier pigeon") == NULL);
    for (int i = 0; i < COUNT; i++) {
        const struct pki_transport *t = all[i];

        cr_assert(t->probe && t->open && t->close && t->ep_init && t->ep_connect && t->ep_close && t->reg && t->map);
        cr_assert(t->unmap && t->send && t->peek && t->pop && t->put && t->recv_post && t->recv_cancel && t->progress);
    }
    cr_assert(!shm()->progress(&iface));
}

Test(shm, probe)
{
    struct pki_iface_config config = { .size = 1 };
    struct pki_probe probe;

    shm()->probe(&config, &probe);
    cr_assert(probe.usable && probe.gbps > 0 && strstr(probe.reason, "memfd") != NULL, "%s", probe.reason);
    pki_tuning.shm.cma = 0;
    shm()->probe(&config, &probe);
    cr_assert(probe.usable && strstr(probe.reason, "shm.cma=0") != NULL, "%s", probe.reason);
}

/* ---- The control channel ---- */

Test(shm, every_payload_size_and_kind)
{
    struct pair pair = pair_new(true);
    struct pki_msg msg;
    const void *data;
    uint32_t number = 0;

    cr_assert(!shm()->peek(pair.ep[0], &msg, &data) && !shm()->peek(pair.ep[1], &msg, &data));
    for (uint32_t payload = 0; payload <= PKI_SHM_PAYLOAD_MAX; payload += payload < 200 ? 1 : 997) {
        for (int i = 0; i < 7; i++, number++) {
            cr_assert(send_numbered(pair.ep[number & 1], number, payload) == PK_OK);
            cr_assert(take_numbered(pair.ep[~number & 1], number, payload), "message %u, %u bytes", number, payload);
        }
    }
    msg = numbered(0, PKI_SHM_PAYLOAD_MAX + 1);
    cr_assert(shm()->send(pair.ep[0], &msg, pattern) == PK_ERR_INTERNAL);
    pair_free(&pair);
}

Test(shm, peek_leaves_the_message)
{
    struct pair pair = pair_new(true);
    struct pki_msg msg;
    const void *first, *second;

    cr_assert(send_numbered(pair.ep[0], 1, 500) == PK_OK && send_numbered(pair.ep[0], 2, 600) == PK_OK);
    cr_assert(shm()->peek(pair.ep[1], &msg, &first) && shm()->peek(pair.ep[1], &msg, &second));
    cr_assert(first == second && msg.payload == 500);
    cr_assert(take_numbered(pair.ep[1], 1, 500) && take_numbered(pair.ep[1], 2, 600));
    pair_free(&pair);
}

/* Bursts of changing length, so that every cell is written with every residue, through several laps and the wrap of the numbers. */
static void laps(bool wide)
{
    struct pair pair = pair_new(true);
    uint32_t sent = 0, taken = 0;

    if (wide)
        pair_widen(&pair);
    pair_wind(&pair, UINT32_MAX - 2500, UINT32_MAX - (1u << 20) + 1);
    for (uint32_t burst = 1; taken < 12000; burst = burst % 700 + 13) {
        while (sent - taken < burst && send_numbered(pair.ep[0], sent, random_payload(sent)) == PK_OK)
            sent++;
        for (; taken != sent; taken++)
            cr_assert(take_numbered(pair.ep[1], taken, random_payload(taken)), "message %u", taken);
        cr_assert(!take_numbered(pair.ep[1], taken, 0));
    }
    cr_assert(((struct pki_shm_ep *)(void *)pair.ep[0])->tx.data_next < UINT32_MAX / 2, "positions were to wrap");
    pair_free(&pair);
}

Test(shm, laps_and_wrap_of_numbers)
{
    laps(false);
    laps(true);
}

static uint32_t fill(struct pki_ep *ep, uint32_t first, uint32_t payload)
{
    pk_result_t result = PK_OK;
    uint32_t number = first;

    while ((result = send_numbered(ep, number, payload)) == PK_OK)
        number++;
    cr_assert(result == PK_IN_PROGRESS && send_numbered(ep, number, payload) == PK_IN_PROGRESS);
    return number - first;
}

static void full_and_back(bool wide, uint32_t payload, uint32_t least, uint32_t most)
{
    struct pair pair = pair_new(true);
    uint32_t first = 0;

    if (wide)
        pair_widen(&pair);
    for (int round = 0; round < 20; round++) {
        uint32_t n = fill(pair.ep[0], first, payload);

        cr_assert(n >= least && n <= most, "%u of %u bytes", n, payload);
        for (uint32_t i = 0; i < n; i++)
            cr_assert(take_numbered(pair.ep[1], first + i, payload));
        cr_assert(!take_numbered(pair.ep[1], 0, 0));
        first += n;
    }
    pair_free(&pair);
}

/* How far into the data area the messages of a transfer of so many bytes come, when they go through it several times. */
static uint32_t furthest(struct pair *pair, uint64_t transfer)
{
    const struct pki_shm_ep *reader = (const struct pki_shm_ep *)(const void *)pair->ep[1];
    const struct pki_msg msg = { .kind = PKI_MSG_DATA, .bytes = transfer, .payload = PKI_SHM_PAYLOAD_MAX };
    uint32_t furthest = 0;

    for (uint32_t i = 0; i < 4 * PKI_SHM_DATA_BYTES / PKI_SHM_PAYLOAD_MAX; i++) {
        struct pki_msg got;
        const void *data;
        uint32_t end;

        cr_assert_eq(shm()->send(pair->ep[0], &msg, pattern + i % 64), PK_OK);
        cr_assert(shm()->peek(pair->ep[1], &got, &data));
        cr_assert(got.payload == msg.payload && memcmp(data, pattern + i % 64, msg.payload) == 0);
        end = (uint32_t)((const unsigned char *)data - reader->rx.data) + msg.payload;
        furthest = end > furthest ? end : furthest;
        shm()->pop(pair->ep[1]);
    }
    return furthest;
}

/* Also when those before them have gone further. */
Test(shm, transfers_of_some_lengths_keep_to_a_part)
{
    struct pair pair = pair_new(true);

    pattern_fill();
    cr_expect_eq(furthest(&pair, 2 << 20), PKI_SHM_DATA_USED_MIN, "where it is less anyway");
    pair_widen(&pair);
    cr_expect_eq(furthest(&pair, (2 << 20) - 1), PKI_SHM_DATA_BYTES);
    cr_expect_eq(furthest(&pair, 4 << 20), PKI_SHM_DATA_BYTES);
    for (int half = 0; half < 2; half++) { /* from a place in the part, and from one beyond it */
        (void)send_numbered(pair.ep[0], 0, 0);
        cr_expect(take_numbered(pair.ep[1], 0, 0));
        for (int i = 0; i < (half == 0 ? 3 : 50); i++) {
            cr_assert_eq(send_numbered(pair.ep[0], 1, PKI_SHM_PAYLOAD_MAX), PK_OK);
            cr_assert(take_numbered(pair.ep[1], 1, PKI_SHM_PAYLOAD_MAX));
        }
        cr_expect_eq(furthest(&pair, 2 << 20), 1280 << 10);
        cr_expect_eq(furthest(&pair, (4 << 20) - 16), 1280 << 10);
    }
    pair_free(&pair);
}

Test(shm, full_ring_recovers)
{
    for (unsigned wide = 0; wide < 2; wide++) {
        full_and_back(wide, 0, PKI_SHM_CELLS, PKI_SHM_CELLS);
        full_and_back(wide, 40, 1, PKI_SHM_CELLS);
    }
    full_and_back(false, PKI_SHM_PAYLOAD_MAX, 7, 8);
    full_and_back(false, 20000, 10, 13);
    full_and_back(true, PKI_SHM_PAYLOAD_MAX, 63, 64);
    full_and_back(true, 20000, 98, 104);
}

/* A reader that never finds the ring empty still gives room back. */
Test(shm, room_comes_back_before_empty)
{
    struct pair pair = pair_new(true);
    uint32_t sent = fill(pair.ep[0], 0, 30000), taken = 0;

    for (; taken < 500; taken++) {
        cr_assert(take_numbered(pair.ep[1], taken, 30000));
        while (send_numbered(pair.ep[0], sent, 30000) == PK_OK)
            sent++;
        cr_assert(sent > taken + 1, "dry after %u", taken);
    }
    pair_free(&pair);
}

/* Both sides send and take in no order, so that what each knows of the other is old or new; no payload is written over before it is read. */
Test(shm, talk_in_both_directions)
{
    struct pair pair = pair_new(true);
    uint32_t sent[2] = { 0 }, taken[2] = { 0 }, in_slots = 0;

    pair_wind(&pair, UINT32_MAX - 9000, 0);
    for (uint32_t i = 0; i < 60000; i++) {
        unsigned side = hash(i) % 2, lag = i / 20000; /* answered at once, then later and later */
        struct pki_shm_tx *tx = &((struct pki_shm_ep *)(void *)pair.ep[side])->tx;
        uint32_t payload = hash(sent[side] + side) % (PKI_SHM_BIG_SLOT_BYTES + PKI_SHM_SLOT_BYTES), data_next = tx->data_next;

        if (hash(i + 1) % 3 == 0 && send_numbered(pair.ep[side], sent[side] * 2 + side, payload) == PK_OK) {
            in_slots += payload > 64 && tx->data_next == data_next;
            sent[side]++;
        }
        while (taken[1 - side] != sent[1 - side] && hash(i + taken[1 - side]) % (1 + lag) == 0) {
            uint32_t number = taken[1 - side]++;

            payload = hash(number + 1 - side) % (PKI_SHM_BIG_SLOT_BYTES + PKI_SHM_SLOT_BYTES);
            cr_assert(take_numbered(pair.ep[side], number * 2 + 1 - side, payload), "message %u to %u", number, side);
        }
    }
    cr_assert(in_slots > 1000 && in_slots < sent[0] + sent[1], "%u of %u in slots", in_slots, sent[0] + sent[1]);
    pair_free(&pair);
}

/* With nothing said by the other side only the first find their slots free. */
Test(shm, one_direction_leaves_the_slots)
{
    struct pair pair = pair_new(true);
    struct pki_shm_tx *tx = &((struct pki_shm_ep *)(void *)pair.ep[0])->tx;

    for (uint32_t i = 0; i < 100; i++) {
        cr_assert(send_numbered(pair.ep[0], i, 100) == PK_OK && take_numbered(pair.ep[1], i, 100));
        cr_assert(tx->data_next == (i < PKI_SHM_SLOTS ? 0 : (i + 1 - PKI_SHM_SLOTS) * 128), "after %u", i);
    }
    cr_assert(send_numbered(pair.ep[1], 0, 0) == PK_OK && take_numbered(pair.ep[0], 0, 0) && tx->heard == 100);
    pair_free(&pair);
}

/* A message that lies unread while thousands go the other way says what was true when it was written. */
Test(shm, old_news_is_no_news)
{
    struct pair pair = pair_new(true);
    struct pki_shm_tx *tx = &((struct pki_shm_ep *)(void *)pair.ep[0])->tx;

    cr_assert(send_numbered(pair.ep[1], 0, 0) == PK_OK);
    for (uint32_t i = 0; i < PKI_SHM_TAKEN_MASK - 100; i++)
        cr_assert(send_numbered(pair.ep[0], i, 100) == PK_OK && take_numbered(pair.ep[1], i, 100));
    for (uint32_t i = 0; i < 200; i++)
        cr_assert(send_numbered(pair.ep[0], i, 100) == PK_OK);
    cr_assert(take_numbered(pair.ep[0], 0, 0) && tx->heard == 0);
    cr_assert(send_numbered(pair.ep[1], 1, 0) == PK_OK && take_numbered(pair.ep[0], 1, 0));
    cr_assert(tx->heard == PKI_SHM_TAKEN_MASK - 100, "%u", tx->heard);
    pair_free(&pair);
}

struct runner {
    struct pki_ep *ep;
    uint32_t count;
    uint32_t wrong;
    bool late;
};

/* Late is who gets nowhere for so long: how far in a time depends on the machine. */
#define STANDSTILL_MS 15000

static void *send_many(void *arg)
{
    struct runner *r = arg;
    uint64_t deadline = pki_deadline_ns(STANDSTILL_MS);

    for (uint32_t i = 0; i < r->count && !r->late;) {
        if (send_numbered(r->ep, i, random_payload(i)) == PK_OK) {
            i++;
            deadline = pki_deadline_ns(STANDSTILL_MS);
        } else {
            r->late = pki_now_ns() > deadline;
            sched_yield();
        }
    }
    return NULL;
}

static void *take_many(void *arg)
{
    struct runner *r = arg;
    uint64_t deadline = pki_deadline_ns(STANDSTILL_MS);
    struct pki_msg msg;
    const void *data;

    for (uint32_t i = 0; i < r->count && !r->late;) {
        if (shm()->peek(r->ep, &msg, &data)) {
            r->wrong += !take_numbered(r->ep, i, random_payload(i)), i++;
            deadline = pki_deadline_ns(STANDSTILL_MS);
        } else {
            r->late = pki_now_ns() > deadline;
            sched_yield();
        }
    }
    return NULL;
}

Test(shm, two_threads_against_a_model)
{
    struct pair pair = pair_new(true);
    struct runner from = { .ep = pair.ep[0], .count = 200000 }, to = { .ep = pair.ep[1], .count = 200000 };
    pthread_t thread;

    cr_assert(pthread_create(&thread, NULL, send_many, &from) == 0);
    take_many(&to);
    pthread_join(thread, NULL);
    cr_assert(!from.late && !to.late && to.wrong == 0, "%u wrong, late %d %d", to.wrong, from.late, to.late);
    pair_free(&pair);
}

/* ---- Gates ---- */

Test(shm, signals_are_shared_pages)
{
    struct pair pair = pair_new(true);

    for (int i = 0; i < 2; i++) {
        struct pki_signal_slot *mine = pair.ep[i]->signals_mine, *same = pair.ep[1 - i]->signals_theirs;
        struct pki_signal signal = { .word = &same[PKI_SIGNAL_SLOTS - 1].done, .value = 7 };

        cr_assert((uintptr_t)mine % PKI_SHM_PAGE == 0 && (uintptr_t)same % PKI_SHM_PAGE == 0 && mine != same);
        for (int k = 0; k < PKI_SIGNAL_SLOTS; k++)
            cr_assert(mine[k].start == 0 && mine[k].done == 0);
        pki_signal_open(&signal);
        cr_assert(mine[PKI_SIGNAL_SLOTS - 1].done == 7 && mine[PKI_SIGNAL_SLOTS - 1].start == 0);
    }
    cr_assert(send_numbered(pair.ep[0], 3, 3) == PK_OK && take_numbered(pair.ep[1], 3, 3));
    pair_free(&pair);
}

/* ---- Broken peers ---- */

static void damaged_cell(uint32_t shape, uint64_t word7, uint8_t kind)
{
    struct pair pair = pair_new(true);
    struct pki_shm_cell *cell = &((struct pki_shm_ep *)(void *)pair.ep[1])->mine->cells[1];
    struct pki_msg msg;
    const void *data;

    cr_assert(send_numbered(pair.ep[0], 0, 10) == PK_OK && take_numbered(pair.ep[1], 0, 10));
    atomic_store(&cell->word[1], kind);
    atomic_store(&cell->word[7], word7);
    atomic_store(&cell->word[0], (uint64_t)shape << 32 | 2);
    cr_assert(!shm()->peek(pair.ep[1], &msg, &data), "shape %#x %#lx %u", shape, word7, kind);
    cr_assert(pair.ep[1]->state == PKI_EP_DEAD && pki_error_get()->code == PK_ERR_PEER && pki_error_get()->peer == 0);
    cr_assert(!shm()->peek(pair.ep[1], &msg, &data));
    cr_assert(send_numbered(pair.ep[1], 0, 0) == PK_ERR_PEER);
    pair_free(&pair);
}

Test(shm, damaged_cells_kill_the_endpoint)
{
    const uint32_t outside = PKI_SHM_SHAPE_OUTSIDE;

    damaged_cell(41, 0, PKI_MSG_EAGER); /* longer than the cell */
    damaged_cell(9 | PKI_SHM_SHAPE_LONG, 0, PKI_MSG_FIN);
    damaged_cell(4, 0, PKI_MSG_FIN); /* kind and shape disagree */
    damaged_cell(4 | PKI_SHM_SHAPE_LONG, 0, PKI_MSG_EAGER);
    damaged_cell((PKI_SHM_BIG_SLOT_BYTES + 1) | PKI_SHM_SHAPE_SLOT, 0, PKI_MSG_EAGER);
    damaged_cell(100 | PKI_SHM_SHAPE_SLOT | outside, 0, PKI_MSG_EAGER);  /* in two places */
    damaged_cell(100 | outside, 32, PKI_MSG_EAGER);                      /* not aligned */
    damaged_cell(100 | outside, PKI_SHM_DATA_BYTES - 64, PKI_MSG_EAGER); /* over the end */
    damaged_cell(100 | outside, 1ull << 32, PKI_MSG_EAGER);
    damaged_cell((PKI_SHM_PAYLOAD_MAX + 1) | outside, 0, PKI_MSG_EAGER);
}

Test(shm, a_peer_that_claims_too_much)
{
    const uint64_t claims[] = { PKI_SHM_CELLS + 1, 1ull << 32, 64ull << 32 | 5, UINT64_MAX };

    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++) {
        struct pair pair = pair_new(true);

        fill(pair.ep[0], 0, 0);
        atomic_store(&((struct pki_shm_ep *)(void *)pair.ep[1])->mine->header.taken, claims[i]);
        cr_assert(send_numbered(pair.ep[0], 0, 0) == PK_ERR_PEER && pair.ep[0]->state == PKI_EP_DEAD, "claim %#lx", claims[i]);
        pair_free(&pair);
    }
}

/* ---- Sleeping ---- */

static void *sleep_at_wake_words(void *arg)
{
    _Atomic uint32_t *const *wake_words = arg;
    uint64_t begin = pki_now_ns();

    while (atomic_load(wake_words[0]) == 1 && atomic_load(wake_words[1]) == 1 && pki_now_ns() - begin < 20 * PKI_NS_PER_S)
        if (!pki_futex_wait(wake_words, 2, 1, 20 * PKI_NS_PER_S))
            usleep(1000); /* a kernel that cannot wait for several */
    return pki_now_ns() - begin < 10 * PKI_NS_PER_S ? arg : NULL;
}

/* One sleeper, control channels to two peers: the message of either wakes it. */
Test(shm, a_message_wakes_who_sleeps)
{
    struct pair pairs[2] = { pair_new(true), pair_new(true) };

    for (int i = 0; i < 2; i++) {
        _Atomic uint32_t *wake_words[2] = { pairs[0].ep[1]->wake_word, pairs[1].ep[1]->wake_word };
        pthread_t sleeper;
        void *in_time = NULL;

        cr_assert(send_numbered(pairs[i].ep[0], 0, 8) == PK_OK && atomic_load(wake_words[0]) == 0 &&
                  atomic_load(wake_words[1]) == 0);
        atomic_store(wake_words[0], 1);
        atomic_store(wake_words[1], 1);
        cr_assert(pthread_create(&sleeper, NULL, sleep_at_wake_words, wake_words) == 0);
        usleep(20000);
        cr_assert(send_numbered(pairs[i].ep[0], 1, 8) == PK_OK);
        cr_assert(pthread_join(sleeper, &in_time) == 0 && in_time != NULL);
        cr_assert(atomic_load(wake_words[i]) == 0 && atomic_load(wake_words[1 - i]) == 1);
        atomic_store(wake_words[1 - i], 0);
    }
    pair_free(&pairs[0]);
    pair_free(&pairs[1]);
}

static int memfd(off_t bytes, int seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    cr_assert(fd >= 0 && ftruncate(fd, bytes) == 0 && fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

static void refused(const struct pki_blob *blob, int fd)
{
    struct pki_iface *iface;
    struct pki_ep *ep = ep_new(&iface, 0, false, getpid());
    struct pki_blob mine, theirs = *blob;

    cr_assert(shm()->ep_init(ep, &mine) == PK_OK);
    theirs.fd = fd;
    cr_assert(shm()->ep_connect(ep, &theirs) == PK_ERR_PEER && ep->signals_theirs == NULL);
    cr_assert(fd < 0 || (fcntl(fd, F_GETFD) == -1 && errno == EBADF), "ep_connect owns the descriptor");
    ep_free(iface, ep);
}

Test(shm, inboxes_that_are_not_trusted)
{
    const off_t bytes = sizeof(struct pki_shm_inbox);
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    struct pki_shm_hello hello;
    struct pki_iface *iface;
    struct pki_ep *ep = ep_new(&iface, 1, false, getpid());
    struct pki_blob good, bad;

    cr_assert(shm()->ep_init(ep, &good) == PK_OK && pki_shm_hello_parse(&good, &hello) == NULL);
    cr_assert(ftruncate(good.fd, 0) == -1 && errno == EPERM, "sealed");
    refused(&good, -1);
    refused(&good, open("/dev/null", O_RDWR | O_CLOEXEC));
    refused(&good, memfd(bytes, 0));
    refused(&good, memfd(bytes, F_SEAL_GROW | F_SEAL_SEAL));
    refused(&good, memfd(bytes - 4096, seals));
    refused(&good, memfd(bytes, seals | F_SEAL_WRITE));
    bad = good;
    bad.len--;
    refused(&bad, memfd(bytes, seals));
    for (size_t field = 0; field < offsetof(struct pki_shm_hello, inbox_address); field += 4) {
        bad = good;
        bad.bytes[field] ^= 1;
        refused(&bad, memfd(bytes, seals));
    }
    for (size_t field = offsetof(struct pki_shm_hello, fast_copy); field < sizeof hello; field += 4) {
        bad = good;
        bad.bytes[field] ^= 2;
        refused(&bad, memfd(bytes, seals));
    }
    ep_free(iface, ep);
}

/* Of every transport's endpoints: who has left does not come back, and who is dead is nothing else any more. */
Test(shm, final_states)
{
    for (enum pki_ep_state from = PKI_EP_UP; from <= PKI_EP_DEAD; from++)
        for (enum pki_ep_state to = PKI_EP_UP; to <= PKI_EP_DEAD; to++) {
            struct pki_ep ep = { .state = from };

            pki_ep_enter(&ep, to);
            cr_expect_eq(ep.state, from < PKI_EP_LEFT || to == PKI_EP_DEAD ? to : from, "from %d to %d: %d", (int)from, (int)to,
                         (int)ep.state);
        }
}
