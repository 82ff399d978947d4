/* SPDX-License-Identifier: Apache-2.0 */
/* Who started this process, and as which rank. */
#include "comm/bootstrap/internal.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tuning/tuning.h"
#include "util/auth.h"
#include "util/clock.h"
#include "util/env.h"
#include "util/fork.h"
#include "util/netif.h"
#include "util/resolve.h"

/* torchrun's own store listens at MASTER_PORT. These are ours, tried in turn, since somebody else may have the first. */
#define TORCH_PORT_STEP 1013
#define PORT_FIRST 1024
#define PORTS (65536 - PORT_FIRST)

#define REPORT_NS (5 * PKI_NS_PER_S)

/* ---- one at a time ---- */

static struct {
    pthread_mutex_t lock;
    struct pki_list waiting;
} turns = { .lock = PTHREAD_MUTEX_INITIALIZER, .waiting = { &turns.waiting, &turns.waiting } };

/* Those that wait are the parent's. */
static void start_over(void)
{
    pthread_mutex_init(&turns.lock, NULL);
    pki_list_init(&turns.waiting);
}

void pki_launcher_enter(struct pki_list *turn)
{
    pki_fork_at_child(start_over);
    pthread_mutex_lock(&turns.lock);
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

pk_result_t pki_launcher_wait(const struct pki_list *turn, uint64_t deadline_ns, struct pki_call_off *cancel)
{
    while (!is_first(turn)) {
        if (pki_is_called_off(cancel))
            return pki_fail(PK_ERR_ABORTED, NULL, "aborted");
        if (pki_now_ns() >= deadline_ns)
            return pki_fail(PK_ERR_TIMEOUT, NULL, "the ranks of this process's previous communicator have not come together yet");
        usleep(pki_tuning.wait.turn_us);
    }
    return PK_OK;
}

/* ---- where to meet ---- */

/* What a launcher says of it. */
struct place {
    const char *host;
    uint16_t ports[PKI_MEETING_PORTS];
    int port_count;
    bool torch;     /* several ports, of which some may be taken; and rank 0's own name for itself counts for little */
    bool all_here;  /* all ranks are on this machine */
    bool elsewhere; /* some are not */
    uint64_t deadline_ns;
    struct pki_call_off *cancel;
};

static bool is_unspecified(const struct sockaddr_storage *address)
{
    struct sockaddr_in6 v6;
    struct sockaddr_in v4;

    memcpy(&v4, address, sizeof v4);
    memcpy(&v6, address, sizeof v6);
    return address->ss_family == AF_INET6 ? IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr) : v4.sin_addr.s_addr == htonl(INADDR_ANY);
}

static bool all_loopback(const struct sockaddr_storage *addresses, int count)
{
    for (int i = 0; i < count; i++)
        if (!pki_netif_is_loopback(&addresses[i]))
            return false;
    return true;
}

/* Every address with every port, the first port first; as many as there is room for. */
static void spread_ports(const struct place *place, const struct sockaddr_storage *addresses, int count,
                         struct pki_meeting *meeting)
{
    meeting->address_count = 0;
    for (int p = 0; p < place->port_count; p++)
        for (int i = 0; i < count && meeting->address_count < PKI_MEETING_LISTENERS; i++) {
            struct sockaddr_storage *address = &meeting->address[meeting->address_count++];

            *address = addresses[i];
            pki_netif_set_port(address, place->ports[p]);
        }
}

static bool is_over(const struct place *place)
{
    return pki_now_ns() >= place->deadline_ns || pki_is_called_off(place->cancel);
}

static void nap(void)
{
    nanosleep(&(struct timespec){ .tv_nsec = PKI_NS_PER_MS }, NULL);
}

/* Ask the resolver once. 0: it does not know, and why. */
static int ask(const struct place *place, struct sockaddr_storage *out, int max, char *why)
{
    struct pki_lookup *lookup = pki_lookup_start(place->host);
    int count = 0;

    while (lookup != NULL && !pki_lookup_is_done(lookup) && !is_over(place))
        nap();
    if (lookup != NULL && pki_lookup_is_done(lookup))
        count = pki_lookup_result(lookup, out, max, why);
    pki_lookup_drop(lookup);
    return count;
}

/* Rank 0's own name, which may not be known yet. */
static pk_result_t resolve(const struct place *place, const char *what, struct sockaddr_storage *out, int max, int *count)
{
    const uint64_t report_ns = pki_now_ns() + REPORT_NS;
    uint64_t pause_ns = pki_tuning.start.ask_ns;
    char why[128] = "the resolver did not answer";
    bool said = false;

    *count = ask(place, out, max, why);
    while (*count == 0 && !is_over(place)) {
        if (!said && pki_now_ns() >= report_ns)
            pki_log(PKI_LOG_WARN, NULL, "%s cannot be resolved after 5 s; trying again: %s", what, why);
        said = said || pki_now_ns() >= report_ns;
        for (const uint64_t until = pki_now_ns() + pause_ns; pki_now_ns() < until && !is_over(place);)
            nap();
        pause_ns = 2 * pause_ns < pki_tuning.start.own_name_most_ns ? 2 * pause_ns : pki_tuning.start.own_name_most_ns;
        *count = ask(place, out, max, why);
    }
    if (*count > 0)
        return PK_OK;
    return pki_now_ns() < place->deadline_ns ? pki_fail(PK_ERR_ABORTED, NULL, "aborted")
                                             : pki_fail(PK_ERR_TIMEOUT, NULL, "%s: %s", what, why);
}

