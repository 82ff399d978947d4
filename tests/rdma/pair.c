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
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "pair.h"

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
            result = T->send(sides[0].ep, &msg, data);
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
    struct pki_msg want = { .kind = PKI_MSG_RTS, .flags = PKI_MSG_FLAG_COLL, .index = 7, .sig = 8, .op = 9, .bytes = 1 }, got;
    const void *payload;

    must(T->send(sides[1].ep, &want, NULL), "WANT");
    check(next_message(0, &got, &payload) && memcmp(&want, &got, sizeof got) == 0, "a message without payload comes as it was");
    T->pop(sides[0].ep);
}

/* ---- Puts ---- */

/* Several transfers into the same memory at a time: more than can bear numbers, so that some tell of themselves and others do not. What is
 * granted to one is not taken for another. */
static void puts_to_one_place(void)
{
    enum { TRANSFERS = 3 * PKI_RDMA_NUMBERS, BYTES = 70000 };
    static struct transfer t[TRANSFERS];
    uint8_t *source = malloc(BYTES), *target = calloc(1, BYTES);
    uint64_t until = pki_now_ns() + WAIT_NS;
    unsigned ended = 0, reported = 0;
    bool right = true;

    fill(source, BYTES, 1);
    for (unsigned i = 0; i < TRANSFERS && right; i++) {
        t[i] = (struct transfer){ .source = source, .bytes = BYTES, .piece = BYTES };
        t[i].grant = (struct pki_msg){ .kind = PKI_MSG_CTS, .op = 900 + i, .bytes = BYTES, .offset = (uintptr_t)target };
        right = is_granted(&t[i]);
    }
    for (unsigned i = 0; i < TRANSFERS && right; i++)
        while (t[i].issued < BYTES && right && pki_now_ns() < until) {
            right = put_next(&t[i]);
            progress();
        }
    while (right && (ended < TRANSFERS || reported < TRANSFERS) && pki_now_ns() < until && sides[1].ep->state != PKI_EP_DEAD) {
        struct pki_msg msg;

        progress();
        ended += events_put(sides[0].iface) != NULL;
        if (!next_news(&msg))
            continue;
        right = msg.kind == PKI_MSG_FIN && msg.op >= 900 && msg.op < 900 + TRANSFERS && t[msg.op - 900].done == 0 &&
                msg.offset == BYTES;
        t[msg.op - 900].done = BYTES;
        reported++;
    }
    check(right && ended == TRANSFERS && reported == TRANSFERS && holds(target, BYTES, 1),
          "48 transfers at a time into the same memory");
    check(rdma_ep(1)->grants.n == 0 && rdma_ep(1)->numbers_out == 0 && rdma_ep(0)->targets.n == 0, "and no grant is left over");
    free(source);
    free(target);
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
    uint64_t before = iface->base.counts.registrations;

    puts_of_all_sizes();
    check(iface->base.counts.registrations - before > 64 * (uint64_t)iface->nrails, "long buffers are registered in pieces");
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
        sides[1].iface->sleepers = 1;
        while (T->progress(sides[1].iface) || sides[1].iface->fd < 0)
            progress();
        quiet = quiet && !is_readable(sides[1].iface->fd, 0);
        while (T->send(sides[0].ep, &msg, NULL) != PK_OK && sides[0].ep->state != PKI_EP_DEAD)
            (void)T->progress(sides[0].iface);
        woken = is_readable(sides[1].iface->fd, 5000) && next_message(1, &got, &payload) && got.bytes == 5;
        T->pop(sides[1].ep);
        sides[1].iface->sleepers = 0;
    }
    check(woken, "each of 50 messages wakes a sleeping receiver");
    check(quiet, "and nothing else does");
}

/* Memory that was unmapped and mapped again at the same place is registered again: the device must not write into the old pages. */
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
    check(mr->monitored.is_monitored || getenv("PICKLE_TEST_NO_WATCH") != NULL, "its mapping is watched");
    pki_rdma_mr_put(iface, mr);
    before = iface->base.counts.registrations;
    must(pki_rdma_mr_get(iface, at + 5000, 1000, &mr), "registering");
    pki_rdma_mr_put(iface, mr);
    check(iface->base.counts.registrations == before, "a part of it is found in the cache");
    for (int i = 0; i < 50; i++) {
        if (i % 3 == 0 && madvise(at, bytes, MADV_DONTNEED) != 0)
            exit(1);
        if (i % 3 != 0 && (munmap(at, bytes) != 0 || mmap(at, bytes, PROT_READ | PROT_WRITE,
                                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != at))
            exit(1);
        memset(at, 2, bytes);
        before = iface->base.counts.registrations;
        must(pki_rdma_mr_get(iface, at, bytes, &mr), "registering");
        pki_rdma_mr_put(iface, mr);
        if (iface->base.counts.registrations == before)
            break;
    }
    check(iface->base.counts.registrations != before, "memory mapped again, or given back, is registered again, 50 times");
    for (int i = 0; i < 600; i++) {
        must(pki_rdma_mr_get(iface, at + (i % 200) * 4096, 4096 * (size_t)(1 + i / 200), &mr), "registering");
        pki_rdma_mr_put(iface, mr);
    }
    check(iface->ncached <= 256, "the cache is bounded");
    munmap(at, bytes);
}

