/* SPDX-License-Identifier: Apache-2.0 */
/* Every other rank's side of pki_bootstrap_open. */
#include "comm/bootstrap/internal.h"

#include <string.h>

#include "comm/bootstrap/meeting.h"
#include "util/bytes.h"
#include "util/clock.h"

#define SHUTDOWN_NS (300 * PKI_NS_PER_MS)  /* an abort need not wait for its end */
#define ANSWERED_NS (3000 * PKI_NS_PER_MS) /* the same where somebody is there, who may have to wait for a processor */

/* Rank 0 and all who have come would wait for this one until their deadline: a moment for one more attempt, to tell them. For a
 * rank that joins another one may come. */
static pk_result_t aborted(struct pki_bootstrap *b, struct pki_seek *seek)
{
    const uint64_t now = pki_now_ns();
    struct pki_call_off *cancel = b->cancel;

    b->cancel = NULL;
    if (atomic_load(&cancel->state) != PKI_CALLED_OFF_QUIETLY && b->conns[0].fd < 0 && seek != NULL && b->rank != PKI_JOINS &&
        pki_seek_next(seek, now + SHUTDOWN_NS, &b->conns[0].fd) == PK_IN_PROGRESS && pki_seek_is_answered(seek))
        (void)pki_seek_next(seek, now + ANSWERED_NS, &b->conns[0].fd);
    b->cancel = cancel;
    return pki_bootstrap_fail(b, PK_ERR_ABORTED, -1, "aborted");
}

static pk_result_t not_found(struct pki_bootstrap *b, struct pki_seek *seek, pk_result_t result)
{
    char text[PKI_NOTICE_TEXT];

    if (result == PK_ERR_ABORTED)
        return aborted(b, seek);
    if (result == PK_IN_PROGRESS)
        result = PK_ERR_TIMEOUT;
    if (result != PK_ERR_AUTH && result != PK_ERR_PEER && result != PK_ERR_TIMEOUT)
        return pki_bootstrap_adopt(b, result);
    pki_seek_explain(seek, result, text, sizeof text);
    return pki_bootstrap_fail(b, result, 0, "%s", text);
}

#define NOT_COME "rank 0 has not come yet (asked the process that made the id)"

/* This rank is in, and others are missing: rank 0 warns of it, for all, but for itself. */
static pk_result_t report_waiting(void *arg)
{
    struct pki_bootstrap *b = arg;
    const struct pki_where where = { .rank = b->rank, .peer = 0, .op = "init" };

    if (!pki_bootstrap_report_is_due(b))
        return PK_OK;
    if (b->at_maker)
        pki_log(PKI_LOG_WARN, &where, "still waits after %llu ms: " NOT_COME, pki_bootstrap_elapsed_ms(b));
    else
        pki_log(PKI_LOG_INFO, &where,
                "has found rank 0, still waits after %llu ms: ranks are missing; rank 0's log names "
                "them",
                pki_bootstrap_elapsed_ms(b));
    return PK_OK;
}

/* Strangers who crowd rank 0's door may push this rank's connection out before it is admitted. PK_IN_PROGRESS: that has happened,
 * connect again. PK_OK: there is something to read, or it is too late. */
static pk_result_t wait_admitted(struct pki_bootstrap *b, uint64_t deadline_ns)
{
    const struct pki_wait wait = { .deadline_ns = deadline_ns, .cancel = b->cancel, .listen = report_waiting, .arg = b };
    struct pki_conn *c = &b->conns[0];
    struct pollfd p = { .fd = c->fd, .events = POLLIN };
    pk_result_t result = PK_IN_PROGRESS;

    while (result == PK_IN_PROGRESS) {
        if (pki_poll(&p, 1, &wait) != PK_OK)
            return PK_OK;
        result = pki_conn_read(c, 0, (size_t)b->size * PKI_BOOTSTRAP_GATHER_MAX);
    }
    if (result != PK_ERR_PEER)
        return PK_OK;
    pki_conn_close(c);
    return PK_IN_PROGRESS;
}

