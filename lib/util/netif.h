/* SPDX-License-Identifier: Apache-2.0 */
/* Network interfaces and their addresses. */
#ifndef PKI_NETIF_H
#define PKI_NETIF_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "pickle/base.h"

#define PKI_NETIF_TEXT 80
#define PKI_NETIF_BUS_ID 16
#define PKI_NETIF_WIRE_BYTES 24

/* Is `name` among the names of the list "eth0,eth1"? And as which, from 0; -1: it is not. */
bool pki_netif_in_list(const char *list, const char *name);
int pki_netif_place(const char *list, const char *name);

struct pki_netif {
    char name[16];                   /* empty: not known */
    struct sockaddr_storage address; /* port 0 */
    int prefix;                      /* bits of the address that name its network; 0: not known */
};

#define PKI_NETIF_MAX 64 /* addresses that are looked at */

struct ifaddrs;

/* False: the system does not tell this process of network interfaces (a sandbox). */
bool pki_netif_is_known(void);

/*
 * The addresses of this process that others may be told, of all interfaces that are up, at most `max` (and PKI_NETIF_MAX) of
 * them. IPv4 comes before IPv6, the first address of every interface before the second one of any; then link-local ones (those of
 * IPv6 with their scope, which is this host's alone); then those of bridges of containers and virtual machines and of tunnels,
 * but none of IPv6 that is link-local there; with `loopback` loopback ends the list. PK_IFNAME restricts it to its interfaces,
 * whatever they are, and orders them. May be none. PK_ERR_ARG: PK_IFNAME names no interface that is up and has an address.
 * PK_ERR_SYSTEM.
 */
pk_result_t pki_netif_addresses(bool loopback, struct pki_netif *out, int max, int *count);
/* The same of `all` (getifaddrs) and `names` (PK_IFNAME, or NULL); returns how many. */
int pki_netif_order(const struct ifaddrs *all, const char *names, bool loopback, struct pki_netif *out, int max);

/* The PCI bus id of the card behind the interface; empty where there is none. */
void pki_netif_bus_id(const char *name, char out[PKI_NETIF_BUS_ID]);

/* The other address lies in the network of which the first `prefix` bits of `own` tell; false where that is not known. */
bool pki_netif_is_neighbour(const struct sockaddr_storage *own, int prefix, const struct sockaddr_storage *other);

void pki_netif_loopback(struct sockaddr_storage *out); /* 127.0.0.1, port 0 */

/* How much of `address` its family uses. */
socklen_t pki_netif_bytes(const struct sockaddr_storage *address);
bool pki_netif_is_loopback(const struct sockaddr_storage *address);
bool pki_netif_is_link_local(const struct sockaddr_storage *address);
int pki_netif_prefix(const struct sockaddr *mask, int family);                           /* bits of a netmask; NULL: 0 */
bool pki_netif_same(const struct sockaddr_storage *a, const struct sockaddr_storage *b); /* with their ports */
uint16_t pki_netif_port(const struct sockaddr_storage *address);
void pki_netif_set_port(struct sockaddr_storage *address, uint16_t port);
/* "192.0.2.1:4000", "[::1]:4000", "[fe80::1%eth0]:4000". */
void pki_netif_format(const struct sockaddr_storage *address, char out[PKI_NETIF_TEXT]);

/* On the wire: family u16 (4 or 6), port u16, scope u32, address[16]; of IPv4 the scope and the last 12 bytes are zero. */
void pki_netif_put(unsigned char out[PKI_NETIF_WIRE_BYTES], const struct sockaddr_storage *address);
/* Takes bytes from outside. False: no address, or one without a port. */
bool pki_netif_get(const unsigned char in[PKI_NETIF_WIRE_BYTES], struct sockaddr_storage *address);

#endif