/* Chunks of one put share doorbells and completions: no more than one for each queue pair. What else completes at the sender: the control channel. *exact: each
 * chunk is one request. */
static bool share_completions(bool *exact)
{
    const unsigned transfers = 2, chunks = 4;
    struct pki_rdma_iface *iface = rdma_ep(0)->iface;
    uint64_t requests = iface->base.counts.work_requests, doorbells = iface->base.counts.doorbells,
             completions = iface->base.counts.completions;
    unsigned shared = transfers * rdma_ep(0)->nqps; /* what completes here beside them are the grants that come */

    for (unsigned i = 0; i < transfers; i++)
        (void)transfer(chunks << 20, 0, chunks << 20, 800 + i, NULL);
    requests = iface->base.counts.work_requests - requests;
    doorbells = iface->base.counts.doorbells - doorbells;
    completions = iface->base.counts.completions - completions;
    printf("     %llu requests, %llu doorbells, %llu completions for %u transfers of %u MiB\n", (unsigned long long)requests,
           (unsigned long long)doorbells, (unsigned long long)completions, transfers, chunks);
    *exact = *exact && requests == transfers * chunks;
    return doorbells <= shared && completions <= shared + transfers;
}

/* Where the machine has no time for a rank, what that posts or hears of may come in two parts: but not every time. */
static void few_completions(void)
{
    bool exact = true, share = false;

    if (rdma_ep(0)->nqps > 2)
        return;
    for (int turn = 0; turn < 5 && !share; turn++)
        share = share_completions(&exact);
    check(exact && share, "chunks share doorbells and completions");
}

static unsigned doomed; /* number of the next queue pair to fail */

static void kill_qp(void)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
    struct ibv_qp *qp = rdma_ep(doomed / 8 % 2)->qps[doomed % (1 + rdma_ep(0)->nqps)].qp;

    if (qp != NULL)
        (void)pki_verbs(NULL)->modify_qp(qp, &attr, IBV_QP_STATE);
}

/* Whichever queue pair fails, at either end, in the middle of a transfer: new ones move the rest. */
static void failing_qp(void)
{
    bool right = true;

    for (doomed = 0; doomed < 16 && right; doomed++) {
        size_t bytes = doomed % 2 == 0 ? 4 << 20 : 2 << 20; /* with FINs, and with writes that tell of themselves */

        right = transfer(bytes, 3, doomed % 2 == 0 ? 1 << 19 : bytes, 500 + doomed, kill_qp) &&
                transfer(100000, 5, 100000, 600 + doomed, NULL);
    }
    check(right, "a queue pair fails, 16 times, the lane's or one for data: all bytes come, once");
    check(rdma_ep(0)->recover.epoch > 0 && rdma_ep(0)->recover.epoch == rdma_ep(1)->recover.epoch, "and they were made again");
    printf("     %u times\n", rdma_ep(0)->recover.epoch);
    check(rdma_ep(1)->grants.n == 0 && rdma_ep(1)->numbers_out == 0 && rdma_ep(0)->targets.n == 0, "no grant is left over");
}

/* Messages cross while queue pairs fail: none is lost, none comes twice. */
static void failing_ctrl(void)
{
    unsigned sent[2] = { 0 }, got[2] = { 0 }, n = 0;
    uint64_t until = pki_now_ns() + WAIT_NS;
    bool right = true;
    struct pki_msg msg;
    const void *payload;

    doomed = 0;
    while (right && (got[0] < 2000 || got[1] < 2000) && pki_now_ns() < until && sides[0].ep->state != PKI_EP_DEAD &&
           sides[1].ep->state != PKI_EP_DEAD) {
        for (int s = 0; s < 2; s++) {
            uint32_t what = sent[s];

            msg = (struct pki_msg){ .kind = what % 3 == 0 ? PKI_MSG_CREDIT : PKI_MSG_EAGER, .op = what };
            msg.payload = msg.kind == PKI_MSG_EAGER ? sizeof what : 0;
            sent[s] += sent[s] < 2000 && T->send(sides[s].ep, &msg, &what) == PK_OK;
            while (T->peek(sides[s].ep, &msg, &payload)) {
                right = right && msg.op == got[s] && (msg.payload == 0 || memcmp(payload, &got[s], sizeof got[s]) == 0);
                got[s]++;
                T->pop(sides[s].ep);
            }
        }
        if (++n % 400 == 0 && doomed < 16 && rdma_ep(0)->recover.state == PKI_RDMA_UP &&
            rdma_ep(1)->recover.state == PKI_RDMA_UP) {
            kill_qp();
            doomed += 8;
        }
        progress();
    }
    check(right && got[0] == 2000 && got[1] == 2000 && doomed > 0,
          "2000 messages each way while queue pairs fail, each once, in order");
}

