/* SPDX-License-Identifier: Apache-2.0 */
#include "util/fork.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHILD_CALLS 8

atomic_uint pki_fork_count;

static struct {
    pthread_mutex_t lock; /* held across a fork, so that the child finds the set whole */
    pthread_once_t once;
    unsigned char *guarded; /* a bit a descriptor */
    size_t bytes;
    void (*calls[CHILD_CALLS])(void);
    int count;
} state = { .lock = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT };

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
    (void)pki_fork_stamp();
    pthread_mutex_lock(&state.lock);
    if (state.count < CHILD_CALLS)
        state.calls[state.count++] = start_over;
    pthread_mutex_unlock(&state.lock);
}
