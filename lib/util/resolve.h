/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of hosts to addresses. The system's resolver blocks, for many seconds where a name server is silent, and cannot be
 * interrupted: it is asked on a thread of its own, which ends when it has an answer, whether or not anybody still waits for it.
 */
#ifndef PKI_RESOLVE_H
#define PKI_RESOLVE_H

#include <stdbool.h>
#include <sys/socket.h>

#define PKI_RESOLVE_MAX 32 /* addresses of a name that are kept */
#define PKI_RESOLVE_HOST 256

/* What is known without asking anybody: addresses in digits, and "localhost" (RFC 6761: with everything that ends in
 * ".localhost"), which is 127.0.0.1 and ::1. Port 0. Returns how many; 0: it is a name. */
int pki_resolve_literal(const char *host, struct sockaddr_storage *out, int max);

/* One question to the resolver. */
struct pki_lookup;

/* Ask for `host` (shorter than PKI_RESOLVE_HOST). Where no thread can be made it blocks until the resolver has answered. NULL: no
 * memory. */
struct pki_lookup *pki_lookup_start(const char *host);
bool pki_lookup_is_done(const struct pki_lookup *lookup);
/* When it is done: addresses, port 0. Returns how many, or 0, and why: text of at least 128 bytes, never empty then. */
int pki_lookup_result(const struct pki_lookup *lookup, struct sockaddr_storage *out, int max, char *why);
/* Done or not, nobody waits for it any more. NULL is legal. */
void pki_lookup_drop(struct pki_lookup *lookup);

#endif
