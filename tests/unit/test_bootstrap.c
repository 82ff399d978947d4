/* SPDX-License-Identifier: Apache-2.0 */
/* The bootstrap among ranks that are threads, with strangers at the door. */
#include "bootstrap_ranks.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm/bootstrap_accept.h"

/* ---- all goes well ---- */

static pk_result_t gather_body(struct rank *self, struct pki_bootstrap *b)
{
    static const size_t sizes[] = { 1, 24, 5000, 100000 };
    const uint64_t deadline = pki_deadline_ns(LIMIT_MS);
    pk_result_t result = PK_OK;

    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0] && result == PK_OK; s++) {
        unsigned char *mine = malloc(sizes[s]);
        unsigned char *all = calloc((size_t)self->size, sizes[s]);

        memset(mine, self->rank + 1, sizes[s]);
        result = pki_bootstrap_allgather(b, mine, sizes[s], all, deadline);
        for (size_t i = 0; i < (size_t)self->size * sizes[s] && result == PK_OK; i++)
            if (all[i] != (unsigned char)(i / sizes[s] + 1))
                result = PK_ERR_INTERNAL;
        free(mine);
        free(all);
    }
    if (result == PK_OK)
        result = pki_bootstrap_poll(b);
    return result == PK_OK ? pki_bootstrap_barrier(b, deadline) : result;
}

static void gather_among(int size)
{
    struct rank ranks[RANKS_MAX];
    int before;

    open_files();
    before = open_files();
    make_ranks(ranks, size, gather_body);
    start_ranks(ranks, size);
    join_ranks(ranks, size);
    expect_all(ranks, size, PK_OK, NULL);
    cr_expect_eq(open_files(), before);
}

Test(bootstrap, gather_1, .timeout = 20)
{
    gather_among(1);
}
Test(bootstrap, gather_2, .timeout = 20)
{
    gather_among(2);
}
Test(bootstrap, gather_8, .timeout = 20)
{
    gather_among(8);
}
Test(bootstrap, gather_32, .timeout = 20)
{
    gather_among(32);
}

Test(bootstrap, rank_0_comes_late, .timeout = 20)
{
    struct rank ranks[4];

    make_ranks(ranks, 4, gather_body);
    ranks[0].delay_ms = 200;
    start_ranks(ranks, 4);
    join_ranks(ranks, 4);
    expect_all(ranks, 4, PK_OK, NULL);
}

static pk_result_t watch_body(struct rank *self, struct pki_bootstrap *b)
{
    const uint64_t until = pki_deadline_ns(LIMIT_MS);
    pk_result_t result = PK_OK;

    if (self->rank == 2) {
        pki_fail(PK_ERR_NEEDS_SM, NULL, "made up");
        pki_bootstrap_tell(b, PK_ERR_NEEDS_SM, 1, "made up by rank 2");
        return PK_ERR_NEEDS_SM;
    }
    while (result == PK_OK && pki_now_ns() < until) {
        sleep_ms(1);
        result = pki_bootstrap_poll(b);
    }
    return result;
}

Test(bootstrap, tell_reaches_everybody, .timeout = 20)
{
    struct rank ranks[4];

    make_ranks(ranks, 4, watch_body);
    start_ranks(ranks, 4);
    join_ranks(ranks, 4);
    expect_all(ranks, 4, PK_ERR_NEEDS_SM, "made up");
    cr_expect_eq(ranks[3].error.peer, 1);
}

/* Leaving in good order is no error for those who stay. */
static pk_result_t leave_body(struct rank *self, struct pki_bootstrap *b)
{
    if (self->rank == 1)
        return PK_OK;
    sleep_ms(100);
    return pki_bootstrap_poll(b);
}

Test(bootstrap, leaving_is_no_death, .timeout = 20)
{
    struct rank ranks[3];

    make_ranks(ranks, 3, leave_body);
    start_ranks(ranks, 3);
    join_ranks(ranks, 3);
    expect_all(ranks, 3, PK_OK, NULL);
}

