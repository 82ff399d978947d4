/* SPDX-License-Identifier: Apache-2.0 */
/* The bootstrap among ranks that are threads. */
#include "bootstrap_ranks.h"
#include "pickle/pickle.h"
#include "util/listen.h"
#include "util/resolve.h"

/* ---- all goes well ---- */

static void among(int size, pk_result_t (*body)(struct rank *, struct pki_bootstrap *))
{
    struct rank ranks[RANKS_MAX];
    int before;

    open_files();
    before = open_files();
    make_ranks(ranks, size, body);
    start_ranks(ranks, size);
    join_ranks(ranks, size);
    expect_all(ranks, size, PK_OK, NULL);
    cr_expect_eq(open_files(), before);
}

Test(bootstrap, gather_1, .timeout = 20)
{
    among(1, gather_body);
}
Test(bootstrap, gather_2, .timeout = 20)
{
    among(2, gather_body);
}
Test(bootstrap, gather_8, .timeout = 20)
{
    among(8, gather_body);
}
Test(bootstrap, gather_32, .timeout = 20)
{
    among(32, gather_body);
}

Test(bootstrap, all_to_all_1, .timeout = 20)
{
    among(1, alltoall_body);
}
Test(bootstrap, all_to_all_2, .timeout = 20)
{
    among(2, alltoall_body);
}
Test(bootstrap, all_to_all_8, .timeout = 20)
{
    among(8, alltoall_body);
}
Test(bootstrap, all_to_all_32, .timeout = 20)
{
    among(32, alltoall_body);
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
            cr_expect(ranks[r].result == PK_ERR_TIMEOUT &&
                          strstr(ranks[r].error.text, "rank 1 of 4 did not take the next step") != NULL,
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

/* The ranks' calls differ: some gather, one has something for each. */
static pk_result_t differing_body(struct rank *self, struct pki_bootstrap *b)
{
    unsigned char mine[3] = { 0 }, theirs[3];

    if (self->rank == 1)
        return pki_bootstrap_alltoall(b, mine, 1, theirs, pki_deadline_ns(LIMIT_MS));
    return pki_bootstrap_allgather(b, mine, 1, theirs, pki_deadline_ns(LIMIT_MS));
}

Test(bootstrap, all_to_all_beside_a_gather, .timeout = 20)
{
    struct rank ranks[3];

    make_ranks(ranks, 3, differing_body);
    start_ranks(ranks, 3);
    join_ranks(ranks, 3);
    expect_all(ranks, 3, PK_ERR_MISMATCH, "rank 1 sent message 2.0 of 3 bytes instead of 2.0 of 1");
}

/* One dies between two rounds, of which the second has nothing for most. */
static pk_result_t die_in_rounds_body(struct rank *self, struct pki_bootstrap *b)
{
    const size_t bytes = PKI_BOOTSTRAP_GATHER_MAX; /* one rank a round */
    unsigned char *mine = calloc(4, bytes), *theirs = malloc(4 * bytes);
    const struct pki_frame frame = { .type = PKI_FRAME_PART, .bytes = (uint32_t)bytes };
    pk_result_t result = PK_OK;

    if (self->rank == 2) {
        pki_wire_put_frame(mine, &frame);
        (void)pki_send_all(b->conns[0].fd, mine, PKI_FRAME_HEADER_BYTES + bytes,
                           &(struct pki_wait){ .deadline_ns = pki_deadline_ns(LIMIT_MS) }, NULL);
        shutdown(b->conns[0].fd, SHUT_RDWR);
    } else {
        result = pki_bootstrap_alltoall(b, mine, bytes, theirs, pki_deadline_ns(LIMIT_MS));
    }
    free(mine);
    free(theirs);
    return result;
}

Test(bootstrap, death_between_rounds_is_named, .timeout = 20)
{
    struct rank ranks[4];

    make_ranks(ranks, 4, die_in_rounds_body);
    start_ranks(ranks, 4);
    join_ranks(ranks, 4);
    for (int r = 0; r < 4; r++) {
        cr_expect_eq(ranks[r].result, r == 2 ? PK_OK : PK_ERR_PEER, "rank %d: %d, %s", r, ranks[r].result, ranks[r].error.text);
        cr_expect(r == 2 || strstr(ranks[r].error.text, "rank 2 died") != NULL, "rank %d: %s", r, ranks[r].error.text);
    }
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
    static struct pki_call_off cancel;
    uint64_t at;
    int before = open_files();

    atomic_store(&cancel.state, PKI_GOES_ON);
    for (int r = first; r < first + count; r++) {
        ranks[r].cancel = &cancel;
        start_rank(&ranks[r]);
    }
    sleep_ms(150);
    at = pki_now_ns();
    atomic_store(&cancel.state, PKI_CALLED_OFF);
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

    make_ranks(ranks, 2, NULL);
    close(take_listener(&ranks[0].id));
    ranks[1].at_meeting = true;
    cr_assert_eq(pki_meeting_of_id(&ranks[1].id, false, &ranks[1].meeting), PK_OK);
    ranks[1].meeting.listened = false; /* else it would soon be sure that nobody is there any more */
    cancel_after(ranks, 1, 1, "connecting again and again");
}

/* ---- earlier lives of the job ---- */

/* Ranks at one id's meeting, whose launcher has started the job again so many times, and one; 0: it does not say. */
static void make_lives(struct rank *ranks, int count, int size, const uint32_t *lives)
{
    make_ranks(ranks, count, gather_body);
    for (int r = 0; r < count; r++) {
        ranks[r].size = size;
        ranks[r].at_meeting = true;
        cr_assert_eq(pki_meeting_of_id(&ranks[r].id, r == 0, &ranks[r].meeting), PK_OK);
        ranks[r].meeting.life = lives[r];
    }
}

/* Each node counts by itself: that is no reason not to meet. */
Test(bootstrap, counts_of_restarts_may_differ, .timeout = 20)
{
    struct rank ranks[4];

    make_lives(ranks, 4, 4, (const uint32_t[]){ 2, 1, 0, 7 });
    start_ranks(ranks, 4);
    join_ranks(ranks, 4);
    expect_all(ranks, 4, PK_OK, NULL);
}

static void expect_earlier(const struct rank *rank)
{
    cr_expect_eq(rank->result, PK_ERR_MISMATCH, "%d, %s", rank->result, rank->error.text);
    cr_expect(strstr(rank->error.text, "another start of this job called itself rank") != NULL, "%s", rank->error.text);
}

/* Four processes, of which the last is a rank 1 of an earlier start: it may come before the one of this start, or after it. */
static void meet_stale(uint64_t stale_ms, uint64_t own_ms)
{
    struct rank ranks[4];

    make_lives(ranks, 4, 3, (const uint32_t[]){ 3, 3, 2, 1 });
    ranks[3].rank = 1;
    ranks[3].delay_ms = stale_ms;
    ranks[1].delay_ms = own_ms;
    ranks[2].delay_ms = 400;
    start_ranks(ranks, 4);
    join_ranks(ranks, 4);
    expect_all(ranks, 3, PK_OK, NULL);
    expect_earlier(&ranks[3]);
}

Test(bootstrap, a_rank_of_an_earlier_life_makes_way, .timeout = 20)
{
    meet_stale(0, 200);
}

Test(bootstrap, a_rank_of_an_earlier_life_is_refused, .timeout = 20)
{
    meet_stale(200, 0);
}

Test(bootstrap, a_rank_of_an_earlier_life_of_another_size_is_refused, .timeout = 20)
{
    struct rank ranks[3];

    make_lives(ranks, 3, 2, (const uint32_t[]){ 2, 2, 1 });
    ranks[2].rank = 5;
    ranks[2].size = 8;
    ranks[1].delay_ms = 300;
    start_ranks(ranks, 3);
    join_ranks(ranks, 3);
    expect_all(ranks, 2, PK_OK, NULL);
    expect_earlier(&ranks[2]);
}

/* Nothing tells two ranks 1 apart that are both of another life than rank 0: all are told. */
Test(bootstrap, two_of_another_life_are_a_mismatch, .timeout = 20)
{
    struct rank ranks[4];

    make_lives(ranks, 4, 4, (const uint32_t[]){ 3, 1, 1, 2 });
    ranks[3].rank = 1;
    start_ranks(ranks, 4);
    join_ranks(ranks, 4);
    cr_expect_eq(ranks[0].result, PK_ERR_MISMATCH);
    cr_expect(strstr(ranks[0].error.text, "two processes call themselves rank 1 of 4") != NULL, "%s", ranks[0].error.text);
}

/* ---- several addresses ---- */

/* An id whose rank 0 listens at the last of these; nobody listens at the others. */
static void make_at(struct rank *ranks, const char *const *wrong, int count)
{
    struct pki_meeting *zero = &ranks[0].meeting, *one = &ranks[1].meeting;
    int own = 1;

    make_lives(ranks, 2, 2, (const uint32_t[]){ 0, 0 });
    for (int i = 0; i < 2; i++) {
        pki_meeting_stop_listening(&ranks[i].meeting);
        pki_netif_loopback(&ranks[i].meeting.address[0]);
    }
    cr_assert_eq(pki_meeting_listen(zero->address, &own, false, NULL, zero->listeners), PK_OK);
    zero->listener_count = 1;
    one->address_count = count + 1;
    one->address[count] = zero->address[0];
    for (int i = 0; i < count; i++) {
        cr_assert_eq(pki_resolve_literal(wrong[i], &one->address[i], 1), 1);
        pki_netif_set_port(&one->address[i], pki_netif_port(&zero->address[0]));
    }
}

Test(bootstrap, the_last_address_is_right, .timeout = 20)
{
    static const char *const wrong[] = { "127.0.0.2", "127.0.0.3", "240.0.0.1" };
    struct rank ranks[2];

    make_at(ranks, wrong, 3);
    start_ranks(ranks, 2);
    join_ranks(ranks, 2);
    expect_all(ranks, 2, PK_OK, NULL);
}

/* Somebody who accepts and says nothing is not waited for until the deadline. */
Test(bootstrap, silence_at_the_first_address, .timeout = 20)
{
    static const char *const wrong[] = { "127.0.0.2" };
    struct rank ranks[2];
    int silent = -1;

    make_at(ranks, wrong, 1);
    cr_assert_eq(pki_listen(&ranks[1].meeting.address[0], 8, false, &silent), PK_OK);
    start_ranks(ranks, 2);
    join_ranks(ranks, 2);
    expect_all(ranks, 2, PK_OK, NULL);
    close(silent);
}

/* An id's rank 0 listened before anybody had the id: where all its addresses refuse connections, it is not there any more. */
Test(bootstrap, nobody_listens_for_the_id, .timeout = 20)
{
    struct rank ranks[2];

    make_ranks(ranks, 2, NULL);
    cr_assert(pki_listener_drop(&ranks[0].id));
    start_ranks(ranks + 1, 1);
    join_ranks(ranks + 1, 1);
    expect_all(ranks + 1, 1, PK_ERR_PEER, "(connection refused): rank 0 has ended or given up, or these addresses lead");
    cr_expect_lt(ranks[1].took_ms, SOON_MS);
}

Test(bootstrap, an_id_is_given_back)
{
    struct pki_bootstrap *b = NULL;
    pk_unique_id_t ids[50];
    int before;

    open_files();
    before = open_files();
    for (int i = 0; i < 50; i++)
        cr_assert_eq(pk_get_unique_id(&ids[i]), PK_OK);
    cr_expect_gt(open_files(), before);
    for (int i = 0; i < 50; i++)
        cr_assert_eq(pk_unique_id_release(&ids[i]), PK_OK);
    cr_expect_eq(open_files(), before);
    cr_expect_eq(pk_unique_id_release(&ids[0]), PK_ERR_ARG);
    cr_expect(strstr(pki_error_get()->text, "did not make the id") != NULL, "%s", pki_error_get()->text);
    cr_expect_eq(pki_bootstrap_open(&b, 2, 0, &ids[0], pki_deadline_ns(100), NULL), PK_ERR_ARG);
}
