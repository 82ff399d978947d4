/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which ranks are threads of one process. A process id is the same in two pid namespaces, and memory is inherited by a child and
 * restored from a snapshot: neither says that an address there means the same memory here, and to take it for one's own would be
 * to read and write the wrong bytes. So each rank makes a token for this communicator, and who finds another rank's among those
 * of its own process is in the same one.
 */
#include <pthread.h>
#include <string.h>
#include <sys/random.h>

#include "comm/comm.h"

static struct {
    pthread_mutex_t lock;
    struct pki_list all;
} tokens = { .lock = PTHREAD_MUTEX_INITIALIZER, .all = { &tokens.all, &tokens.all } };

/* Those of the parent are not this process's. */
static void start_over(void)
{
    pthread_mutex_init(&tokens.lock, NULL);
    pki_list_init(&tokens.all);
}

static void lock(void)
{
    pki_fork_at_child(start_over); /* before the lock is held that a child may find held */
    pthread_mutex_lock(&tokens.lock);
}

/* Without randomness it has none, and is alone. */
void pki_token_show(struct pki_token *token)
{
    token->process = pki_process_number();
    token->valid = token->process != 0 && getrandom(token->bytes, sizeof token->bytes, 0) == (ssize_t)sizeof token->bytes;
    if (!token->valid)
        return;
    lock();
    pki_list_push(&tokens.all, &token->node);
    pthread_mutex_unlock(&tokens.lock);
}

void pki_token_hide(struct pki_token *token)
{
    if (!token->valid)
        return;
    lock();
    pki_list_remove(&token->node);
    pthread_mutex_unlock(&tokens.lock);
    token->valid = false;
}

/* A child that was made without the handlers of fork has the parent's list. */
static bool is_here(const unsigned char bytes[PKI_TOKEN_BYTES])
{
    const uint64_t process = pki_process_number();
    bool found = false;

    lock();
    for (const struct pki_list *n = tokens.all.next; n != &tokens.all && !found; n = n->next) {
        const struct pki_token *token = pki_container_of(n, struct pki_token, node);

        found = token->process == process && memcmp(token->bytes, bytes, sizeof token->bytes) == 0;
    }
    pthread_mutex_unlock(&tokens.lock);
    return found;
}

static bool is_mine(const struct pk_comm *comm, int rank)
{
    return rank == comm->rank || (comm->token.valid && is_here(comm->peer_infos[rank].token));
}

void pki_homes_find(struct pk_comm *comm)
{
    int32_t mine = comm->rank;

    for (int i = comm->size - 1; i >= 0; i--) {
        comm->homes[i] = is_mine(comm, i) ? -1 : i;
        if (comm->homes[i] < 0 && i < mine)
            mine = i;
    }
    for (int i = 0; i < comm->size; i++)
        if (comm->homes[i] < 0)
            comm->homes[i] = mine;
}

void pki_homes_hear(struct pk_comm *comm, int rank, int32_t home)
{
    if (comm->homes[rank] == rank && home >= 0 && home < rank && home != comm->homes[comm->rank])
        comm->homes[rank] = home;
}