static pk_result_t die_body(struct rank *self, struct pki_bootstrap *b)
{
    unsigned char all[8] = { 0 };

    if (self->rank == 2) {
        shutdown(b->conns[0].fd, SHUT_RDWR); /* what the kernel does for a killed process */
        return PK_OK;
    }
    return pki_bootstrap_allgather(b, "x", 1, all, pki_deadline_ns(LIMIT_MS));
}

Test(bootstrap, death_is_named, .timeout = 20)
{
    struct rank ranks[4];

    make_ranks(ranks, 4, die_body);
    start_ranks(ranks, 4);
    join_ranks(ranks, 4);
    cr_expect_eq(ranks[0].result, PK_ERR_PEER);
    cr_expect_eq(ranks[1].result, PK_ERR_PEER);
    cr_expect_eq(ranks[3].result, PK_ERR_PEER);
    cr_expect(strstr(ranks[3].error.text, "rank 2 died") != NULL, "%s", ranks[3].error.text);
    cr_expect_lt(ranks[3].took_ms, SOON_MS);
}

/* ---- who is missing ---- */

Test(bootstrap, missing_ranks_are_named_to_all, .timeout = 20)
{
    struct rank ranks[8];
    int before = open_files();

    make_ranks(ranks, 8, NULL);
    for (int r = 0; r < 8; r++)
        ranks[r].timeout_ms = 600;
    for (int r = 0; r < 8; r++)
        if (r != 2 && r != 4 && r != 5)
            start_rank(&ranks[r]);
    for (int r = 0; r < 8; r++) {
        if (r == 2 || r == 4 || r == 5)
            continue;
        pthread_join(ranks[r].thread, NULL);
        cr_expect_eq(ranks[r].result, PK_ERR_TIMEOUT);
        cr_expect(strstr(ranks[r].error.text, "ranks 2, 4-5 of 8") != NULL, "rank %d: %s", r, ranks[r].error.text);
        cr_expect_eq(ranks[r].error.peer, 2);
        cr_expect_lt(ranks[r].took_ms, SOON_MS);
    }
    cr_expect_eq(open_files(), before);
}

/* The first deadline to pass is not rank 0's, and still everybody learns who it is that they wait for. */
Test(bootstrap, missing_rank_is_named_at_the_earliest_deadline, .timeout = 20)
{
    struct rank ranks[4];

    make_ranks(ranks, 4, NULL);
    ranks[1].timeout_ms = 500;
    start_ranks(ranks, 3);
    join_ranks(ranks, 3);
    expect_all(ranks, 3, PK_ERR_TIMEOUT, "rank 3 of 4 did not come");
}

static pk_result_t skip_body(struct rank *self, struct pki_bootstrap *b)
{
    unsigned char all[8];

    if (self->rank == 1) {
        sleep_ms(2000);
        return PK_OK;
    }
    return pki_bootstrap_allgather(b, "x", 1, all, pki_deadline_ns(300));
}

Test(bootstrap, missing_in_a_gather, .timeout = 20)
{
    struct rank ranks[4];

    make_ranks(ranks, 4, skip_body);
    start_ranks(ranks, 4);
    join_ranks(ranks, 4);
    for (int r = 0; r < 4; r++)
        if (r != 1)
            cr_expect(ranks[r].result == PK_ERR_TIMEOUT && strstr(ranks[r].error.text, "rank 1 of 4 did not come") != NULL,
                      "rank %d: %s", r, ranks[r].error.text);
}

Test(bootstrap, rank_0_missing, .timeout = 20)
{
    struct rank ranks[3];

    make_ranks(ranks, 3, NULL);
    ranks[1].timeout_ms = ranks[2].timeout_ms = 200;
    start_ranks(ranks + 1, 2);
    join_ranks(ranks + 1, 2);
    expect_all(ranks + 1, 2, PK_ERR_TIMEOUT, "rank 0 at ");
}

/* ---- who disagrees ---- */

