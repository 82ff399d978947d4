/* SPDX-License-Identifier: Apache-2.0 */
/* Fused collectives: their kernels in turn, and when they count as ended. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <unistd.h>

#include "comm/comm.h"
#include "engine/life.h"
#include "pickle/pickle.h"

#define SMALL ((size_t)16)       /* floats: one CTA */
#define MEDIUM ((size_t)8 << 10) /* some, and of a sum half as many as of other reductions */
#define LARGE ((size_t)32 << 10) /* many */
#define FAR ((1u << 31) + 16)    /* even: epochs keep their parity */

struct rank {
    pk_comm_t *comm;
    void *buffer;
    pthread_t thread;
    size_t count;
    pk_op_t op;
    pk_result_t result;
};

static struct rank ranks[2];

static void *call(void *arg)
{
    struct rank *r = arg;

    r->result = pk_allreduce(r->buffer, r->buffer, r->count, PK_F32, r->op, r->comm, PK_BLOCKING);
    return NULL;
}

static void allreduce(size_t count)
{
    for (int i = 0; i < 2; i++) {
        ranks[i].count = count;
        cr_assert_eq(pthread_create(&ranks[i].thread, NULL, call, &ranks[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(pthread_join(ranks[i].thread, NULL), 0);
        cr_expect_eq(ranks[i].result, PK_OK, "rank %d, %zu elements: %s", i, count, pk_strerror(ranks[i].result));
    }
}

static void open_both(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_result_t result = PK_OK;
    pk_unique_id_t id;

    config.nonblocking = 1;
    config.timeout_ms = 20000;
    cr_assert_eq(pk_get_unique_id(&id), PK_OK);
    for (int i = 0; i < 2; i++) {
        config.device = PK_DEVICE_CUDA(i);
        cr_assert_eq(pk_comm_init_rank(&ranks[i].comm, 2, i, &id, &config), PK_IN_PROGRESS);
    }
    for (int i = 0; i < 2; i++) {
        while ((result = pk_comm_async_error(ranks[i].comm)) == PK_IN_PROGRESS)
            usleep(500);
        cr_assert_eq(result, PK_OK);
        cr_assert(ranks[i].comm->engine->fused.on);
        cr_assert_eq(ranks[i].comm->device->ops->alloc(ranks[i].comm->device, LARGE * sizeof(float), &ranks[i].buffer), PK_OK);
    }
}

static void close_both(void)
{
    for (int i = 0; i < 2; i++) {
        ranks[i].comm->device->ops->free(ranks[i].comm->device, ranks[i].buffer);
        cr_expect_eq(pk_comm_destroy(ranks[i].comm), PK_OK);
    }
}

/* What CTAs said of long ago must not pass for the end of a kernel to come. */
Test(cuda_fused, old_ends_are_no_ends)
{
    open_both();
    allreduce(LARGE); /* many CTAs have ended */
    for (int i = 0; i < 2; i++)
        ranks[i].comm->engine->fused.epoch += FAR;
    allreduce(SMALL);
    for (int i = 0; i < 2; i++)
        for (int c = 0; c < PKI_FUSED_CTAS; c++) {
            const struct pki_fused *f = &ranks[i].comm->engine->fused;

            cr_expect_lt((int32_t)(((volatile uint32_t *)f->words->done)[c] - (f->epoch + 1)), 0, "rank %d, block %d has ended",
                         i, c);
        }
    allreduce(LARGE);
    close_both();
}

static uint64_t operations(const struct rank *r)
{
    pk_stats_t stats = { .struct_size = sizeof stats };

    cr_assert_eq(pk_comm_stats(r->comm, &stats), PK_OK);
    return stats.operations;
}

/* That nothing has followed for long must not pass for something that follows: a kernel that may be quiet then tells of its end. */
Test(cuda_fused, old_followers_are_no_followers)
{
    struct pki_queue queues[2];
    uint64_t before[2];

    open_both();
    for (int i = 0; i < 2; i++) {
        struct pki_device *device = ranks[i].comm->device;

        before[i] = operations(&ranks[i]);
        ranks[i].comm->engine->fused.epoch += FAR;
        cr_assert_eq(device->ops->queue_open(device, &queues[i]), PK_OK);
        cr_expect_eq(pk_allreduce(ranks[i].buffer, ranks[i].buffer, SMALL, PK_F32, PK_SUM, ranks[i].comm,
                                  PK_CUDA_STREAM(queues[i].handle)),
                     PK_OK);
    }
    for (int i = 0; i < 2; i++) {
        for (int ms = 0; ms < 10000 && operations(&ranks[i]) == before[i]; ms++)
            usleep(1000);
        cr_expect_eq(operations(&ranks[i]) - before[i], 1, "rank %d: the end is known", i);
    }
    for (int i = 0; i < 2; i++)
        ranks[i].comm->device->ops->queue_close(&queues[i]);
    close_both();
}

/* The warp in front of a kernel whose turn has not come does not wait for the stream itself: the software driver refuses to launch it early. */
Test(cuda_fused, turn_is_not_launched_early)
{
    struct pki_queue queues[2][2];

    open_both();
    for (int i = 0; i < 2; i++) {
        struct pki_device *device = ranks[i].comm->device;
        uint64_t kernels = ranks[i].comm->engine->stats.kernels;

        for (int q = 0; q < 2; q++) {
            cr_assert_eq(device->ops->queue_open(device, &queues[i][q]), PK_OK);
            cr_expect_eq(pk_allreduce(ranks[i].buffer, ranks[i].buffer, SMALL, PK_F32, PK_SUM, ranks[i].comm,
                                      PK_CUDA_STREAM(queues[i][q].handle)),
                         PK_OK);
        }
        if (i == 0) /* the first waits for the other rank */
            cr_expect_eq(ranks[i].comm->engine->stats.kernels - kernels, 3, "two kernels and a warp between them");
    }
    allreduce(SMALL);
    for (int i = 0; i < 2; i++)
        for (int q = 0; q < 2; q++)
            ranks[i].comm->device->ops->queue_close(&queues[i][q]);
    close_both();
}

/* Nobody says to pk_explain which reduction it will be. */
Test(cuda_fused, no_reduction_takes_more_than_explained)
{
    static const pk_op_t ops[] = { PK_SUM, PK_PROD, PK_MIN, PK_MAX, PK_AVG };
    pk_explanation_t said = { .struct_size = sizeof said };
    int most = 0;

    open_both();
    cr_assert_eq(pk_explain(ranks[0].comm, PK_OP_ALLREDUCE, MEDIUM, PK_F32, PK_MEM_DEVICE, 1, 0, &said), PK_OK);
    for (unsigned i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        ranks[0].op = ranks[1].op = ops[i];
        allreduce(MEDIUM);
        cr_expect_leq(ranks[0].comm->engine->fused.last_ctas, said.sms, "reduction %d", (int)ops[i]);
        most = ranks[0].comm->engine->fused.last_ctas > most ? ranks[0].comm->engine->fused.last_ctas : most;
    }
    cr_expect_eq(most, said.sms, "%d multiprocessors are explained, %d taken at most", said.sms, most);
    close_both();
}