static void no_path_left(void)
{
    notes_lost = true;
    sides[0].ep->notes->carried = false;
    doomed = 1;
    check(!transfer(8 << 20, 0, 1 << 20, 700, kill_qp) && sides[0].ep->state == PKI_EP_DEAD,
          "where no notes are carried the endpoint is dead");
    check(pki_error_get()->code == PK_ERR_PEER, "and the error says so");
}

/* Messages that were sent arrive though their sender leaves at once; leaving is no failure. */
static void leaving(void)
{
    struct pki_msg msg = { .kind = PKI_MSG_CREDIT, .bytes = 5 }, got = { 0 };
    const void *payload;

    must(T->send(sides[0].ep, &msg, NULL), "CREDIT");
    sides[0].ep->farewell.mine = true;
    while (sides[0].ep->farewell.lingers)
        progress();
    T->ep_close(sides[0].ep);
    check(next_message(1, &got, &payload) && got.kind == PKI_MSG_CREDIT && got.bytes == 5,
          "the last message of a peer that leaves");
    T->pop(sides[1].ep);
    progress();
    check(sides[1].ep->state != PKI_EP_DEAD && T->send(sides[1].ep, &msg, NULL) == PK_OK, "leaving in good order is no failure");
}

/* Its shutdown message has come, and it does not know that when its queue pairs fail. */
static void shutdown_seen(void)
{
    uint64_t until = pki_now_ns() + WAIT_NS;

    sides[0].ep->farewell.mine = true;
    (void)T->progress(sides[0].iface);
    while (!pki_rdma_has_left(rdma_ep(1)) && pki_now_ns() < until)
        (void)T->progress(sides[1].iface);
    pki_rdma_broken(rdma_ep(0), "made to fail");
    until = pki_now_ns() + rdma_ep(0)->iface->retry_ns / 2;
    while (sides[0].ep->farewell.lingers)
        progress();
    check(pki_rdma_has_left(rdma_ep(0)) && sides[0].ep->state != PKI_EP_DEAD && sides[1].ep->state != PKI_EP_DEAD &&
              pki_now_ns() < until,
          "who mends its end for a goodbye that has come is told so");
}

/* A child of fork opens devices of its own, and what its memory becomes is noticed there too. */
static void in_a_child(void)
{
    int status = -1;
    pid_t child;

    fflush(stdout);
    child = fork();
    if (child == 0) {
        open_pair(PKI_RDMA_PIECE_SHIFT);
        failures = 0;
        remapped_memory();
        _exit(failures == 0 ? 0 : 1);
    }
    check(child > 0 && waitpid(child, &status, 0) == child && status == 0, "all that in a child of fork");
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
            must(T->send(sides[s].ep, &msg, buffer), "ping");
            (void)next_message(1 - s, &msg, &payload);
            T->pop(sides[1 - s].ep);
        }
    printf("half round trip of 8 bytes: %.1f us\n", (now_us() - start) / 400);
    requests = iface->base.counts.work_requests;
    doorbells = iface->base.counts.doorbells;
    completions = iface->base.counts.completions;
    registrations = iface->base.counts.registrations;
    start = now_us();
    (void)transfer(4 << 20, 0, 1 << 20, 700, NULL);
    printf("4 MiB: %.1f MB/s with filling and checking; %llu requests, %llu doorbells, %llu completions, %llu registrations\n",
           4 * 1.048576e6 / (now_us() - start), (unsigned long long)(iface->base.counts.work_requests - requests),
           (unsigned long long)(iface->base.counts.doorbells - doorbells),
           (unsigned long long)(iface->base.counts.completions - completions),
           (unsigned long long)(iface->base.counts.registrations - registrations));
}

/* Argument "moves": without what is the same whatever the queue pairs are. */
int main(int argc, char **argv)
{
    bool all = argc < 2 || strcmp(argv[1], "moves") != 0;
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
    puts_to_one_place();
    if (all) {
        remapped_memory();
        in_a_child();
    }
    few_completions();
    if (all)
        figures();
    leaving();
    close_pair();
    open_pair(16);
    puts_in_pieces();
    if (all) {
        sleeping();
        shutdown_seen();
    }
    close_pair();
    open_pair(PKI_RDMA_PIECE_SHIFT);
    failing_qp();
    failing_ctrl();
    no_path_left();
    close_pair();
    return failures == 0 ? 0 : 1;
}