Test(bootstrap, size_disagreement, .timeout = 20)
{
    struct rank ranks[3];

    make_ranks(ranks, 3, NULL);
    ranks[1].size = 5;
    start_ranks(ranks, 2);
    join_ranks(ranks, 2);
    expect_all(ranks, 2, PK_ERR_MISMATCH, "rank 1 says that there are 5 ranks, rank 0 says 3");
}

Test(bootstrap, duplicate_rank, .timeout = 20)
{
    struct rank ranks[4];

    make_ranks(ranks, 4, NULL);
    ranks[3].rank = 2;
    start_ranks(ranks, 4);
    join_ranks(ranks, 4);
    cr_expect_eq(ranks[0].result, PK_ERR_MISMATCH);
    cr_expect(strstr(ranks[0].error.text, "two processes call themselves rank 2 of 4") != NULL, "%s", ranks[0].error.text);
    cr_expect_eq(ranks[3].result, PK_ERR_MISMATCH);
}

static pk_result_t uneven_body(struct rank *self, struct pki_bootstrap *b)
{
    unsigned char mine[16] = { 0 }, all[64];

    return pki_bootstrap_allgather(b, mine, self->rank == 1 ? 9 : 8, all, pki_deadline_ns(LIMIT_MS));
}

Test(bootstrap, gather_of_uneven_parts, .timeout = 20)
{
    struct rank ranks[3];

    make_ranks(ranks, 3, uneven_body);
    start_ranks(ranks, 3);
    join_ranks(ranks, 3);
    expect_all(ranks, 3, PK_ERR_MISMATCH, "rank 1 sent");
}

Test(bootstrap, arguments)
{
    struct pki_bootstrap *b = NULL;
    pk_unique_id_t id, other;

    cr_assert_eq(pki_bootstrap_id(&id), PK_OK);
    cr_expect_eq(pki_bootstrap_open(&b, 0, 0, &id, pki_deadline_ns(100), NULL), PK_ERR_ARG);
    cr_expect_eq(pki_bootstrap_open(&b, 2, 2, &id, pki_deadline_ns(100), NULL), PK_ERR_ARG);
    memset(&other, 0x5a, sizeof other);
    cr_expect_eq(pki_bootstrap_open(&b, 2, 1, &other, pki_deadline_ns(100), NULL), PK_ERR_ARG);
    other = id;
    other.bytes[8] ^= 1; /* not made here */
    cr_expect_eq(pki_bootstrap_open(&b, 2, 0, &other, pki_deadline_ns(100), NULL), PK_ERR_ARG);
    cr_expect_eq(pki_bootstrap_open(&b, 1, 0, &id, pki_deadline_ns(100), NULL), PK_OK);
    cr_expect_eq(pki_bootstrap_allgather(b, &id, PKI_BOOTSTRAP_GATHER_MAX + 1, &other, pki_deadline_ns(100)), PK_ERR_ARG);
    cr_expect_eq(pki_bootstrap_barrier(b, pki_deadline_ns(100)), PK_ERR_ARG); /* the first error stays */
    pki_bootstrap_close(b);
    cr_expect_eq(pki_bootstrap_open(&b, 2, 0, &id, pki_deadline_ns(100), NULL), PK_ERR_ARG); /* used up */
}

/* ---- strangers ---- */

Test(bootstrap, wrong_secret, .timeout = 20)
{
    struct rank ranks[3];
    int before = open_files();

    make_ranks(ranks, 3, NULL);
    ranks[0].timeout_ms = ranks[1].timeout_ms = 1000;
    ranks[2].id.bytes[9] ^= 0x40;
    start_ranks(ranks, 3);
    join_ranks(ranks, 3);
    cr_expect_eq(ranks[2].result, PK_ERR_AUTH);
    cr_expect_lt(ranks[2].took_ms, SOON_MS);
    expect_all(ranks, 2, PK_ERR_TIMEOUT, "rank 2 of 3 did not come");
    cr_expect(strstr(ranks[0].error.text, "1 connections came and did not prove the secret") != NULL, "%s", ranks[0].error.text);
    cr_expect_eq(open_files(), before);
}

