/* SPDX-License-Identifier: Apache-2.0 */
/* One transfer in the caller's stream: a moment for the peer's grant, and the copy. */
#include "engine/stream/stream.h"

static bool waits_for_cts(const struct pki_xfer *xfer)
{
    return xfer->state == PKI_XFER_WAIT || xfer->state == PKI_XFER_LOOK || xfer->state == PKI_XFER_SAY;
}

/*
 * The peer has probably called at the same time, and its grant is on the way: then both move what they send, and short messages
 * go by low-latency kernels. Who is ahead of a peer waits for it here, and so they meet the next time. Waits in vain take a
 * fiftieth of the time at most, of which up to gpu.meet_saved_ns are saved: who has come far ahead catches up within a few
 * operations.
 */
static uint64_t meeting_budget(struct pki_peer *peer, uint64_t now)
{
    uint64_t earned = (now - peer->meeting.since_ns) / PKI_MEET_SHARE;

    peer->meeting.since_ns = now;
    peer->meeting.left_ns += earned;
    if (peer->meeting.left_ns > pki_tuning.gpu.meet_saved_ns)
        peer->meeting.left_ns = pki_tuning.gpu.meet_saved_ns;
    return peer->meeting.left_ns < pki_tuning.gpu.cts_ns ? pki_tuning.gpu.cts_least_ns : pki_tuning.gpu.cts_ns;
}

void pki_stream_look_for_cts(struct pki_xfer *xfer)
{
    struct pki_peer *peer = xfer->peer;
    uint64_t begun, now, most;

    if (!waits_for_cts(xfer))
        return;
    pki_stream_flush(xfer->engine); /* somebody may wait for these words */
    begun = now = pki_now_ns();
    most = meeting_budget(peer, now);
    while (waits_for_cts(xfer) && now - begun < most) {
        if (!pki_ctrl_poll(xfer->engine, peer))
            pki_cpu_pause();
        now = pki_now_ns();
    }
    if (waits_for_cts(xfer))
        peer->meeting.left_ns -= now - begun < peer->meeting.left_ns ? now - begun : peer->meeting.left_ns;
}

pk_result_t pki_stream_put(struct pki_task *task, struct pki_xfer *xfer, bool joined)
{
    pk_result_t result;

    pki_stream_before_copy(task, joined);
    result = pki_xfer_put(xfer, &task->cuda.queue);
    if (result != PK_OK)
        return result;
    pki_stream_copied(task, xfer->signals.finish, xfer->bytes);
    pki_xfer_enter(xfer, PKI_XFER_STREAM);
    pki_xfer_activate(xfer);
    return PK_OK;
}
