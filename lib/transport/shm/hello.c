/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank says about its inbox. */
#include <string.h>

#include "transport/shm/shm.h"

_Static_assert(sizeof(struct pki_shm_hello) <= sizeof((struct pki_blob){ 0 }.bytes), "fits in a blob");

const char *pki_shm_hello_parse(const struct pki_blob *blob, struct pki_shm_hello *hello)
{
    struct pki_shm_hello h;

    if (blob->len != sizeof h)
        return "its description of the inbox has the wrong length";
    memcpy(&h, blob->bytes, sizeof h);
    if (h.layout != PKI_SHM_LAYOUT)
        return "it uses another layout of shared memory: is it the same version of the library?";
    if (h.cells != PKI_SHM_CELLS || h.data_bytes != PKI_SHM_DATA_BYTES || h.signal_slots != PKI_PAIR_SLOTS ||
        h.inbox_bytes != sizeof(struct pki_shm_inbox))
        return "its inbox has other sizes";
    if (h.fast_copy > 1 || h.reserved != 0)
        return "its hello is invalid";
    *hello = h;
    return NULL;
}
