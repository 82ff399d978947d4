/* SPDX-License-Identifier: Apache-2.0 */
/* Words that the CPU shares with this rank's GPU, and the slots that a receiver hands out to a sender. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/core/internal.h"

/* Operations in streams leave the last third to what runs for them (pki_stream_admit): copies through host memory have a word
 * each, and an operation ends when they have. */
#define WORDS (3 * PKI_STREAM_OPERATIONS)
#define WORD_STRIDE 16 /* in words: one a cache line */

/* Layout: WORDS of the pool, then the abort flag, then for each peer the done words of low-latency messages, receives before
 * sends. All of it is registered with the GPU at once. */
static size_t words_total(const struct pki_engine *e)
{
    return ((size_t)WORDS + 1 + (size_t)e->config.size * 2 * PKI_LL_MESSAGES) * WORD_STRIDE;
}

static size_t words_bytes(const struct pki_engine *e)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    return (words_total(e) * sizeof(uint32_t) + page - 1) / page * page;
}

pk_result_t pki_signals_open(struct pki_engine *e)
{
    struct pki_signals *w = &e->signals;
    pk_result_t result = PK_OK;

    w->words = mmap(NULL, words_bytes(e), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (w->words == MAP_FAILED) {
        w->words = NULL;
        return pki_fail_errno(PK_ERR_MEMORY, NULL, "mmap of %zu bytes of signals", words_bytes(e));
    }
    w->value = calloc(WORDS, sizeof *w->value);
    w->free = calloc(WORDS, sizeof *w->free);
    w->exposed = calloc(WORDS, sizeof *w->exposed);
    if (w->value == NULL || w->free == NULL || w->exposed == NULL) {
        result = pki_fail(PK_ERR_MEMORY, NULL, "no memory for %d signals", WORDS);
        goto err_unmap;
    }
    for (w->n = 0; w->n < WORDS; w->n++)
        w->free[w->nfree++] = (uint16_t)(WORDS - 1 - w->n);
    if (e->gpu != NULL)
        result = e->gpu->ops->host_register(e->gpu, w->words, words_bytes(e));
    if (result != PK_OK)
        goto err_unmap;
    e->signals.abort_word = &w->words[(size_t)WORDS * WORD_STRIDE];
    return PK_OK;

err_unmap:
    free(w->value);
    free(w->free);
    free((void *)w->exposed);
    munmap(w->words, words_bytes(e));
    return result;
}

void pki_signals_close(struct pki_engine *e)
{
    if (e->gpu != NULL)
        e->gpu->ops->host_unregister(e->gpu, e->signals.words);
    munmap(e->signals.words, words_bytes(e));
    free(e->signals.value);
    free(e->signals.free);
    free((void *)e->signals.exposed);
}

_Atomic uint32_t *pki_signals_ll(struct pki_engine *e, int peer, bool send, uint32_t flag)
{
    size_t index = (size_t)WORDS + 1 + ((size_t)peer * 2 + send) * PKI_LL_MESSAGES + flag % PKI_LL_MESSAGES;

    return &e->signals.words[index * WORD_STRIDE];
}

int pki_signals_take(struct pki_engine *e, struct pki_signal *signal)
{
    struct pki_signals *w = &e->signals;
    int slot;

    if (w->nfree == 0)
        return -1;
    slot = w->free[--w->nfree];
    signal->word = &w->words[(size_t)slot * WORD_STRIDE];
    signal->value = ++w->value[slot];
    return slot;
}

/* The signal has been opened: a stream that still waits at it is let through, now and after later uses. */
void pki_signals_give(struct pki_engine *e, int slot)
{
    if (slot < 0)
        return;
    atomic_store_explicit(&e->signals.exposed[slot], 0, memory_order_relaxed);
    e->signals.free[e->signals.nfree++] = (uint16_t)slot;
}

void pki_signals_expose(struct pki_engine *e, int slot, const struct pki_signal *signal)
{
    atomic_store_explicit(&e->signals.exposed[slot], signal->value, memory_order_relaxed);
}

void pki_signals_release_all(struct pki_engine *e)
{
    for (int slot = 0; slot < e->signals.n; slot++) {
        uint32_t value = atomic_load_explicit(&e->signals.exposed[slot], memory_order_relaxed);

        if (value != 0)
            pki_watchdog_open(&e->signals.words[(size_t)slot * WORD_STRIDE], value);
    }
}

void pki_slots_init(struct pki_slots *slots, int n)
{
    memset(slots, 0, sizeof *slots);
    for (int i = 0; i < n; i++)
        slots->free[slots->nfree++] = (uint16_t)(n - 1 - i);
}

int pki_slots_take(struct pki_slots *slots)
{
    return slots->nfree == 0 ? -1 : slots->free[--slots->nfree];
}

/* Those at the bottom, beneath all that have been in use: whatever pki_slots_take hands out is not new afterwards. */
int pki_slots_take_new(struct pki_slots *slots)
{
    int slot = slots->nfree > 0 ? slots->free[0] : -1;

    if (slot < 0 || slots->value[slot] != 0)
        return -1;
    memmove(slots->free, slots->free + 1, (size_t)--slots->nfree * sizeof slots->free[0]);
    return slot;
}

void pki_slots_give_new(struct pki_slots *slots, int slot)
{
    memmove(slots->free + 1, slots->free, (size_t)slots->nfree++ * sizeof slots->free[0]);
    slots->free[0] = (uint16_t)slot;
}

void pki_slots_give(struct pki_slots *slots, int slot)
{
    slots->free[slots->nfree++] = (uint16_t)slot;
}

void pki_signals_release_barriers(struct pki_engine *e)
{
    for (int p = 0; p < e->config.size; p++) {
        const struct pki_ep *ctrl = e->peers[p].ctrl;

        for (int i = 0; ctrl != NULL && ctrl->signals_mine != NULL && i < PKI_CELLS; i++)
            pki_watchdog_open(&ctrl->signals_mine[PKI_SIGNAL_SLOTS + PKI_CELLS + i].moved, (uint32_t)e->colls.number);
    }
}
