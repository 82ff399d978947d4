/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two endpoints of the rdma transport in one process, on whatever devices there are: messages with rings at their limits, puts of all
 * sizes, queue pairs that fail, a peer that leaves. Exit code 77 without a device.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "transport/rdma/rdma.h"
#include "util/clock.h"

extern const struct pki_transport pki_transport_rdma;

#define T (&pki_transport_rdma)
#define WAIT_NS (20 * PKI_NS_PER_S)

struct side {
    struct pki_iface *iface;
    struct pki_ep *ep;
    struct pki_blob blob;
};

static struct side sides[2];
static unsigned failures;

static void check(bool good, const char *what)
{
    failures += !good;
    printf("%s %s\n", good ? "PASS" : "FAIL", what);
    fflush(stdout);
}

static void must(pk_result_t result, const char *what)
{
    if (result == PK_OK)
        return;
    printf("FAIL %s: %d %s\n", what, (int)result, pki_error_get()->text);
    exit(1);
}

static struct pki_rdma_ep *rdma_ep(int side)
{
    return pki_container_of(sides[side].ep, struct pki_rdma_ep, base);
}

static void open_pair(uint32_t piece_shift)
{
    struct pki_iface_config config = { .size = 2 };

    for (int s = 0; s < 2; s++) {
        config.rank = s;
        sides[s].iface = calloc(1, T->iface_bytes);
        sides[s].ep = calloc(1, T->ep_bytes);
        sides[s].iface->transport = T;
        pki_list_init(&sides[s].iface->done);
        must(T->open(&config, sides[s].iface), "open");
        pki_rdma_iface_of(sides[s].iface)->piece_shift = piece_shift;
        sides[s].ep->iface = sides[s].iface;
        sides[s].ep->rank = s;
        sides[s].ep->peer = 1 - s;
        must(T->ep_init(sides[s].ep, &sides[s].blob), "ep_init");
    }
    must(T->ep_connect(sides[0].ep, &sides[1].blob), "ep_connect");
    must(T->ep_connect(sides[1].ep, &sides[0].blob), "ep_connect");
}

static void close_pair(void)
{
    for (int s = 0; s < 2; s++) {
        T->ep_close(sides[s].ep);
        free(sides[s].ep);
    }
    for (int s = 0; s < 2; s++) {
        T->close(sides[s].iface);
        free(sides[s].iface);
    }
}

static void progress(void)
{
    (void)T->progress(sides[0].iface);
    (void)T->progress(sides[1].iface);
}

static uint8_t byte_at(size_t i, unsigned seed)
{
    return (uint8_t)((i * 2654435761u + seed) >> 7);
}

static void fill(uint8_t *at, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        at[i] = byte_at(i, seed);
}

static bool holds(const uint8_t *at, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != byte_at(i, seed))
            return false;
    return true;
}

/* Take one message at `side`; false when time runs out. */
static bool next_message(int side, struct pki_msg *msg, const void **payload)
{
    uint64_t until = pki_now_ns() + WAIT_NS;

    while (!T->peek(sides[side].ep, msg, payload)) {
        progress();
        if (sides[side].ep->dead || pki_now_ns() > until)
            return false;
    }
    return true;
}

/* ---- Messages ---- */

static void messages(void)
{
    static const uint16_t sizes[] = { 0, 1, 40, 112, 113, 500, PKI_RDMA_PAYLOAD_MAX };
    static uint8_t data[PKI_RDMA_PAYLOAD_MAX];
    unsigned sent = 0, got = 0, full = 0;
    uint64_t until = pki_now_ns() + WAIT_NS;
    bool right = true;

    while (got < 2000 && right) {
        struct pki_msg msg = { .kind = PKI_MSG_EAGER, .op = sent, .sig = sent * 3, .payload = sizes[sent % 7] };
        const void *payload;
        pk_result_t result = PK_IN_PROGRESS;

        fill(data, msg.payload, sent);
        if (sent < 2000)
            result = T->msg(sides[0].ep, &msg, data);
        if (result == PK_OK) {
            sent++;
            continue;
        }
        full += sent < 2000;
        right = result == PK_IN_PROGRESS && pki_now_ns() < until;
        progress(); /* the sender's side too: it may wait for its own completions */
        if (right && T->peek(sides[1].ep, &msg, &payload)) {
            right = msg.op == got && msg.sig == got * 3 && msg.payload == sizes[got % 7] && holds(payload, msg.payload, got);
            T->pop(sides[1].ep);
            got++;
        }
    }
    check(right && got == 2000 && full > 0, "2000 messages of 0 to 8192 bytes, in order, through rings that were full");
}

