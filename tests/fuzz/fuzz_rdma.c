/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes from another host: a message of the rdma control channel, a rank's greeting, or a note about queue pairs that are made again. */
#include <stdlib.h>
#include <string.h>

#include "targets.h"
#include "transport/rdma/rdma.h"

static void fuzz_message_or_hello(const uint8_t *data, size_t size)
{
    struct pki_rdma_hello hello;
    struct pki_rdma_note note;
    struct pki_blob blob = { .fd = -1 };
    struct pki_msg msg;
    uint8_t *exact = malloc(size > 0 ? size : 1); /* so that the sanitizer sees a read behind the end */

    if (exact == NULL)
        return;
    if (size > 0)
        memcpy(exact, data, size);
    for (uint32_t nrails = 1; nrails <= PKI_RDMA_RAILS_MAX; nrails++)
        if (size <= UINT32_MAX && pki_rdma_message_parse(exact, (uint32_t)size, nrails, PKI_RDMA_PIECE_SHIFT_MIN, &msg) &&
            (msg.payload > PKI_RDMA_PAYLOAD_MAX || msg.payload > size))
            abort();
    blob.len = (uint32_t)(size < sizeof blob.bytes ? size : sizeof blob.bytes);
    memcpy(blob.bytes, exact, blob.len);
    if (pki_rdma_hello_parse(&blob, &hello) == NULL && (hello.nrails > PKI_RDMA_RAILS_MAX || hello.nqps > PKI_RDMA_QPS_MAX))
        abort();
    if (pki_rdma_note_parse(exact, size, &note) == NULL && note.ngrants > PKI_RDMA_NUMBERS)
        abort();
    free(exact);
}

const struct fuzz_target fuzz_targets[] = { { "message_or_hello", fuzz_message_or_hello }, { NULL, NULL } };
