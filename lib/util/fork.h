/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a fork must not take along. A child has copies of this process's memory and descriptors, but none of its threads:
 * communicators and streams made before the fork are of no use to it, and its copies of their sockets would hide the parent's
 * death from other ranks.
 */
#ifndef PKI_FORK_H
#define PKI_FORK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

extern atomic_uint pki_fork_count; /* forks between the process that loaded the library and this one */

/* Made now, for pki_fork_is_ours. From the first call on forks are noticed. */
unsigned pki_fork_stamp(void);

/* Was the stamp made by this process? */
static inline bool pki_fork_is_ours(unsigned stamp)
{
    return stamp == atomic_load_explicit(&pki_fork_count, memory_order_relaxed);
}

/* A random number of this process; 0: there is no randomness. A child has another one, however it was made (fork, clone, a new
 * pid namespace); what was restored twice from one snapshot may have the same. */
uint64_t pki_process_number(void);

/* Before anything is made: a child that a bare clone made, without the handlers of fork, is noticed here at the latest. */
void pki_fork_look(void);

/* Children close this descriptor as soon as they exist, until it is let go: before it is closed. Negative ones are ignored. */
void pki_fork_guard(int fd);
void pki_fork_let_go(int fd);

/* From now on, in a child, alone in its process, before fork returns: `start_over` makes a lock or list of the process as it
 * was at first. Once for each, however often it is called; at most 16. Not with that lock held, which a fork in between would
 * leave held for ever. */
void pki_fork_at_child(void (*start_over)(void));

#endif
