/* SPDX-License-Identifier: Apache-2.0 */
#include "util/fork.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#define CHILD_CALLS 16 /* one for each file that has one, and some */

atomic_uint pki_fork_count;

static struct {
    pthread_mutex_t lock; /* held across a fork, so that the child finds the set whole */
    pthread_once_t once;
    unsigned char *guarded; /* a bit a descriptor */
    size_t bytes;
    void (*calls[CHILD_CALLS])(void);
    int count;
} state = { .lock = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT };

/* In a page that the kernel clears in a child, or where it cannot (before Linux 4.14) in what in_child clears. */
struct identity {
    _Atomic uint64_t number; /* 0: not made yet */
    atomic_bool known;       /* false: a child that nobody has noticed */
};

static struct identity in_data, *identity;
static pthread_once_t identity_once = PTHREAD_ONCE_INIT;

static void before(void)
{
    pthread_mutex_lock(&state.lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&state.lock);
}

static void in_child(void)
{
    atomic_fetch_add(&pki_fork_count, 1);
    atomic_store(&in_data.number, 0);
    if (identity != NULL)
        atomic_store(&identity->known, true);
    for (size_t i = 0; i < state.bytes; i++)
        for (int bit = 0; state.guarded[i] != 0 && bit < 8; bit++)
            if (state.guarded[i] & 1u << bit)
                close((int)(8 * i) + bit);
    if (state.bytes > 0)
        memset(state.guarded, 0, state.bytes);
    for (int i = 0; i < state.count; i++)
        state.calls[i]();
    pthread_mutex_unlock(&state.lock);
}

static void watch(void)
{
    (void)pthread_atfork(before, in_parent, in_child);
}

unsigned pki_fork_stamp(void)
{
    pthread_once(&state.once, watch);
    return atomic_load(&pki_fork_count);
}

static void make_identity(void)
{
    void *page = mmap(NULL, sizeof *identity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    (void)pki_fork_stamp();
    identity = page != MAP_FAILED && madvise(page, sizeof *identity, MADV_WIPEONFORK) == 0 ? page : &in_data;
    atomic_store(&identity->known, true);
}

uint64_t pki_process_number(void)
{
    uint64_t made, before;

    pthread_once(&identity_once, make_identity);
    before = atomic_load(&identity->number);
    if (before != 0 || getrandom(&made, sizeof made, 0) != (ssize_t)sizeof made)
        return before;
    return atomic_compare_exchange_strong(&identity->number, &before, made) ? made : before;
}

void pki_fork_look(void)
{
    pthread_once(&identity_once, make_identity);
    if (atomic_exchange(&identity->known, true))
        return;
    pthread_mutex_init(&state.lock, NULL); /* perhaps a thread of the parent has it */
    before();
    in_child();
}

static bool has_room(size_t byte)
{
    size_t bytes = state.bytes == 0 ? 128 : state.bytes;
    unsigned char *grown;

    if (byte < state.bytes)
        return true;
    while (bytes <= byte)
        bytes *= 2;
    grown = realloc(state.guarded, bytes);
    if (grown == NULL)
        return false; /* unguarded: a death may be noticed late */
    memset(grown + state.bytes, 0, bytes - state.bytes);
    state.guarded = grown;
    state.bytes = bytes;
    return true;
}

void pki_fork_guard(int fd)
{
    if (fd < 0)
        return;
    (void)pki_fork_stamp();
    pthread_mutex_lock(&state.lock);
    if (has_room((size_t)fd / 8))
        state.guarded[fd / 8] |= (unsigned char)(1u << fd % 8);
    pthread_mutex_unlock(&state.lock);
}

void pki_fork_let_go(int fd)
{
    if (fd < 0)
        return;
    pthread_mutex_lock(&state.lock);
    if ((size_t)fd / 8 < state.bytes)
        state.guarded[fd / 8] &= (unsigned char)~(1u << fd % 8);
    pthread_mutex_unlock(&state.lock);
}

void pki_fork_at_child(void (*start_over)(void))
{
    bool known = false;

    (void)pki_fork_stamp();
    pthread_mutex_lock(&state.lock);
    for (int i = 0; i < state.count; i++)
        known = known || state.calls[i] == start_over;
    if (!known && state.count < CHILD_CALLS)
        state.calls[state.count++] = start_over;
    pthread_mutex_unlock(&state.lock);
}
