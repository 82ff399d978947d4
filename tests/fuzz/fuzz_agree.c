/* SPDX-License-Identifier: Apache-2.0 */
/* What a broken peer can say in an agreement: one message, and any messages of any ranks for the machine. */
#include <string.h>

#include "engine/survive.h"
#include "targets.h"

#define RANKS 7

static void fuzz_message(const uint8_t *data, size_t size)
{
    const int ranks = size > 1 ? 1 + (data[0] | data[1] << 8) % PKI_AGREE_RANKS_MAX : 1;
    uint64_t set[PKI_AGREE_RANKS_MAX / 64];
    unsigned char again[PKI_AGREE_WIRE_MAX];
    struct pki_agree_msg msg;

    if (size < 2 || !pki_agree_decode(data + 2, size - 2, ranks, &msg, set))
        return;
    for (int r = ranks; r < (int)pki_agree_words(ranks) * 64; r++)
        require(!pki_agree_has(set, r));
    require(pki_agree_encode(&msg, ranks, again) == size - 2 && memcmp(again, data + 2, size - 2) == 0);
}

static void take_sent(void *arg, int to, const struct pki_agree_msg *msg)
{
    require(to >= 0 && to < RANKS && msg->kind >= PKI_AGREE_VIEW && msg->kind <= PKI_AGREE_FLOOD);
    ++*(unsigned *)arg;
}

/* Who, what, which view: three bytes a message. 0 behind a rank: it is lost. */
static void fuzz_machine(const uint8_t *data, size_t size)
{
    uint64_t dead = 0, view = 0, set;
    unsigned sent = 0;
    struct pki_agree agree = { .rank = size > 0 ? data[0] % RANKS : 0,
                               .size = RANKS,
                               .number = 1,
                               .dead = &dead,
                               .view = &view,
                               .send = take_sent,
                               .arg = &sent };
    int awaited[3];

    pki_agree_begin(&agree);
    for (size_t i = 1; i + 3 <= size; i += 3) {
        const struct pki_agree_msg msg = { .kind = data[i + 1] % 7, .number = 1, .set = &set };
        const int from = data[i] % RANKS;

        set = data[i + 2] & ((1u << RANKS) - 1);
        if (from == agree.rank)
            continue;
        if (msg.kind == 0)
            pki_agree_lost(&agree, from);
        else
            pki_agree_take(&agree, from, &msg);
        require(pki_agree_awaits(&agree, awaited) <= 3 && agree.state <= PKI_AGREE_LEFT_OUT);
    }
    require(sent <= 8 * RANKS * (size + 1));
}

const struct fuzz_target fuzz_targets[] = {
    { "message", fuzz_message },
    { "machine", fuzz_machine },
    { NULL, NULL },
};