/* Until rank 0 has let this rank in, or has something to say to it. */
static pk_result_t find_rank_0(struct pki_bootstrap *b, struct pki_seek *seek, uint64_t deadline_ns)
{
    pk_result_t result = PK_IN_PROGRESS;

    while (result == PK_IN_PROGRESS && pki_now_ns() < deadline_ns) {
        result = pki_seek_next(seek, deadline_ns, &b->conns[0].fd);
        if (result != PK_OK)
            continue;
        result = wait_admitted(b, deadline_ns);
        if (result == PK_IN_PROGRESS)
            pki_seek_lost(seek);
    }
    return result;
}

static pk_result_t join_at(struct pki_bootstrap *b, const struct pki_meeting *meeting, uint64_t deadline_ns)
{
    struct pki_seek *seek = pki_seek_open(b, meeting);
    pk_result_t result;

    if (seek == NULL)
        return pki_bootstrap_fail(b, PK_ERR_MEMORY, -1, "no memory to look for rank 0");
    result = find_rank_0(b, seek, deadline_ns);
    if (result != PK_OK)
        result = not_found(b, seek, result);
    pki_seek_close(seek);
    return result;
}

/* At the place of an id that leads there: where is rank 0? */
static bool is_led(const struct pki_bootstrap *b)
{
    return b->conns[0].ready && b->conns[0].frame.type == PKI_FRAME_WHERE;
}

/* The maker may have told of an error, or the deadline has passed. */
static pk_result_t not_led(struct pki_bootstrap *b, uint64_t deadline_ns)
{
    if (b->conns[0].ready || pki_now_ns() < deadline_ns)
        return pki_bootstrap_await(b, PKI_FRAME_WHERE, deadline_ns);
    return pki_bootstrap_fail(b, PK_ERR_TIMEOUT, 0, "gave up after %llu ms: " NOT_COME, pki_bootstrap_elapsed_ms(b));
}

/* The number of a rank that joins. */
static pk_result_t hear_place(struct pki_bootstrap *b, uint64_t deadline_ns)
{
    struct pki_conn *c = &b->conns[0];
    pk_result_t result = pki_bootstrap_await(b, PKI_FRAME_PLACE, deadline_ns);
    uint32_t rank, size;

    if (result != PK_OK)
        return result;
    rank = pki_get_u32(c->payload);
    size = pki_get_u32(c->payload + 4);
    pki_conn_release(c);
    if (rank == 0 || rank >= size || size > PKI_RANKS_MAX)
        return pki_bootstrap_fail(b, PK_ERR_PEER, 0, "rank 0 gave this rank number %u of %u", rank, size);
    b->rank = (int)rank;
    b->size = (int)size;
    return PK_OK;
}

pk_result_t pki_bootstrap_join(struct pki_bootstrap *b, const struct pki_meeting *meeting, uint64_t deadline_ns)
{
    struct pki_meeting there;
    pk_result_t result;

    b->at_maker = meeting->led;
    result = join_at(b, meeting, deadline_ns);
    b->at_maker = false;
    if (result == PK_OK && meeting->led) {
        result = is_led(b) ? PK_OK : not_led(b, deadline_ns);
        if (result == PK_OK)
            result = pki_bootstrap_follow(b, meeting, &there);
        if (result == PK_OK)
            result = join_at(b, &there, deadline_ns);
    }
    if (result == PK_OK && b->rank == PKI_JOINS)
        result = hear_place(b, deadline_ns);
    if (result != PK_OK)
        return result;
    result = pki_bootstrap_await(b, PKI_FRAME_WELCOME, deadline_ns);
    if (result == PK_OK) {
        memcpy(b->session, b->conns[0].payload, sizeof b->session);
        pki_conn_release(&b->conns[0]);
    }
    return result;
}