static void speak_garbage(const pk_unique_id_t *id, int *fds, int count)
{
    unsigned char noise[300];
    struct pki_hello hello = { .kind = PKI_HELLO_CONTROL, .from = 1, .size = 2 };

    for (int i = 0; i < count; i++) {
        fds[i] = knock(id);
        for (size_t k = 0; k < sizeof noise; k++)
            noise[k] = (unsigned char)rand();
        if (i % 3 == 0)
            pki_wire_put_hello(noise, &hello); /* a good hello, then a proof that is none */
        cr_assert_eq(send(fds[i], noise, i % 3 == 1 ? 10 : sizeof noise, MSG_NOSIGNAL), i % 3 == 1 ? 10 : (ssize_t)sizeof noise);
    }
}

/* More idle connections than there are slots, before and after the ranks: nobody is delayed. */
Test(bootstrap, idle_and_garbage_disturb_nobody, .timeout = 30)
{
    struct rank ranks[4];
    int idle[400], garbage[60];

    make_ranks(ranks, 4, gather_body);
    for (int i = 0; i < 200; i++)
        idle[i] = knock(&ranks[0].id);
    start_rank(&ranks[0]);
    speak_garbage(&ranks[0].id, garbage, 60);
    start_ranks(ranks + 1, 2);
    sleep_ms(100);
    for (int i = 200; i < 400; i++)
        idle[i] = knock(&ranks[0].id);
    start_rank(&ranks[3]);
    join_ranks(ranks, 4);
    expect_all(ranks, 4, PK_OK, NULL);
    for (int r = 0; r < 4; r++)
        cr_expect_lt(ranks[r].took_ms, SOON_MS, "rank %d took %d ms", r, (int)ranks[r].took_ms);
    for (int i = 0; i < 400; i++)
        close(idle[i]);
    for (int i = 0; i < 60; i++)
        close(garbage[i]);
}

/* Somebody who plays an accepting end without the secret is not believed either. */
static void *impostor_main(void *arg)
{
    int listener = *(int *)arg;
    unsigned char hello[PKI_HELLO_BYTES], challenge[PKI_CHALLENGE_BYTES] = { 0x50, 0x4b, 0x63, 0x31 };
    int fd = accept(listener, NULL, NULL);

    if (fd >= 0 && recv(fd, hello, sizeof hello, MSG_WAITALL) == (ssize_t)sizeof hello)
        (void)!send(fd, challenge, sizeof challenge, MSG_NOSIGNAL);
    sleep_ms(100);
    close(fd);
    return NULL;
}

/* Plays rank 0 as far as the handshake: that much it knows. */
struct doorman {
    int listener, turns; /* connections to close after their proof */
    bool welcomes;       /* the next one */
    struct pki_secret secret;
};

static int shake_hands(const struct doorman *d)
{
    struct pki_handshake h;
    int fd = accept(d->listener, NULL, NULL);

    cr_assert_geq(fd, 0);
    pki_handshake_accept(&h, fd, &d->secret, UINT64_MAX);
    while (pki_handshake_step(&h) == PK_IN_PROGRESS)
        sleep_ms(1);
    cr_assert_eq((int)h.state, (int)PKI_HS_DONE);
    return fd;
}

static void *doorman_main(void *arg)
{
    const struct doorman *d = arg;
    const struct pki_frame frame = { .type = PKI_FRAME_WELCOME, .bytes = PKI_SESSION_BYTES };
    unsigned char bytes[PKI_FRAME_HEADER_BYTES + PKI_SESSION_BYTES] = { 0 };
    int fd;

    for (int i = 0; i < d->turns; i++)
        close(shake_hands(d));
    if (d->welcomes) {
        fd = shake_hands(d);
        pki_wire_put_frame(bytes, &frame);
        cr_expect_eq(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL), (ssize_t)sizeof bytes);
        sleep_ms(200);
        close(fd);
    }
    close(d->listener);
    return NULL;
}