/* Rank 0 without a secret serves loopback alone, by the addresses that its name for itself has. */
static pk_result_t serve_loopback(const struct place *place, struct pki_meeting *meeting)
{
    struct sockaddr_storage addresses[PKI_MEETING_LISTENERS];
    int count = pki_resolve_literal(place->host, addresses, PKI_MEETING_LISTENERS);
    const bool is_name = count == 0;
    char first[PKI_NETIF_TEXT];
    pk_result_t result = PK_OK;

    if (is_name)
        result = resolve(place, meeting->what, addresses, PKI_MEETING_LISTENERS, &count);
    if (result == PK_OK)
        result = pki_secret_allows(meeting->guard, meeting->what, all_loopback(addresses, count));
    if (result != PK_OK)
        return result;
    pki_netif_format(&addresses[0], first);
    *strrchr(first, ':') = '\0';
    if (place->elsewhere) /* or another agent has started them on this machine */
        pki_log(PKI_LOG_WARN, NULL,
                "%s: the job has more ranks than LOCAL_WORLD_SIZE says of this machine, and there is no secret: only ranks of "
                "this machine can join. For ranks of other machines set PK_SECRET_FILE, or PK_INSECURE=1 on a network where "
                "everybody may join",
                meeting->what);
    else if (is_name && !place->all_here)
        pki_log(PKI_LOG_WARN, NULL,
                "%s is %s on this machine, and there is no PK_SECRET_FILE: only ranks of this machine can "
                "join",
                meeting->what, first);
    spread_ports(place, addresses, count, meeting);
    return PK_OK;
}

/* However rank 0 calls itself, the others may know it by another name: it serves every address of its machine. But not beyond
 * what PK_ROOT says in digits where nothing but the network keeps strangers away, and never beyond loopback where PK_ROOT says
 * so. */
static bool serves_all(const struct place *place, enum pki_guard guard, const struct sockaddr_storage *literal, int count)
{
    if (place->all_here)
        return false;
    if (place->torch || count == 0 || is_unspecified(&literal[0]))
        return true;
    return guard == PKI_GUARD_SECRET && (count > 1 || !pki_netif_is_loopback(&literal[0])); /* more than one: localhost */
}

static pk_result_t serve(const struct place *place, struct pki_meeting *meeting)
{
    struct sockaddr_storage addresses[2] = { { .ss_family = AF_INET }, { .ss_family = AF_INET6 } }, literal[2];
    int count = pki_resolve_literal(place->host, literal, 2);
    const struct sockaddr_storage *instead = NULL;
    pk_result_t result = PK_OK;

    if (meeting->guard == PKI_GUARD_LOOPBACK) {
        result = serve_loopback(place, meeting);
    } else {
        const bool all = serves_all(place, meeting->guard, literal, count);

        result = pki_secret_allows(meeting->guard, meeting->what, !all && all_loopback(literal, count));
        spread_ports(place, all ? addresses : literal, all ? 2 : count, meeting);
        pki_netif_set_port(&literal[0], place->ports[0]);
        /* what the user names must do */
        instead = all && !place->torch && count == 1 && !is_unspecified(&literal[0]) ? &literal[0] : NULL;
    }
    if (result == PK_OK) {
        count = meeting->address_count;
        result = pki_meeting_listen(meeting->address, &count, place->torch, instead, meeting->listeners);
    }
    if (result == PK_OK)
        meeting->listener_count = count;
    return result;
}

/* The others: rank 0's name is resolved where they look for it. */
static pk_result_t aim(const struct place *place, struct pki_meeting *meeting)
{
    struct sockaddr_storage addresses[PKI_MEETING_LISTENERS];
    int count = pki_resolve_literal(place->host, addresses, PKI_MEETING_LISTENERS);

    if (count == 0) {
        snprintf(meeting->host, sizeof meeting->host, "%s", place->host);
        memcpy(meeting->ports, place->ports, sizeof meeting->ports);
        meeting->port_count = place->port_count;
        return PK_OK;
    }
    if (is_unspecified(&addresses[0])) /* what rank 0 listens at may be said to the ranks beside it */
        count = pki_resolve_literal("localhost", addresses, PKI_MEETING_LISTENERS);
    spread_ports(place, addresses, count, meeting);
    return pki_secret_allows(meeting->guard, meeting->what, all_loopback(addresses, count));
}

static pk_result_t find_meeting(int rank, const struct place *place, struct pki_meeting *meeting)
{
    pk_result_t result = pki_secret_find(&meeting->secret, &meeting->guard);

    if (result == PK_OK)
        result = rank == 0 ? serve(place, meeting) : aim(place, meeting);
    if (result != PK_OK)
        pki_meeting_close(meeting);
    return result;
}

/* ---- PK_RANK, PK_SIZE, PK_ROOT ---- */