static void long_messages(void)
{
    struct pki_msg want = { .kind = PKI_MSG_WANT, .flags = PKI_MSG_FLAG_COLL, .index = 7, .sig = 8, .op = 9, .bytes = 1 }, got;
    const void *payload;

    must(T->msg(sides[1].ep, &want, NULL), "WANT");
    check(next_message(0, &got, &payload) && memcmp(&want, &got, sizeof got) == 0, "a message without payload comes as it was");
    T->pop(sides[0].ep);
}

/* ---- Puts ---- */

/* What the engine does for one transfer: grant, put in pieces, FIN. `disturb` is called when half of the pieces are on their way. */
static bool transfer(size_t bytes, size_t offset, size_t piece, unsigned op, void (*disturb)(void))
{
    uint8_t *source = malloc(bytes + offset + 64), *target = calloc(1, bytes + offset + 128);
    struct pki_msg grant = { .kind = PKI_MSG_GRANT, .op = op, .bytes = bytes, .offset = (uintptr_t)target + 64 + offset }, msg;
    struct pki_put puts[64];
    const void *payload;
    size_t issued = 0, done = 0;
    unsigned n = 0, ended = 0;
    uint64_t until = pki_now_ns() + WAIT_NS;
    bool right;

    fill(source + offset, bytes, op);
    while (T->msg(sides[1].ep, &grant, NULL) == PK_IN_PROGRESS)
        progress();
    right = next_message(0, &msg, &payload) && msg.kind == PKI_MSG_GRANT && msg.payload == 0 && msg.offset == grant.offset;
    T->pop(sides[0].ep);
    while (right && done < bytes && pki_now_ns() < until) {
        struct pki_list *node;

        if (issued < bytes) {
            struct pki_put *put = &puts[n];
            pk_result_t result;

            *put = (struct pki_put){ .ep = sides[0].ep,
                                     .src = source + offset + issued,
                                     .remote = msg.offset + issued,
                                     .bytes = bytes - issued < piece ? bytes - issued : piece };
            pki_list_init(&put->node);
            result = T->put(put);
            if (result == PK_OK) {
                n++;
                issued += put->bytes;
            }
            right = result == PK_OK || result == PK_IN_PROGRESS;
        }
        if (disturb != NULL && issued >= bytes / 2) {
            disturb();
            disturb = NULL;
        }
        progress();
        while ((node = pki_list_pop(&sides[0].iface->done)) != NULL) {
            struct pki_put *put = pki_container_of(node, struct pki_put, node);

            right = right && put == &puts[ended++] && put->result == PK_OK;
            done += put->bytes;
        }
    }
    msg = (struct pki_msg){ .kind = PKI_MSG_FIN, .op = op, .bytes = bytes, .offset = bytes };
    right = right && done == bytes && T->msg(sides[0].ep, &msg, NULL) == PK_OK && next_message(1, &msg, &payload) &&
            msg.kind == PKI_MSG_FIN;
    if (right)
        T->pop(sides[1].ep);
    right = right && holds(target + 64 + offset, bytes, op);
    for (size_t i = 0; i < 64; i++)
        right = right && target[offset + i] == 0 && target[offset + 64 + bytes + i] == 0;
    free(source);
    free(target);
    return right;
}

static void puts_of_all_sizes(void)
{
    static const size_t sizes[] = { 1, 7, 4096, 65536, 65537, 1000003, 4 << 20 };
    bool right = true;

    for (unsigned i = 0; i < 7; i++)
        right = right && transfer(sizes[i], i, sizes[i] / 3 + 1, 100 + i, NULL);
    check(right, "puts of 1 byte to 4 MiB, nothing beside them touched");
    check(rdma_ep(1)->grants.n == 0 && rdma_ep(0)->targets.n == 0 && pki_list_empty(&rdma_ep(0)->iface->used) &&
              pki_list_empty(&rdma_ep(1)->iface->used),
          "no registration is left in use");
}

/* Both ends have registered memory in pieces of 64 KiB. */
static void puts_in_pieces(void)
{
    struct pki_rdma_iface *iface = rdma_ep(0)->iface;
    uint64_t before = iface->registrations;

    puts_of_all_sizes();
    check(iface->registrations - before > 64 * (uint64_t)iface->nrails, "long buffers are registered in pieces");
}