static void join_at_door(struct rank *rank, bool welcomes)
{
    struct doorman d = { .turns = welcomes ? 3 : 1, .welcomes = welcomes };
    struct rank ranks[2];
    struct pki_id id;
    int listeners[PKI_ID_ADDRESSES];
    pthread_t thread;

    make_ranks(ranks, 2, NULL);
    cr_assert(pki_wire_get_id(&ranks[0].id, &id) && pki_listener_take(&ranks[0].id, listeners) == 1);
    cr_assert_eq(fcntl(listeners[0], F_SETFL, 0), 0); /* blocking */
    d.listener = listeners[0];
    d.secret = id.secret;
    cr_assert_eq(pthread_create(&thread, NULL, doorman_main, &d), 0);
    start_rank(&ranks[1]);
    pthread_join(ranks[1].thread, NULL);
    pthread_join(thread, NULL);
    *rank = ranks[1];
}

/* A rank whose connection is pushed out after its proof, and before it is admitted, comes again. */
Test(bootstrap, pushed_out_after_its_proof, .timeout = 20)
{
    struct rank rank;

    join_at_door(&rank, true);
    cr_expect_eq(rank.result, PK_OK, "%s", rank.error.text);
}

/* And does not wait until its deadline when there is nobody any more. */
Test(bootstrap, rank_0_dies_after_the_proof, .timeout = 20)
{
    struct rank rank;

    join_at_door(&rank, false);
    cr_expect_eq(rank.result, PK_ERR_PEER);
    cr_expect(strstr(rank.error.text, "rank 0 died") != NULL, "%s", rank.error.text);
    cr_expect_lt(rank.took_ms, SOON_MS);
}

Test(bootstrap, impostor_in_rank_0s_place, .timeout = 20)
{
    struct rank ranks[2];
    int listeners[PKI_ID_ADDRESSES];
    pthread_t impostor;

    make_ranks(ranks, 2, NULL);
    cr_assert_eq(pki_listener_take(&ranks[0].id, listeners), 1);
    fcntl(listeners[0], F_SETFL, 0);
    cr_assert_eq(pthread_create(&impostor, NULL, impostor_main, &listeners[0]), 0);
    start_rank(&ranks[1]);
    join_ranks(ranks + 1, 1);
    pthread_join(impostor, NULL);
    expect_all(ranks + 1, 1, PK_ERR_AUTH, NULL);
    close(listeners[0]);
}

/* ---- cancel ---- */

static void cancel_after(struct rank *ranks, int first, int count, const char *what)
{
    static atomic_bool cancel;
    uint64_t at;
    int before = open_files();

    atomic_store(&cancel, false);
    for (int r = first; r < first + count; r++) {
        ranks[r].cancel = &cancel;
        start_rank(&ranks[r]);
    }
    sleep_ms(150);
    at = pki_now_ns();
    atomic_store(&cancel, true);
    join_ranks(ranks + first, count);
    cr_expect_lt((pki_now_ns() - at) / PKI_NS_PER_MS, SOON_MS, "%s", what);
    expect_all(ranks + first, count, PK_ERR_ABORTED, NULL);
    cr_expect_leq(open_files(), before);
}

Test(bootstrap, cancel_rank_0, .timeout = 20)
{
    struct rank ranks[2];

    make_ranks(ranks, 2, NULL);
    cancel_after(ranks, 0, 1, "rank 0 waits for rank 1");
}

Test(bootstrap, cancel_before_rank_0_came, .timeout = 20)
{
    struct rank ranks[3];

    make_ranks(ranks, 3, NULL);
    cancel_after(ranks, 1, 2, "others wait for rank 0");
}

Test(bootstrap, cancel_before_rank_0_listens, .timeout = 20)
{
    struct rank ranks[2];
    int listeners[PKI_ID_ADDRESSES];

    make_ranks(ranks, 2, NULL);
    cr_assert_eq(pki_listener_take(&ranks[0].id, listeners), 1);
    close(listeners[0]);
    cancel_after(ranks, 1, 1, "connecting again and again");
}
