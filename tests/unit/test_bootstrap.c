/* SPDX-License-Identifier: Apache-2.0 */
/* The bootstrap among ranks that are threads. */
#include "bootstrap_ranks.h"

/* ---- all goes well ---- */

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