static bool is_readable(int fd, int ms)
{
    struct pollfd poll_fd = { .fd = fd, .events = POLLIN };

    return poll(&poll_fd, 1, ms) == 1;
}

/* Whoever has nothing to do may sleep until the device tells of a completion. */
static void sleeping(void)
{
    struct pki_msg msg = { .kind = PKI_MSG_CREDIT, .bytes = 5 }, got;
    const void *payload;
    bool woken = true, quiet = true;

    for (int i = 0; i < 50 && woken; i++) {
        int fd;

        while ((fd = T->wait_fd(sides[1].iface)) < 0)
            progress();
        quiet = quiet && !is_readable(fd, 0);
        while (T->msg(sides[0].ep, &msg, NULL) != PK_OK && !sides[0].ep->dead)
            (void)T->progress(sides[0].iface);
        woken = is_readable(fd, 5000) && next_message(1, &got, &payload) && got.bytes == 5;
        T->pop(sides[1].ep);
    }
    check(woken, "each of 50 messages wakes a sleeping receiver");
    check(quiet, "and nothing else does");
}

/* Memory that was unmapped and mapped anew at the same place is registered again: the device must not write into the old pages. */
static void remapped_memory(void)
{
    const size_t bytes = 1 << 20;
    struct pki_rdma_iface *iface = rdma_ep(1)->iface;
    uint8_t *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct pki_rdma_mr *mr = NULL;
    uint64_t before;

    if (at == MAP_FAILED)
        exit(1);
    memset(at, 1, bytes);
    must(pki_rdma_mr_get(iface, at, bytes, &mr), "registering");
    check(mr->watch.watched || getenv("PICKLE_TEST_NO_WATCH") != NULL, "its mapping is watched");
    pki_rdma_mr_put(iface, mr);
    before = iface->registrations;
    must(pki_rdma_mr_get(iface, at + 5000, 1000, &mr), "registering");
    pki_rdma_mr_put(iface, mr);
    check(iface->registrations == before, "a part of it is found in the cache");
    for (int i = 0; i < 50; i++) {
        if (i % 3 == 0 && madvise(at, bytes, MADV_DONTNEED) != 0)
            exit(1);
        if (i % 3 != 0 && (munmap(at, bytes) != 0 || mmap(at, bytes, PROT_READ | PROT_WRITE,
                                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != at))
            exit(1);
        memset(at, 2, bytes);
        before = iface->registrations;
        must(pki_rdma_mr_get(iface, at, bytes, &mr), "registering");
        pki_rdma_mr_put(iface, mr);
        if (iface->registrations == before)
            break;
    }
    check(iface->registrations != before, "memory mapped anew, or given back, is registered anew, 50 times");
    for (int i = 0; i < 600; i++) {
        must(pki_rdma_mr_get(iface, at + (i % 200) * 4096, 4096 * (size_t)(1 + i / 200), &mr), "registering");
        pki_rdma_mr_put(iface, mr);
    }
    check(iface->ncached <= 256, "the cache is bounded");
    munmap(at, bytes);
}

/* Chunks of one put share doorbells and completions: no more than one for each queue pair. What else completes at the sender: the lane. */
static void few_completions(void)
{
    const unsigned transfers = 8, chunks = 4;
    struct pki_rdma_iface *iface = rdma_ep(0)->iface;
    uint64_t requests = iface->work_requests, doorbells = iface->doorbells, completions = iface->completions;
    unsigned shared;

    if (rdma_ep(0)->nqps > 2)
        return;
    for (unsigned i = 0; i < transfers; i++)
        (void)transfer(chunks << 20, 0, chunks << 20, 800 + i, NULL);
    requests = iface->work_requests - requests;
    doorbells = iface->doorbells - doorbells;
    completions = iface->completions - completions;
    shared = transfers * rdma_ep(0)->nqps + 2 * transfers; /* and for each transfer its grant, and its FIN */
    check(requests >= transfers * (chunks + 1) && doorbells <= shared + 2 && completions <= shared + 2,
          "chunks share doorbells and completions");
    printf("     %llu requests, %llu doorbells, %llu completions for %u transfers of %u MiB\n", (unsigned long long)requests,
           (unsigned long long)doorbells, (unsigned long long)completions, transfers, chunks);
}

static void kill_data_qp(void)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

    (void)pki_verbs(NULL)->modify_qp(rdma_ep(0)->qps[1].qp, &attr, IBV_QP_STATE);
}

