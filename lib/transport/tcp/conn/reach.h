/* SPDX-License-Identifier: Apache-2.0 */
/* Where ranks listen, by which addresses a peer is tried, and who comes in. */
#ifndef PKI_TCP_REACH_H
#define PKI_TCP_REACH_H

#include "transport/tcp/tcp.h"

#define PKI_TCP_NICS 4 /* interfaces that are named, at most */

struct pki_text;

struct pki_tcp_choice { /* the addresses that the others are told, */
    enum pki_tcp_how how;
    uint32_t count, near; /* of them those to be used first */
    struct pki_netif nics[PKI_TCP_ADDRESSES];
};

/* ---- nics.c: which interfaces ---- */

/* The addresses that the others are told, the `near` nearest first. */
pk_result_t pki_tcp_choose_nics(const struct pki_iface_config *config, struct pki_tcp_choice *out);
/* PKI_TCP_ALL: on the card for a rank that has met this one by the address `met`, that comes first. */
void pki_tcp_put_met_first(struct pki_tcp_peer_info *peer_info, const struct sockaddr_storage *met);

struct pki_tcp_nics { /* of one end of a pair */
    uint32_t count, near;
    const struct sockaddr_storage *address; /* [count] */
    const int *prefix;                      /* of the own ones, as in struct pki_netif; of others NULL */
};

struct pki_tcp_nic_pair {
    uint32_t mine, theirs;
};

/* Between which two a connection is attempted; `turn` counts the connections of a pair of ranks. Both ends' lists are not
 * empty. */
struct pki_tcp_nic_pair pki_tcp_choose_pair(const struct pki_tcp_nics *mine, const struct pki_tcp_nics *theirs, uint32_t turn,
                                            uint32_t attempt);

#define PKI_TCP_ATTEMPT_NS (5 * PKI_NS_PER_S) /* the peer answers a hello in its next round of progress */

/* ---- targets.c: where a peer may be reached ---- */

/* Which own interfaces may lead to link-local addresses: asked once, for all peers. */
void pki_tcp_scopes_find(struct pki_tcp_iface *iface);
/* From its card. */
void pki_tcp_targets_fill(struct pki_tcp_ep *ep);
/* One of them, with the interface that leads there. */
void pki_tcp_target_text(const struct pki_tcp_target *target, struct pki_text *out);
/* The next attempt's: a socket from which to connect to link->target, or -1 with errno. */
int pki_tcp_target_socket(struct pki_tcp_link *link);
/* How long the attempt may go without an answer, from the kernel there, or, once that lets it in (shows_ns), from the peer. */
uint64_t pki_tcp_target_ns(const struct pki_tcp_link *link);
/* The attempt has come to nothing. */
void pki_tcp_target_failed(struct pki_tcp_link *link, int error);
/* It is the one that has led to the peer; never where each connection has its own (PK_IFNAME, several near ones). */
bool pki_tcp_target_is_reached(const struct pki_tcp_link *link);
/* That address is the peer's. */
bool pki_tcp_target_is_known(const struct pki_tcp_link *link);
/* A stranger may answer there: the peer has been reached at another one. */
bool pki_tcp_target_may_be_foreign(const struct pki_tcp_link *link);
/* The connection stands. */
void pki_tcp_target_reached(struct pki_tcp_link *link);
/* Write down what has been tried, of a peer that is being connected. */
void pki_tcp_report(struct pki_tcp_ep *ep);
/* For the log, when that takes long. */
void pki_tcp_say_connecting(struct pki_tcp_ep *ep, uint64_t now, uint64_t away_ns);

/* ---- accept.c: whoever connects to this rank ---- */

/* At all the addresses chosen. */
pk_result_t pki_tcp_listen(struct pki_tcp_iface *iface, const struct pki_tcp_choice *choice);
void pki_tcp_accept(struct pki_tcp_iface *iface, struct pki_tcp_source *listener);
void pki_tcp_unproven_step(struct pki_tcp_iface *iface, struct pki_tcp_unproven *unproven);
/* Let those go whose time is up; true while some are here. */
bool pki_tcp_unproven_timers(struct pki_tcp_iface *iface, uint64_t now, uint64_t away_ns);
void pki_tcp_unproven_close(struct pki_tcp_iface *iface);

#endif
