/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that are threads, for the tests of the bootstrap. */
#ifndef PKI_TEST_BOOTSTRAP_RANKS_H
#define PKI_TEST_BOOTSTRAP_RANKS_H

#include <criterion/criterion.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/bootstrap/bootstrap.h"
#include "comm/bootstrap/internal.h"
#include "measure.h"
#include "util/clock.h"
#include "util/fork.h"
#include "util/netif.h"

#define RANKS_MAX 32
#define LIMIT_MS 8000
#define SOON_MS (LIMIT_MS / 2) /* not by the deadline's help; how fast is not for tests to say */

/* One rank: a thread that opens a bootstrap and then does `body`. */
struct rank {
    int size, rank;
    pk_unique_id_t id;
    bool at_meeting;
    struct pki_meeting meeting; /* instead of the id */
    uint64_t timeout_ms;
    uint64_t delay_ms;
    struct pki_call_off *cancel;
    pk_result_t (*body)(struct rank *self, struct pki_bootstrap *b);
    pk_result_t result;
    pk_error_info_t error;
    uint64_t took_ms;
    pthread_t thread;
};

static inline void sleep_ms(uint64_t ms)
{
    usleep((useconds_t)(ms * 1000));
}

static inline void *rank_main(void *arg)
{
    struct rank *self = arg;
    struct pki_bootstrap *b = NULL;
    uint64_t began;

    sleep_ms(self->delay_ms);
    began = pki_now_ns();
    if (self->at_meeting)
        self->result =
            pki_bootstrap_open_at(&b, self->size, self->rank, &self->meeting, pki_deadline_ns(self->timeout_ms), self->cancel);
    else
        self->result = pki_bootstrap_open(&b, self->size, self->rank, &self->id, pki_deadline_ns(self->timeout_ms), self->cancel);
    if (self->result == PK_OK && self->body != NULL)
        self->result = self->body(self, b);
    self->took_ms = (pki_now_ns() - began) / PKI_NS_PER_MS;
    self->error = *pki_error_get();
    pki_bootstrap_close(b);
    return NULL;
}

static inline void make_ranks(struct rank *ranks, int size, pk_result_t (*body)(struct rank *, struct pki_bootstrap *))
{
    pk_unique_id_t id;

    cr_assert_eq(pki_bootstrap_id(&id), PK_OK);
    for (int r = 0; r < size; r++)
        ranks[r] = (struct rank){ .size = size, .rank = r, .id = id, .timeout_ms = LIMIT_MS, .body = body };
}

static inline void start_rank(struct rank *r)
{
    cr_assert_eq(pthread_create(&r->thread, NULL, rank_main, r), 0);
}

static inline void start_ranks(struct rank *ranks, int count)
{
    for (int r = 0; r < count; r++)
        start_rank(&ranks[r]);
}

static inline void join_ranks(struct rank *ranks, int count)
{
    for (int r = 0; r < count; r++)
        pthread_join(ranks[r].thread, NULL);
}

static inline void expect_all(const struct rank *ranks, int count, pk_result_t result, const char *text)
{
    for (int r = 0; r < count; r++) {
        cr_expect_eq(ranks[r].result, result, "rank %d: %d, %s", r, ranks[r].result, ranks[r].error.text);
        if (text != NULL)
            cr_expect(strstr(ranks[r].error.text, text) != NULL, "rank %d says: %s", r, ranks[r].error.text);
    }
}

/* The first of rank 0's listeners is the caller's, the others are closed. */
static inline int take_listener(const pk_unique_id_t *id)
{
    int listeners[PKI_MEETING_LISTENERS];
    int count = pki_listener_take(id, listeners);

    cr_assert_geq(count, 1);
    for (int i = 0; i < count; i++)
        pki_fork_let_go(listeners[i]);
    for (int i = 1; i < count; i++)
        close(listeners[i]);
    return listeners[0];
}

/* Where the id says that rank 0 listens. */
static inline struct sockaddr_storage root_of(const pk_unique_id_t *id)
{
    struct pki_id unpacked;

    cr_assert(pki_wire_get_id(id, &unpacked));
    return unpacked.address[0];
}

static inline int knock(const pk_unique_id_t *id)
{
    const struct sockaddr_storage root = root_of(id);
    int fd = socket(root.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    cr_assert_geq(fd, 0);
    cr_assert_eq(connect(fd, (const struct sockaddr *)&root, pki_netif_bytes(&root)), 0);
    return fd;
}

/* What `from` says to `to` in an all-to-all. */
static inline unsigned char word_of(int from, int to)
{
    return (unsigned char)(7 * from + 3 * to + 1);
}

/* A body: all-to-alls of several sizes, the longest in more rounds than one. */
static inline pk_result_t alltoall_body(struct rank *self, struct pki_bootstrap *b)
{
    static const size_t sizes[] = { 1, 264, 5000, 300000 };
    const size_t size = (size_t)self->size, n = size > 8 ? 3 : 4;
    pk_result_t result = PK_OK;

    for (size_t s = 0; s < n && result == PK_OK; s++) {
        unsigned char *mine = malloc(size * sizes[s]);
        unsigned char *theirs = calloc(size, sizes[s]);

        for (size_t r = 0; r < size; r++)
            memset(mine + r * sizes[s], word_of(self->rank, (int)r), sizes[s]);
        result = pki_bootstrap_alltoall(b, mine, sizes[s], theirs, pki_deadline_ns(LIMIT_MS));
        for (size_t i = 0; i < size * sizes[s] && result == PK_OK; i++)
            if (theirs[i] != word_of((int)(i / sizes[s]), self->rank))
                result = PK_ERR_INTERNAL;
        free(mine);
        free(theirs);
    }
    return result == PK_OK ? pki_bootstrap_barrier(b, pki_deadline_ns(LIMIT_MS)) : result;
}

/* A body: allgathers of several sizes. */
static inline pk_result_t gather_body(struct rank *self, struct pki_bootstrap *b)
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

#endif