static void failing_qp(void)
{
    if (rdma_ep(0)->nqps < 2)
        return;
    check(transfer(8 << 20, 0, 1 << 20, 500, kill_data_qp) && rdma_ep(0)->qps[1].dead,
          "a queue pair fails in the middle of a transfer; the others move the rest");
    check(transfer(1 << 20, 3, 1 << 20, 501, NULL), "the next transfer goes without it");
}

static void kill_all_data_qps(void)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

    for (uint32_t i = 1; i <= rdma_ep(0)->nqps; i++)
        (void)pki_verbs(NULL)->modify_qp(rdma_ep(0)->qps[i].qp, &attr, IBV_QP_STATE);
}

static void no_path_left(void)
{
    check(!transfer(8 << 20, 0, 1 << 20, 600, kill_all_data_qps) && sides[0].ep->dead,
          "without a queue pair the endpoint is dead");
    check(pki_error_get()->code == PK_ERR_PEER, "and the error says so");
}

/* Messages that were sent arrive though their sender leaves at once; leaving is no failure. */
static void leaving(void)
{
    struct pki_msg msg = { .kind = PKI_MSG_CREDIT, .bytes = 5 }, got = { 0 };
    const void *payload;

    must(T->msg(sides[0].ep, &msg, NULL), "CREDIT");
    T->ep_close(sides[0].ep);
    check(next_message(1, &got, &payload) && got.kind == PKI_MSG_CREDIT && got.bytes == 5,
          "the last message of a peer that leaves");
    T->pop(sides[1].ep);
    progress();
    check(!sides[1].ep->dead && T->msg(sides[1].ep, &msg, NULL) == PK_OK, "leaving in good order is no failure");
}

static double now_us(void)
{
    return (double)pki_now_ns() / 1e3;
}

static void figures(void)
{
    static uint8_t buffer[2 << 20];
    struct pki_rdma_iface *iface = rdma_ep(0)->iface;
    struct pki_msg msg = { .kind = PKI_MSG_EAGER, .payload = 8 };
    const void *payload;
    double start = now_us();
    uint64_t requests, doorbells, completions, registrations;

    for (int i = 0; i < 200; i++)
        for (int s = 0; s < 2; s++) {
            msg.payload = 8;
            must(T->msg(sides[s].ep, &msg, buffer), "ping");
            (void)next_message(1 - s, &msg, &payload);
            T->pop(sides[1 - s].ep);
        }
    printf("half round trip of 8 bytes: %.1f us\n", (now_us() - start) / 400);
    requests = iface->work_requests;
    doorbells = iface->doorbells;
    completions = iface->completions;
    registrations = iface->registrations;
    start = now_us();
    for (unsigned i = 0; i < 4; i++)
        (void)transfer(4 << 20, 0, 1 << 20, 700 + i, NULL);
    printf("16 MiB: %.1f MB/s with filling and checking; %llu requests, %llu doorbells, %llu completions, %llu registrations\n",
           16 * 1.048576e6 / (now_us() - start), (unsigned long long)(iface->work_requests - requests),
           (unsigned long long)(iface->doorbells - doorbells), (unsigned long long)(iface->completions - completions),
           (unsigned long long)(iface->registrations - registrations));
}

int main(void)
{
    struct pki_probe probe;

    T->probe(&(struct pki_iface_config){ .size = 2 }, &probe);
    printf("probe: %s, %.2f GB/s\n", probe.reason, probe.gbps);
    if (!probe.usable)
        return 77;
    open_pair(PKI_RDMA_PIECE_SHIFT);
    for (int i = 0; i < rdma_ep(0)->iface->nrails; i++)
        printf("rail %d: %s port %d %s gid %d mtu %d\n", i, rdma_ep(0)->iface->rails[i].name, rdma_ep(0)->iface->rails[i].port,
               rdma_ep(0)->iface->rails[i].interface, rdma_ep(0)->iface->rails[i].gid_index,
               128 << rdma_ep(0)->iface->rails[i].mtu);
    printf("%u data queue pairs, %u bytes inline\n", rdma_ep(0)->nqps, rdma_ep(0)->qps[0].inline_bytes);
    messages();
    long_messages();
    puts_of_all_sizes();
    remapped_memory();
    few_completions();
    figures();
    leaving();
    close_pair();
    open_pair(16);
    puts_in_pieces();
    sleeping();
    close_pair();
    open_pair(PKI_RDMA_PIECE_SHIFT);
    failing_qp();
    no_path_left();
    close_pair();
    return failures == 0 ? 0 : 1;
}
