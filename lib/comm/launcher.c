/* SPDX-License-Identifier: Apache-2.0 */
/* Who started this process, and as which rank. */
#include "comm/bootstrap_int.h"

#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "util/auth.h"
#include "util/clock.h"
#include "util/env.h"
#include "util/fork.h"
#include "util/netif.h"

/* torchrun's own store listens at MASTER_PORT. These are ours, tried in turn, since somebody else may have the first. */
#define TORCH_PORT_STEP 1013
#define TORCH_PORTS 2
#define PORT_FIRST 1024
#define PORTS (65536 - PORT_FIRST)

/* ---- one at a time ---- */

static struct {
    pthread_mutex_t lock;
    struct pki_list waiting;
    bool watched; /* start_over is called in children */
} turns = { .lock = PTHREAD_MUTEX_INITIALIZER, .waiting = { &turns.waiting, &turns.waiting } };

/* Those that wait are the parent's. */
static void start_over(void)
{
    pthread_mutex_init(&turns.lock, NULL);
    pki_list_init(&turns.waiting);
}

void pki_launcher_enter(struct pki_list *turn)
{
    pthread_mutex_lock(&turns.lock);
    if (!turns.watched)
        pki_fork_at_child(start_over);
    turns.watched = true;
    pki_list_push(&turns.waiting, turn);
    pthread_mutex_unlock(&turns.lock);
}

void pki_launcher_leave(struct pki_list *turn)
{
    pthread_mutex_lock(&turns.lock);
    pki_list_remove(turn);
    pthread_mutex_unlock(&turns.lock);
}

static bool is_first(const struct pki_list *turn)
{
    bool first;

    pthread_mutex_lock(&turns.lock);
    first = turns.waiting.next == turn;
    pthread_mutex_unlock(&turns.lock);
    return first;
}

pk_result_t pki_launcher_wait(const struct pki_list *turn, uint64_t deadline_ns, const atomic_bool *cancel)
{
    while (!is_first(turn)) {
        if (cancel != NULL && atomic_load(cancel))
            return pki_fail(PK_ERR_ABORTED, NULL, "aborted");
        if (pki_now_ns() >= deadline_ns)
            return pki_fail(PK_ERR_TIMEOUT, NULL, "the ranks of this process's previous communicator have not come together yet");
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    return PK_OK;
}

/* ---- addresses ---- */

/* Up to `most` addresses of host; `name` and `text` are the variable, for texts. */
static pk_result_t resolve(const char *name, const char *text, const char *host, const char *port, int most, struct pki_id *id)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV };
    struct addrinfo *found = NULL;
    int error = getaddrinfo(host, port, &hints, &found);

    if (error != 0)
        return pki_fail(PK_ERR_ARG, NULL, "%s=%.200s: %s", name, text, gai_strerror(error));
    for (const struct addrinfo *a = found; a != NULL && id->address_count < most; a = a->ai_next) {
        if (a->ai_family != AF_INET && a->ai_family != AF_INET6)
            continue;
        memcpy(&id->address[id->address_count], a->ai_addr, a->ai_addrlen);
        id->address_count++;
    }
    freeaddrinfo(found);
    if (id->address_count == 0)
        return pki_fail(PK_ERR_ARG, NULL, "%s=%.200s has no address", name, text);
    return PK_OK;
}

/* The ranks share no more than `where`, so each makes the same id of it; `made` has the addresses. */
static pk_result_t finish_id(int rank, const char *where, bool any_address, struct pki_id *made, pk_unique_id_t *id)
{
    pk_result_t result = pki_secret_find(where, made);

    if (result == PK_OK && rank == 0)
        result = pki_listener_make(made, any_address, id);
    else if (result == PK_OK)
        pki_wire_put_id(id, made);
    pki_auth_wipe(&made->secret, sizeof made->secret);
    return result;
}

/* ---- PK_RANK, PK_SIZE, PK_ROOT ---- */

static pk_result_t id_from_root(int rank, pk_unique_id_t *id)
{
    const char *root = pki_env_get("PK_ROOT");
    char host[PKI_HOST_BYTES], port[PKI_PORT_BYTES], where[256];
    struct pki_id made = { .address_count = 0 };
    pk_result_t result;

    if (root == NULL)
        return pki_fail(PK_ERR_ARG, NULL, "PK_RANK and PK_SIZE are set, but not PK_ROOT (host:port of rank 0)");
    if (!pki_wire_split_host_port(root, host, port))
        return pki_fail(PK_ERR_ARG, NULL, "PK_ROOT=%.200s is not host:port", root);
    result = resolve("PK_ROOT", root, host, port, PKI_ID_ADDRESSES, &made);
    snprintf(where, sizeof where, "PK_ROOT=%.200s", root);
    return result == PK_OK ? finish_id(rank, where, false, &made, id) : result;
}