static pk_result_t find_by_root(int rank, struct place *place, struct pki_meeting *meeting)
{
    const char *root = pki_env_get("PK_ROOT");
    char host[PKI_HOST_BYTES], port[PKI_PORT_BYTES];

    if (root == NULL)
        return pki_fail(PK_ERR_ARG, NULL, "PK_RANK and PK_SIZE are set, but not PK_ROOT (host:port of rank 0)");
    if (!pki_wire_split_host_port(root, host, port))
        return pki_fail(PK_ERR_ARG, NULL, "PK_ROOT=%.200s is not host:port", root);
    place->host = host;
    place->ports[0] = (uint16_t)atoi(port);
    place->port_count = 1;
    snprintf(meeting->what, sizeof meeting->what, "PK_ROOT=%.200s", root);
    return find_meeting(rank, place, meeting);
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

/* Jobs that meet at one port by chance are told apart by their names. What is written differently on the ranks of one job must
 * not be in it: not the host, nor the count of restarts, which each node's agent keeps for itself. */
static pk_result_t name_job(struct pki_meeting *meeting)
{
    const char *run = pki_env_get("TORCHELASTIC_RUN_ID");
    unsigned char hash[PKI_HASH_BYTES];
    char text[512];
    pk_result_t result;

    snprintf(text, sizeof text, "torchrun %.64s %.400s", pki_env_get("MASTER_PORT"), run != NULL ? run : "");
    result = pki_auth_hash(text, strlen(text), hash);
    if (result == PK_OK)
        memcpy(meeting->secret.job, hash, sizeof meeting->secret.job);
    return result;
}

/* No more than a hint: whatever else stands there says nothing. */
static uint32_t count_lives(void)
{
    const char *text = pki_env_get("TORCHELASTIC_RESTART_COUNT");
    unsigned restarts;

    return text != NULL && sscanf(text, "%9u", &restarts) == 1 ? restarts + 1 : 0;
}

static pk_result_t find_by_torch(int size, int rank, struct place *place, struct pki_meeting *meeting)
{
    const char *master = pki_env_get("MASTER_ADDR");
    int64_t port = 0, here = 0;
    pk_result_t result = pki_env_int("MASTER_PORT", 1, 65535, 0, &port);

    if (result == PK_OK)
        result = pki_env_int("LOCAL_WORLD_SIZE", 1, PKI_RANKS_MAX, 0, &here);
    if (result == PK_OK)
        result = name_job(meeting);
    if (result != PK_OK)
        return result;
    meeting->life = count_lives();
    place->torch = true;
    place->all_here = here == size; /* nobody else need reach it, however the host is called */
    place->elsewhere = here != 0 && here < size;
    place->host = place->all_here ? "localhost" : master;
    snprintf(meeting->what, sizeof meeting->what, "MASTER_ADDR=%.200s", place->host);
    for (place->port_count = 0; place->port_count < PKI_MEETING_PORTS; place->port_count++)
        place->ports[place->port_count] =
            (uint16_t)(PORT_FIRST + (port + (place->port_count + 1) * TORCH_PORT_STEP - PORT_FIRST + PORTS) % PORTS);
    return find_meeting(rank, place, meeting);
}

/* ---- all of them ---- */

static pk_result_t find_by_variables(bool torch, int *size, int *rank, struct place *place, struct pki_meeting *meeting)
{
    int ranks = 0, mine = 0;
    pk_result_t result = read_numbers(torch ? "RANK" : "PK_RANK", torch ? "WORLD_SIZE" : "PK_SIZE", &ranks, &mine);

    if (result == PK_OK && ranks > 1)
        result = torch ? find_by_torch(ranks, mine, place, meeting) : find_by_root(mine, place, meeting);
    if (result != PK_OK)
        return result;
    *size = ranks;
    *rank = mine;
    return PK_OK;
}

static pk_result_t find_by_pmix(int *size, int *rank, const struct place *place, struct pki_meeting *meeting)
{
    pk_unique_id_t id;
    pk_result_t result = pki_pmix_find(size, rank, &id, place->deadline_ns, place->cancel);

    if (result == PK_OK)
        result = pki_meeting_of_id(&id, *rank == 0, meeting);
    pki_auth_wipe(&id, sizeof id);
    return result;
}

pk_result_t pki_launcher_find(int *size, int *rank, struct pki_meeting *meeting, uint64_t deadline_ns,
                              struct pki_call_off *cancel)
{
    struct place place = { .deadline_ns = deadline_ns, .cancel = cancel };

    memset(meeting, 0, sizeof *meeting);
    if (pki_env_get("PK_RANK") != NULL || pki_env_get("PK_SIZE") != NULL)
        return find_by_variables(false, size, rank, &place, meeting);
    if (torch_present())
        return find_by_variables(true, size, rank, &place, meeting);
    if (pki_pmix_present())
        return find_by_pmix(size, rank, &place, meeting);
    return pki_decline(PK_ERR_UNSUPPORTED,
                       "no launcher found: start under torchrun, mpirun or srun, or set PK_RANK, PK_SIZE and PK_ROOT=host:port");
}
