/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a broken or hostile peer can write for the shm transport to read: the description of its inbox, a single cell, and a whole
 * inbox with the counter of what it has read. First byte of the input: which. Build with address sanitizer; it watches the bounds.
 */
#include <stdlib.h>
#include <string.h>

#include "targets.h"
#include "transport/shm/shm.h"

static void fuzz_hello(const uint8_t *data, size_t size)
{
    struct pki_blob blob = { .len = (uint32_t)size, .fd = -1 };
    struct pki_shm_hello hello;

    memcpy(blob.bytes, data, size < sizeof blob.bytes ? size : sizeof blob.bytes);
    if (pki_shm_hello_parse(&blob, &hello) == NULL)
        require(size == sizeof hello && hello.inbox_bytes == PKI_SHM_INBOX_BYTES);
}

static void fuzz_cell(const uint8_t *data, size_t size)
{
    struct pki_shm_cell cell = { 0 };
    struct pki_shm_place place;
    struct pki_msg msg;

    memcpy(cell.byte, data, size < sizeof cell ? size : sizeof cell);
    if (!pki_shm_cell_parse(&cell, atomic_load(&cell.word[0]), &msg, &place))
        return;
    require(msg.payload <= PKI_SHM_PAYLOAD_MAX);
    if (place.outside && place.offset >= PKI_SHM_DATA_BYTES)
        require(place.offset % PKI_SHM_SLOT_BYTES == 0 && place.offset + msg.payload <= PKI_SHM_DATA_BYTES + PKI_SHM_SLOTS_BYTES);
    else
        require((uint64_t)place.offset + msg.payload <= (place.outside ? PKI_SHM_DATA_BYTES : sizeof cell));
    require(!place.outside || (place.offset % PKI_SHM_DATA_ALIGN == 0 && place.end % PKI_SHM_DATA_ALIGN == 0));
}

/* Cells from the input, one after another, in an inbox that is not a byte too long; every byte of every payload is read. */
static void fuzz_reader(const uint8_t *data, size_t size)
{
    struct pki_shm_inbox *inbox = calloc(1, sizeof *inbox);
    struct pki_shm_ep ep = { .base = { .rank = 0, .peer = 1 } };
    unsigned sum = 0;

    pki_shm_rx_init(&ep.rx, inbox);
    for (uint32_t i = 0; size >= 64; i++, data += 64, size -= 64) {
        struct pki_shm_cell *cell = &inbox->cells[i % PKI_SHM_CELLS];
        struct pki_msg msg;
        const void *payload;

        memcpy(cell->byte, data, sizeof *cell);
        /* Half of them with the right stamp, else few get far. */
        if ((data[3] & 1) != 0)
            atomic_store(&cell->word[0], atomic_load(&cell->word[0]) >> 32 << 32 | (ep.rx.next + 1));
        if (!pki_shm_peek(&ep.base, &msg, &payload))
            continue;
        require(ep.base.state != PKI_EP_DEAD && msg.payload <= PKI_SHM_PAYLOAD_MAX);
        for (uint32_t k = 0; k < msg.payload; k++)
            sum += ((const unsigned char *)payload)[k];
        pki_shm_pop(&ep.base);
    }
    *(volatile unsigned *)&sum = sum;
    free(inbox);
}

/* Sends while the peer's counter says what the input likes. Never outside the inbox; never more in flight than fits. The writer reads
 * nothing of an inbox but its header, so that one inbox does for all inputs. */
static void fuzz_writer(const uint8_t *data, size_t size)
{
    static const unsigned char payload[PKI_SHM_PAYLOAD_MAX];
    static struct pki_shm_inbox inbox, own; /* nobody writes into its own */
    struct pki_shm_ep ep = { .base = { .rank = 0, .peer = 1 } };

    memset(&inbox.header, 0, sizeof inbox.header);
    pki_shm_tx_init(&ep.tx, &inbox, size % 2 == 0 ? PKI_SHM_DATA_BYTES : PKI_SHM_DATA_USED_MIN, 0);
    pki_shm_rx_init(&ep.rx, &own);
    for (; size >= 12; data += 12, size -= 12) {
        struct pki_msg msg = { .kind = data[0] };
        uint64_t taken;

        memcpy(&msg.payload, data + 1, sizeof msg.payload);
        msg.payload %= (data[3] & 2) != 0 ? 128 : PKI_SHM_PAYLOAD_MAX + 1;
        memcpy(&taken, data + 4, sizeof taken);
        if ((data[3] & 1) != 0) /* believable, half of the time */
            taken = (uint64_t)ep.tx.data_next << 32 | ep.tx.next;
        atomic_store(&inbox.header.taken, taken);
        if ((data[3] & 2) != 0) /* a message of the peer's said so */
            ep.tx.heard = ep.tx.next;
        if (pki_shm_send(&ep.base, &msg, payload) == PK_ERR_PEER)
            require(ep.base.state == PKI_EP_DEAD);
        require(ep.tx.next - ep.tx.taken_next <= PKI_SHM_CELLS);
        require(ep.tx.data_next - ep.tx.taken_data <= PKI_SHM_DATA_BYTES);
        require(((ep.tx.data_next - 1) & (PKI_SHM_DATA_BYTES - 1)) < ep.tx.data_used || ep.tx.data_next == 0);
    }
}

const struct fuzz_target fuzz_targets[] = {
    { "hello", fuzz_hello }, { "cell", fuzz_cell }, { "reader", fuzz_reader }, { "writer", fuzz_writer }, { NULL, NULL },
};
