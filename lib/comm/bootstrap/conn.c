/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/bootstrap/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/clock.h"

#define ANSWER_NS (2000 * PKI_NS_PER_MS) /* how long rank 0, which may have to wait for a CPU, may take to say who is missing */

void pki_conn_release(struct pki_conn *c)
{
    free(c->payload);
    c->payload = NULL;
    c->have = 0;
    c->ready = false;
}

void pki_conn_close(struct pki_conn *c)
{
    pki_conn_release(c);
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

/* Read into `to` until c->have reaches `until`. */
static pk_result_t read_until(struct pki_conn *c, unsigned char *to, size_t base, size_t until)
{
    while (c->have < until) {
        ssize_t n = recv(c->fd, to + (c->have - base), until - c->have, MSG_DONTWAIT);

        if (n > 0) {
            c->have += (size_t)n;
        } else if (n == 0) {
            errno = 0;
            return PK_ERR_PEER;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return PK_IN_PROGRESS;
        } else if (errno != EINTR) {
            return PK_ERR_PEER;
        }
    }
    return PK_OK;
}

pk_result_t pki_conn_read(struct pki_conn *c, size_t part_max, size_t all_max)
{
    pk_result_t result;

    if (c->ready)
        return PK_OK;
    if (c->fd < 0) {
        errno = ENOTCONN;
        return PK_ERR_PEER;
    }
    if (c->have < PKI_FRAME_HEADER_BYTES) {
        result = read_until(c, c->header, 0, PKI_FRAME_HEADER_BYTES);
        if (result != PK_OK)
            return result;
        if (!pki_wire_get_frame(c->header, part_max, all_max, &c->frame)) {
            c->have = 0;
            return PK_ERR_INTERNAL;
        }
    }
    if (c->payload == NULL) {
        c->payload = malloc((size_t)c->frame.bytes + 1);
        if (c->payload == NULL)
            return PK_ERR_MEMORY;
    }
    result = read_until(c, c->payload, PKI_FRAME_HEADER_BYTES, PKI_FRAME_HEADER_BYTES + (size_t)c->frame.bytes);
    c->ready = result == PK_OK;
    return result;
}

unsigned long long pki_bootstrap_elapsed_ms(const struct pki_bootstrap *b)
{
    return (pki_now_ns() - b->began_ns) / PKI_NS_PER_MS;
}

bool pki_bootstrap_report_is_due(struct pki_bootstrap *b)
{
    const uint64_t now = pki_now_ns();

    if (now < b->report_ns)
        return false;
    b->report_ns = now + 2 * (now - b->began_ns);
    return true;
}

/* Best effort: whoever cannot take a few hundred bytes now finds the connection closed soon. */
void pki_conn_tell(int fd, uint32_t sequence, const struct pki_notice *notice)
{
    unsigned char bytes[PKI_FRAME_HEADER_BYTES + PKI_NOTICE_BYTES];
    const size_t length = pki_wire_put_notice(bytes + PKI_FRAME_HEADER_BYTES, notice);
    const struct pki_frame frame = { .type = PKI_FRAME_NOTICE, .sequence = sequence, .bytes = (uint32_t)length };

    pki_wire_put_frame(bytes, &frame);
    (void)send(fd, bytes, PKI_FRAME_HEADER_BYTES + length, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void pki_bootstrap_notify(const struct pki_bootstrap *b, int fd)
{
    pki_conn_tell(fd, b->sequence, &b->notice);
}

/* Keep the first error, whose record was just made, and tell every rank that is connected. */
static void spread(struct pki_bootstrap *b, const struct pki_notice *notice)
{
    if (b->failed != PK_OK)
        return;
    b->failed = notice->code;
    b->error = *pki_error_get();
    b->notice = *notice;
    for (int r = 0; r < b->conn_count; r++)
        if (b->conns[r].fd >= 0)
            pki_bootstrap_notify(b, b->conns[r].fd);
}

pk_result_t pki_bootstrap_fail(struct pki_bootstrap *b, pk_result_t code, int peer, const char *fmt, ...)
{
    const struct pki_where where = { .rank = b->rank, .peer = peer, .op = "init" };
    struct pki_notice notice = { .code = code, .peer = peer };
    va_list args;

    va_start(args, fmt);
    vsnprintf(notice.text, sizeof notice.text, fmt, args);
    va_end(args);
    pki_fail(code, &where, "%s", notice.text);
    spread(b, &notice);
    return code;
}

pk_result_t pki_bootstrap_fail_errno(struct pki_bootstrap *b, pk_result_t code, int peer, int error, const char *fmt, ...)
{
    const struct pki_where where = { .rank = b->rank, .peer = peer, .op = "init" };
    struct pki_notice notice = { .code = code, .peer = peer };
    char text[300], reason[64];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    snprintf(notice.text, sizeof notice.text, "%s: %s", text, strerror_r(error, reason, sizeof reason));
    errno = error;
    pki_fail_errno(code, &where, "%s", text);
    spread(b, &notice);
    return code;
}

pk_result_t pki_bootstrap_adopt(struct pki_bootstrap *b, pk_result_t code)
{
    struct pki_notice notice = { .code = code, .peer = pki_error_get()->peer };

    if (code == PK_OK || b->failed != PK_OK)
        return code;
    snprintf(notice.text, sizeof notice.text, "%.300s", pki_error_get()->text);
    spread(b, &notice);
    return code;
}

void pki_bootstrap_tell(struct pki_bootstrap *b, pk_result_t code, int peer, const char *text)
{
    struct pki_notice notice = { .code = code, .peer = peer };

    if (b->rank == 0 && peer < 0) { /* of the others rank 0 says itself who gave up */
        notice.peer = 0;
        snprintf(notice.text, sizeof notice.text, "rank 0 gave up: %s", text);
    } else {
        snprintf(notice.text, sizeof notice.text, "%s", text);
    }
    spread(b, &notice);
}

pk_result_t pki_bootstrap_check(const struct pki_bootstrap *b)
{
    if (b->failed != PK_OK)
        pki_error_set(&b->error);
    return b->failed;
}

/* The rank that the error names. No rank names itself: then it is `other`. */
static int attributed_to(const struct pki_bootstrap *b, const struct pki_notice *notice, int other)
{
    return notice->peer == b->rank ? other : notice->peer;
}

/* Another rank gives up. Rank 0 passes it on; the others believe rank 0's words as they are. */
static pk_result_t on_notice(struct pki_bootstrap *b, int r)
{
    struct pki_conn *c = &b->conns[r];
    struct pki_where where = { .rank = b->rank, .peer = -1, .op = "init" };
    struct pki_notice notice;

    if (!pki_wire_get_notice(c->payload, c->frame.bytes, &notice) || notice.peer >= b->size)
        return pki_bootstrap_fail(b, PK_ERR_PEER, r, "rank %d sent an invalid notice", r);
    pki_conn_release(c);
    if (b->rank == 0 && notice.code == PK_ERR_TIMEOUT && notice.text[0] == '\0') {
        b->asked = true;
        return PK_IN_PROGRESS;
    }
    if (b->rank == 0) {
        int peer = notice.peer >= 0 ? attributed_to(b, &notice, r) : r;

        pki_conn_close(c); /* it knows; whether it closes in good order no longer matters */
        return pki_bootstrap_fail(b, notice.code, peer, "rank %d gave up: %s", r, notice.text);
    }
    pki_conn_close(c);
    where.peer = attributed_to(b, &notice, -1);
    pki_fail(notice.code, &where, "%s", notice.text);
    spread(b, &notice);
    return notice.code;
}

static pk_result_t on_left(struct pki_bootstrap *b, int r, bool needed)
{
    b->conns[r].left = true;
    pki_conn_close(&b->conns[r]);
    if (needed)
        return pki_bootstrap_fail(b, PK_ERR_PEER, r, "rank %d has left", r);
    return PK_IN_PROGRESS;
}

/* The kernel closes what a process had when it ends; a network that breaks shows otherwise. */
static pk_result_t on_broken(struct pki_bootstrap *b, int r, pk_result_t result)
{
    const int error = errno;
    const bool died = error == 0 || error == ECONNRESET || error == EPIPE;

    if (result == PK_ERR_MEMORY)
        return pki_bootstrap_fail(b, PK_ERR_MEMORY, r, "no memory for a message of %u bytes", b->conns[r].frame.bytes);
    pki_conn_close(&b->conns[r]);
    if (result == PK_ERR_INTERNAL)
        return pki_bootstrap_fail(b, PK_ERR_PEER, r, "the control connection of rank %d carried bytes that are not a message", r);
    return pki_bootstrap_fail_errno(
        b, PK_ERR_PEER, r, error != 0 ? error : ECONNRESET,
        died ? "rank %d died: its control connection closed" : "the control connection of rank %d broke", r);
}

pk_result_t pki_bootstrap_receive(struct pki_bootstrap *b, int r, bool needed)
{
    struct pki_conn *c = &b->conns[r];
    const size_t all_max = b->rank == 0 ? 0 : (size_t)b->size * PKI_BOOTSTRAP_GATHER_MAX;
    pk_result_t result;

    if (c->left)
        return on_left(b, r, needed);
    result = pki_conn_read(c, b->rank == 0 ? PKI_BOOTSTRAP_GATHER_MAX : 0, all_max);
    if (result == PK_IN_PROGRESS)
        return result;
    if (result != PK_OK)
        return on_broken(b, r, result);
    if (c->frame.type == PKI_FRAME_NOTICE)
        return on_notice(b, r);
    if (c->frame.type == PKI_FRAME_SHUTDOWN)
        return on_left(b, r, needed);
    return PK_OK;
}

pk_result_t pki_bootstrap_send(struct pki_bootstrap *b, int r, enum pki_frame_type type, const void *data, size_t bytes,
                               uint64_t deadline_ns)
{
    const struct pki_where where = { .rank = b->rank, .peer = r, .op = "init" };
    const struct pki_wait wait = { .deadline_ns = deadline_ns, .cancel = b->cancel };
    const struct pki_frame frame = { .type = type, .sequence = b->sequence, .bytes = (uint32_t)bytes };
    unsigned char message[PKI_FRAME_HEADER_BYTES + 1024];
    const size_t joined = bytes <= sizeof message - PKI_FRAME_HEADER_BYTES ? bytes : 0; /* in one packet with the header */
    pk_result_t result;

    if (b->conns[r].fd < 0)
        return on_left(b, r, true);
    pki_wire_put_frame(message, &frame);
    if (joined > 0)
        memcpy(message + PKI_FRAME_HEADER_BYTES, data, joined);
    result = pki_send_all(b->conns[r].fd, message, PKI_FRAME_HEADER_BYTES + joined, &wait, &where);
    if (result == PK_OK && bytes > joined)
        result = pki_send_all(b->conns[r].fd, data, bytes, &wait, &where);
    /* A rank that gave up may have said why before it closed. */
    while (result == PK_ERR_PEER && b->failed == PK_OK && pki_bootstrap_receive(b, r, true) == PK_OK)
        pki_conn_release(&b->conns[r]);
    return b->failed != PK_OK ? b->failed : pki_bootstrap_adopt(b, result);
}

/* Rank 0 knows who is missing. It may be somewhere else just now, so the answer has a deadline of its own. */
static pk_result_t ask_who(struct pki_bootstrap *b)
{
    const struct pki_notice question = { .code = PK_ERR_TIMEOUT, .peer = -1 };
    const struct pki_wait wait = { .deadline_ns = pki_now_ns() + ANSWER_NS, .cancel = b->cancel };
    struct pollfd p = { .fd = b->conns[0].fd, .events = POLLIN };
    pk_result_t result;

    pki_conn_tell(b->conns[0].fd, b->sequence, &question);
    for (;;) {
        result = pki_poll(&p, 1, &wait);
        if (result == PK_OK)
            result = pki_bootstrap_receive(b, 0, true);
        else if (result == PK_IN_PROGRESS)
            return pki_bootstrap_fail(b, PK_ERR_TIMEOUT, 0, "rank 0 did not answer within %llu ms", pki_bootstrap_elapsed_ms(b));
        else if (result == PK_ERR_ABORTED)
            return pki_bootstrap_fail(b, PK_ERR_ABORTED, -1, "aborted");
        if (result == PK_OK) /* the answer came after all; too late, for the other ranks have been told */
            pki_conn_release(&b->conns[0]);
        else if (result != PK_IN_PROGRESS)
            return result;
    }
}

pk_result_t pki_bootstrap_await(struct pki_bootstrap *b, enum pki_frame_type type, uint64_t deadline_ns)
{
    const struct pki_wait wait = { .deadline_ns = deadline_ns, .cancel = b->cancel };
    struct pollfd p = { .fd = b->conns[0].fd, .events = POLLIN };
    pk_result_t result = pki_bootstrap_receive(b, 0, true);

    while (result == PK_IN_PROGRESS) {
        result = pki_poll(&p, 1, &wait);
        if (result == PK_IN_PROGRESS)
            return ask_who(b);
        if (result == PK_ERR_ABORTED)
            return pki_bootstrap_fail(b, PK_ERR_ABORTED, -1, "aborted");
        if (result != PK_OK)
            return pki_bootstrap_adopt(b, result);
        result = pki_bootstrap_receive(b, 0, true);
    }
    if (result != PK_OK)
        return result;
    if (b->conns[0].frame.type != type || b->conns[0].frame.sequence != b->sequence)
        return pki_bootstrap_fail(b, PK_ERR_MISMATCH, 0, "rank 0 sent message %d.%u instead of %d.%u: the ranks' calls differ",
                                  b->conns[0].frame.type, b->conns[0].frame.sequence, type, b->sequence);
    return PK_OK;
}

int pki_bootstrap_name_missing(const struct pki_bootstrap *b, bool (*missing)(const struct pki_bootstrap *b, int r), char *out,
                               size_t room)
{
    int first = -1, count = 0;
    size_t at;

    for (int r = 0; r < b->size; r++)
        if (missing(b, r) && count++ == 0)
            first = r;
    at = (size_t)snprintf(out, room, "%s", count == 1 ? "rank" : "ranks");
    for (int r = first; r >= 0 && r < b->size; r++) {
        int last = r;

        if (!missing(b, r))
            continue;
        while (last + 1 < b->size && missing(b, last + 1))
            last++;
        if (at + 32 > room) {
            snprintf(out + at, room - at, " and more");
            break;
        }
        at += (size_t)snprintf(out + at, room - at, last > r ? "%s %d-%d" : "%s %d", r > first ? "," : "", r, last);
        r = last;
    }
    return first;
}

pk_result_t pki_bootstrap_missing(struct pki_bootstrap *b, bool (*missing)(const struct pki_bootstrap *b, int r),
                                  const char *tail)
{
    char names[200];
    int first = pki_bootstrap_name_missing(b, missing, names, sizeof names);

    return pki_bootstrap_fail(b, PK_ERR_TIMEOUT, first, "%s of %d did not come within %llu ms%s", names, b->size,
                              pki_bootstrap_elapsed_ms(b), tail);
}