/* Two variables that say size and rank. */
static pk_result_t read_numbers(const char *rank_name, const char *size_name, int *size, int *rank)
{
    int64_t my_rank = -1, ranks = -1;
    pk_result_t result = pki_env_int(size_name, 1, PKI_RANKS_MAX, -1, &ranks);

    if (result == PK_OK && ranks < 0)
        return pki_fail(PK_ERR_ARG, NULL, "%s is set, but not %s", rank_name, size_name);
    if (result == PK_OK)
        result = pki_env_int(rank_name, 0, ranks - 1, -1, &my_rank);
    if (result == PK_OK && my_rank < 0)
        return pki_fail(PK_ERR_ARG, NULL, "%s is set, but not %s", size_name, rank_name);
    if (result != PK_OK)
        return result;
    *size = (int)ranks;
    *rank = (int)my_rank;
    return PK_OK;
}

static pk_result_t find_from_variables(int *size, int *rank, pk_unique_id_t *id)
{
    int ranks = 0, mine = 0;
    pk_result_t result = read_numbers("PK_RANK", "PK_SIZE", &ranks, &mine);

    if (result == PK_OK && ranks == 1)
        pki_wire_put_id(id, &(const struct pki_id){ .address_count = 0 });
    else if (result == PK_OK)
        result = id_from_root(mine, id);
    if (result != PK_OK)
        return result;
    *size = ranks;
    *rank = mine;
    return PK_OK;
}

/* ---- torchrun ---- */

/* srun and mpirun may have started torchrun itself: then their variables speak of its own place and not of its children's. */
static bool torch_present(void)
{
    static const char *const names[] = { "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT" };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (pki_env_get(names[i]) == NULL)
            return false;
    return pki_env_get("TORCHELASTIC_RUN_ID") != NULL || !pki_pmix_present();
}

/* Every address with every port, the first port first. */
static void spread_ports(struct pki_id *id, int master_port)
{
    const int hosts = id->address_count;

    for (int i = hosts * TORCH_PORTS - 1; i >= 0; i--) {
        int port = PORT_FIRST + (master_port + (i / hosts + 1) * TORCH_PORT_STEP - PORT_FIRST + PORTS) % PORTS;

        id->address[i] = id->address[i % hosts];
        pki_netif_set_port(&id->address[i], (uint16_t)port);
    }
    id->address_count = hosts * TORCH_PORTS;
}

/* Jobs that meet at one port by chance, and an earlier life of this job, are told apart by their names. */
static pk_result_t name_job(struct pki_id *id)
{
    const char *run = pki_env_get("TORCHELASTIC_RUN_ID"), *restarts = pki_env_get("TORCHELASTIC_RESTART_COUNT");
    unsigned char hash[PKI_HASH_BYTES];
    char text[512];
    pk_result_t result;

    snprintf(text, sizeof text, "torchrun %.64s %.200s %.100s %.16s", pki_env_get("MASTER_PORT"), pki_env_get("MASTER_ADDR"),
             run != NULL ? run : "", restarts != NULL ? restarts : "");
    result = pki_auth_hash(text, strlen(text), hash);
    if (result == PK_OK)
        memcpy(id->secret.job, hash, sizeof id->secret.job);
    return result;
}

static pk_result_t id_from_torch(int size, int rank, pk_unique_id_t *id)
{
    const char *master = pki_env_get("MASTER_ADDR");
    char where[256];
    struct pki_id made = { .address_count = 0 };
    int64_t port = 0, here = 0;
    pk_result_t result = pki_env_int("MASTER_PORT", 1, 65535, 0, &port);

    if (result == PK_OK)
        result = pki_env_int("LOCAL_WORLD_SIZE", 1, PKI_RANKS_MAX, 0, &here);
    /* All on this host: nobody else need reach it, however the host is called. */
    if (result == PK_OK)
        result = resolve("MASTER_ADDR", master, here == size ? "127.0.0.1" : master, NULL, PKI_ID_ADDRESSES / TORCH_PORTS, &made);
    if (result == PK_OK)
        result = name_job(&made);
    if (result != PK_OK)
        return result;
    spread_ports(&made, (int)port);
    snprintf(where, sizeof where, "MASTER_ADDR=%.200s", here == size ? "127.0.0.1" : master);
    return finish_id(rank, where, true, &made, id);
}

static pk_result_t find_from_torch(int *size, int *rank, pk_unique_id_t *id)
{
    int ranks = 0, mine = 0;
    pk_result_t result = read_numbers("RANK", "WORLD_SIZE", &ranks, &mine);

    if (result == PK_OK && ranks == 1)
        pki_wire_put_id(id, &(const struct pki_id){ .address_count = 0 });
    else if (result == PK_OK)
        result = id_from_torch(ranks, mine, id);
    if (result != PK_OK)
        return result;
    *size = ranks;
    *rank = mine;
    return PK_OK;
}

pk_result_t pki_launcher_find(int *size, int *rank, pk_unique_id_t *id, uint64_t deadline_ns, const atomic_bool *cancel)
{
    if (pki_env_get("PK_RANK") != NULL || pki_env_get("PK_SIZE") != NULL)
        return find_from_variables(size, rank, id);
    if (torch_present())
        return find_from_torch(size, rank, id);
    if (pki_pmix_present())
        return pki_pmix_find(size, rank, id, deadline_ns, cancel);
    return pki_decline(PK_ERR_UNSUPPORTED,
                       "no launcher found: start under torchrun, mpirun or srun, or set PK_RANK, PK_SIZE and PK_ROOT=host:port");
}
