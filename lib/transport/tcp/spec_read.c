/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Head and payload in one system call. Where all chunks come on one connection the next one is most often the next of the first transfer that is not
 * there yet, so what is behind its head is read to where that goes. While somebody reads a head alone, the sender's system call hands on the whole
 * payload behind it, and the reader, when it gives the socket free, has to take all that in before it can begin to copy.
 *
 * Where the guess is wrong the bytes are put aside and read once more. Until then they are in a granted buffer, where this peer may write what it likes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "transport/tcp/tcp.h"

#define SPEC_READ_MAX ((size_t)512 << 10)
#define MISSES 64 /* heads that are read alone after a wrong guess */

static struct pki_tcp_grant *first_unfilled(const struct pki_tcp_ep *ep)
{
    for (struct pki_list *n = ep->grants.next; n != &ep->grants; n = n->next) {
        struct pki_tcp_grant *grant = pki_container_of(n, struct pki_tcp_grant, node);

        if (grant->prefix < grant->bytes)
            return grant;
    }
    return NULL;
}

static size_t least(size_t a, size_t b, size_t c)
{
    size_t two = a < b ? a : b;

    return two < c ? two : c;
}

struct pki_tcp_spec_read pki_tcp_spec_read(struct pki_tcp_link *link)
{
    const struct pki_tcp_ep *ep = link->ep;
    struct pki_tcp_grant *grant;

    if (link->left > 0 || link->head_have > 0 || link->spilled > 0 || !pki_tcp_is_alone(link))
        return (struct pki_tcp_spec_read){ .bytes = 0 };
    grant = first_unfilled(ep);
    if (grant == NULL || link->misses > 0 || grant->fillers > 0 || ep->nout_of_order > 0) /* something of it is there, or being read, behind the prefix */
        return (struct pki_tcp_spec_read){ .bytes = 0 };
    return (struct pki_tcp_spec_read){ .grant = grant, .at = grant->addr + grant->prefix, .offset = grant->prefix,
                                   .bytes = least(grant->bytes - grant->prefix, ep->params.chunk_bytes, SPEC_READ_MAX) };
}

ssize_t pki_tcp_spec_read_receive(struct pki_tcp_link *link, const struct pki_tcp_spec_read *spec)
{
    struct iovec parts[2] = { { link->head, sizeof link->head }, { spec->at, spec->bytes } };

    return readv(link->source.fd, parts, 2);
}

/* It goes on from the last acknowledged chunk where there is no memory. */
static bool spill(struct pki_tcp_link *link, const char *bytes, size_t count)
{
    link->misses = MISSES;
    link->spill = malloc(count);
    if (link->spill == NULL) {
        pki_tcp_link_broken(link, ENOMEM);
        return false;
    }
    memcpy(link->spill, bytes, count);
    link->spill_at = 0;
    link->spilled = count;
    return true;
}

bool pki_tcp_spec_read_advance(struct pki_tcp_link *link, const struct pki_tcp_spec_read *spec, size_t bytes)
{
    size_t behind, in_place = 0;

    if (bytes <= sizeof link->head)
        return pki_tcp_advance_in(link, bytes);
    behind = bytes - sizeof link->head;
    if (!pki_tcp_advance_in(link, sizeof link->head))
        return false;
    if (link->grant == spec->grant && link->chunk.offset == spec->offset)
        in_place = behind < link->left ? behind : link->left;
    if (in_place < behind && !spill(link, spec->at + in_place, behind - in_place))
        return false;
    return in_place == 0 || pki_tcp_advance_in(link, in_place);
}

void pki_tcp_spill_drop(struct pki_tcp_link *link)
{
    free(link->spill);
    link->spill = NULL;
    link->spilled = 0;
}

ssize_t pki_tcp_spill_take(struct pki_tcp_link *link, const struct iovec *parts, int n)
{
    size_t taken = 0;

    for (int i = 0; i < n; i++) {
        size_t bytes = parts[i].iov_len < link->spilled ? parts[i].iov_len : link->spilled;

        memcpy(parts[i].iov_base, link->spill + link->spill_at, bytes);
        link->spill_at += bytes;
        link->spilled -= bytes;
        taken += bytes;
    }
    if (link->spilled == 0)
        pki_tcp_spill_drop(link);
    return (ssize_t)taken;
}
