/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Datagrams by the dozen: a socket, many of them received by one system call and many sent by one; packets of one length to one
 * address go to the kernel as one large datagram where it can cut it (UDP_SEGMENT), and come as one where it has joined them
 * (UDP_GRO).
 */
#ifndef PKI_SWITCHML_DATAGRAMS_H
#define PKI_SWITCHML_DATAGRAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "pickle/base.h"
#include "switchml/packet.h"

/* Who get the same packets. */
struct pki_receivers {
    unsigned n;
    const struct sockaddr_storage *address[PKI_SWITCHML_WORKERS_MAX];
};

struct pki_datagrams_out; /* what is kept */
struct pki_datagrams_in;

struct pki_datagrams {
    int fd;
    bool segments, joined; /* the kernel cuts, and joins */
    size_t buffer_bytes;   /* of the receive buffer, as granted */
    uint64_t unsent;       /* packets for which the kernel had no room, */
    uint64_t shed;         /* and those that a test let be lost */
    uint64_t loss;         /* lost_per_million, of 2^32; 0: none */
    uint64_t random;
    struct pki_datagrams_out *out;
    struct pki_datagrams_in *in;
};

enum pki_datagrams_how {
    PKI_DATAGRAMS_ORDINARY,
    PKI_DATAGRAMS_PLAIN, /* without joining and cutting */
    PKI_DATAGRAMS_TRY    /* a port in use is PK_IN_PROGRESS, which is not recorded */
};

/* A socket bound to `address`, whose port is filled in, with a receive buffer of `buffer_bytes` or as many as the system grants.
 * Errors are recorded. */
pk_result_t pki_datagrams_open(struct pki_datagrams *d, struct sockaddr_storage *address, size_t buffer_bytes,
                               enum pki_datagrams_how how);
void pki_datagrams_close(struct pki_datagrams *d); /* fd negative: nothing happens */

/* Take what has come, some system calls' worth, without waiting. `take` gets each packet and its sender. Returns how many
 * packets, or -1: errno says what the socket has told (ECONNREFUSED: nobody listens there). */
int pki_datagrams_receive(struct pki_datagrams *d,
                          void (*take)(void *arg, const unsigned char *packet, size_t bytes, const struct sockaddr_storage *from),
                          void *arg);

/* What the socket has told is no end of it: a host or port at which nobody is now, a network or memory that is not there now. */
bool pki_datagrams_is_passing(int error);

/* What a packet of `elements` values takes of the receive buffer while it waits. */
size_t pki_datagrams_memory(uint32_t elements);

/* Keep a packet of `bytes` for flush: where the caller is to write it, before the next call here. `to`: NULL where the socket
 * is connected; else it stays until flush, and packets with the same pointer go together. Flushes when no more can be kept:
 * what the socket has told then is what the next flush returns. */
unsigned char *pki_datagrams_add(struct pki_datagrams *d, const struct pki_receivers *to, size_t bytes);
/* Send what is kept. 0, or an errno of the socket as above; where there was no room the packets are lost, as in any network. */
int pki_datagrams_flush(struct pki_datagrams *d);

#endif
