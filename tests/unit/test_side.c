/* SPDX-License-Identifier: Apache-2.0 */
/* The news of a failure, where the socket beside the control channel has no room for it at first. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/life.h"
#include "shm_pair.h"
#include "util/socket.h"

#define FRAMES 20000 /* far more than a socket holds */
#define KIND_AT 4    /* of a frame: version u32, kind u32 */
#define FRAME_FAILED 3

/* Rank 0 of two; of rank 1 there is the end of a control channel and of a socket. */
struct bed {
    struct pki_engine *engine;
    struct pki_iface *their_iface;
    struct pki_ep *theirs;
    int their_fd;
};

static void bed_open(struct bed *bed)
{
    const struct pki_engine_config config = { .size = 2, .local_ranks = 2 };
    struct pki_blob mine, their_blob;
    struct pki_iface *iface;
    struct pki_ep *ep;
    int fds[2];

    cr_assert_eq(pki_engine_open(&config, &bed->engine), PK_OK);
    cr_assert_eq(pki_engine_iface(bed->engine, shm(), &iface), PK_OK);
    cr_assert_eq(pki_engine_ep_open(bed->engine, iface, 1, false, getpid(), &mine, &ep), PK_OK);
    bed->theirs = ep_new(&bed->their_iface, 1, false, getpid());
    cr_assert_eq(shm()->ep_init(bed->theirs, &their_blob), PK_OK);
    mine.fd = fcntl(mine.fd, F_DUPFD_CLOEXEC, 0);
    their_blob.fd = fcntl(their_blob.fd, F_DUPFD_CLOEXEC, 0);
    cr_assert_eq(shm()->ep_connect(ep, &their_blob), PK_OK);
    cr_assert_eq(shm()->ep_connect(bed->theirs, &mine), PK_OK);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    pki_engine_set_ctrl(bed->engine, 1, ep, fds[0]);
    pki_engine_start(bed->engine);
    bed->their_fd = fds[1];
}

static void bed_close(struct bed *bed)
{
    close(bed->their_fd);
    cr_expect_eq(pki_engine_close(bed->engine), PK_ERR_ABORTED);
    ep_free(bed->their_iface, bed->theirs);
}

/* Frames that rank 1 finds now; *failed: of its peer's failure among them. */
static int read_frames(const struct bed *bed, int *failed)
{
    const struct pki_where where = { .rank = 1 };
    unsigned char data[PKI_FRAME_MAX];
    int fds[PKI_FRAME_FDS], n = 0;

    *failed = 0;
    for (;; n++) {
        struct pki_frame_in in = { .data = data, .capacity = sizeof data, .fds = fds, .fd_capacity = PKI_FRAME_FDS };
        pk_result_t result = pki_fd_recv(bed->their_fd, &in, &where);
        uint32_t kind;

        if (result != PK_OK)
            return n;
        memcpy(&kind, data + KIND_AT, sizeof kind);
        *failed += kind == FRAME_FAILED;
    }
}

static void fill(struct bed *bed)
{
    for (int i = 0; i < FRAMES; i++)
        pki_side_send_forget(bed->engine, &bed->engine->peers[1], 1);
}

static void fail(struct bed *bed)
{
    (void)pki_fail(PK_ERR_ABORTED, NULL, "given up");
    pki_engine_give_up(bed->engine, PK_ERR_ABORTED);
}

Test(side, failure_is_told_once_there_is_room)
{
    struct bed bed;
    int failed, filled;

    bed_open(&bed);
    fill(&bed);
    fail(&bed);
    cr_expect_eq(atomic_load(&bed.engine->failure.unreported), 1, "the socket was to be full");
    cr_expect_eq(pki_engine_status(bed.engine), PK_ERR_ABORTED);
    filled = read_frames(&bed, &failed);
    cr_expect(filled > 10 && failed == 0, "%d frames, %d of failure", filled, failed);
    cr_expect_eq(pki_engine_status(bed.engine), PK_ERR_ABORTED); /* as any later call does */
    cr_expect_eq(read_frames(&bed, &failed), 1);
    cr_expect_eq(failed, 1);
    cr_expect_eq(atomic_load(&bed.engine->failure.unreported), 0);
    cr_expect_eq(pki_engine_status(bed.engine), PK_ERR_ABORTED);
    cr_expect_eq(read_frames(&bed, &failed), 0, "told twice");
    bed_close(&bed);
}

Test(side, failure_is_told_at_once_where_there_is_room)
{
    struct bed bed;
    int failed;

    bed_open(&bed);
    fail(&bed);
    cr_expect_eq(read_frames(&bed, &failed), 1);
    cr_expect_eq(failed, 1);
    cr_expect_eq(atomic_load(&bed.engine->failure.unreported), 0);
    bed_close(&bed);
}

Test(side, an_abort_with_nothing_unfinished_is_a_shutdown)
{
    struct bed bed;
    int failed;

    bed_open(&bed);
    pki_engine_abort(bed.engine);
    cr_expect_eq(pki_engine_status(bed.engine), PK_ERR_ABORTED);
    cr_expect_eq(read_frames(&bed, &failed), 1);
    cr_expect_eq(failed, 0);
    pki_engine_abort(bed.engine);
    cr_expect_eq(read_frames(&bed, &failed), 0, "said twice");
    bed_close(&bed);
}
