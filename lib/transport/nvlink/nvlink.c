/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory to GPU memory of another rank on the same host: the peer's memory is mapped here, and a copy engine of the local GPU
 * writes it. Carries no messages; the pair's control channel is another transport's.
 *
 * Each peer has a copy queue of its own, and long copies to other GPUs have one for all peers. Nothing ever waits in them: the
 * engine puts only what both sides are ready for. So a put always ends by itself. Behind its last byte the queue writes the
 * peer's word, and then a word here that counts the puts of the queue; progress compares that count, and never asks the driver
 * while all goes well.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "transport/transport.h"
#include "tuning/tuning.h"
#include "util/clock.h"
#include "util/log.h"

extern const struct pki_transport pki_transport_nvlink;

#define MAGIC 0x4b4e4c31u /* "KNL1": version 1 of the greeting */

#define WORD_STRIDE 64 /* bytes: GPUs write words of different peers, the CPU polls them all */
#define DRAIN_NS (5 * PKI_NS_PER_S)

struct greeting {
    uint32_t magic;
    uint32_t reserved;
    uint8_t device_uuid[16];
};

struct copy_queue {
    struct nvlink_iface *iface;
    struct pki_list node;   /* in iface->busy */
    struct pki_list flying; /* struct pki_put by event.node, oldest first */
    struct pki_queue queue;
    _Atomic uint32_t *word; /* the number of the last put that has ended */
    uint32_t last;          /* number of the last put that was started */
    unsigned flights;
    unsigned polls;
};

struct nvlink_iface {
    struct pki_iface base;
    struct pki_device *device;
    uint8_t *words; /* one count for each rank and two more, WORD_STRIDE apart, host_registered */
    size_t words_bytes;
    struct pki_list busy;      /* copy queues with puts in flight */
    struct copy_queue bulk;    /* transfers of 1 MiB and more to other GPUs, one after another */
    struct copy_queue ordered; /* those that kernels copy, which wait in streams */
};

struct nvlink_ep {
    struct pki_ep base;
    struct copy_queue own;   /* short ones: those to different peers overlap; and all inside the GPU */
    uint8_t device_uuid[16]; /* the peer's */
    bool same_gpu;
};

static struct nvlink_iface *iface_of(struct pki_iface *iface)
{
    return pki_container_of(iface, struct nvlink_iface, base);
}

static struct nvlink_ep *ep_of(struct pki_ep *ep)
{
    return pki_container_of(ep, struct nvlink_ep, base);
}

static void reason(struct pki_probe *probe, const char *text)
{
    strncpy(probe->reason, text, sizeof probe->reason - 1);
}

static void nvlink_probe(const struct pki_iface_config *config, struct pki_probe *probe)
{
    memset(probe, 0, sizeof *probe);
    if (config->device != NULL && strcmp(config->device->ops->name, "cuda") == 0) {
        probe->usable = true;
        probe->gbps = pki_tuning.gpu.nvlink_gbps; /* the other GPU may be invisible to this process, so it is not asked */
        reason(probe, "copy engine, CUDA IPC");
        return;
    }
    reason(probe, "the communicator has no GPU"); /* why is the driver's to say, which is not opened for that */
}

static void queue_init(struct copy_queue *q, struct nvlink_iface *iface, int index)
{
    q->iface = iface;
    pki_list_init(&q->node);
    pki_list_init(&q->flying);
    q->word = (_Atomic uint32_t *)(void *)(iface->words + (size_t)index * WORD_STRIDE);
    q->last = atomic_load_explicit(q->word, memory_order_relaxed);
}

/* The oldest put in flight is over. */
static void finish_oldest(struct copy_queue *q, pk_result_t result)
{
    struct pki_put *put = pki_container_of(pki_list_pop(&q->flying), struct pki_put, event.node);

    put->result = result;
    if (result == PK_ERR_PEER)
        pki_ep_enter(put->ep, PKI_EP_DEAD);
    pki_event_push(&q->iface->base, &put->event, PKI_EVENT_PUT);
    if (--q->flights == 0)
        pki_list_remove(&q->node);
}

static void finish_all(struct copy_queue *q, pk_result_t result)
{
    while (!pki_list_empty(&q->flying))
        finish_oldest(q, result);
}

static bool finish_ended(struct copy_queue *q)
{
    bool any = false;

    while (!pki_list_empty(&q->flying)) {
        const struct pki_put *put = pki_container_of(q->flying.next, struct pki_put, event.node);

        if (!pki_signal_is_open(&put->private_signal))
            break;
        finish_oldest(q, PK_OK);
        any = true;
    }
    return any;
}

/* A queue that is idle while its word stays behind has failed: the mapping or the context is gone. */
static void check_broken(struct copy_queue *q)
{
    struct pki_ep *ep;

    if (!q->queue.device->ops->idle(&q->queue))
        return;
    finish_ended(q); /* what ended between the two looks */
    if (q->flights == 0)
        return;
    ep = pki_container_of(q->flying.next, struct pki_put, event.node)->ep;
    (void)pki_ep_fail(ep, PK_ERR_PEER, 0, "nvlink: the copy queue has stopped with %u transfers unfinished", q->flights);
    finish_all(q, PK_ERR_PEER);
}

static void queue_progress(struct copy_queue *q)
{
    if (finish_ended(q)) {
        q->polls = 0;
    } else if (++q->polls >= pki_tuning.gpu.nvlink_polls) {
        q->polls = 0;
        check_broken(q);
    }
}

/* Copies end by themselves, so this is short; a copy that does not is left to the driver, and its put is given back
 * unfinished. */
static void queue_drain(struct copy_queue *q)
{
    uint64_t deadline = pki_now_ns() + DRAIN_NS;

    while (q->flights > 0 && pki_now_ns() < deadline) {
        queue_progress(q);
        pki_cpu_pause();
    }
    finish_all(q, PK_ERR_ABORTED);
}

static void release_words(struct nvlink_iface *iface)
{
    iface->device->ops->host_unregister(iface->device, iface->words);
    munmap(iface->words, iface->words_bytes);
}

static pk_result_t nvlink_open(const struct pki_iface_config *config, struct pki_iface *base)
{
    struct nvlink_iface *iface = iface_of(base);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    pk_result_t result;
    void *words;

    if (config->device == NULL)
        return pki_fail(PK_ERR_UNSUPPORTED, NULL, "nvlink without a GPU");
    iface->device = config->device;
    iface->words_bytes = (((size_t)config->size + 2) * WORD_STRIDE + page - 1) / page * page;
    pki_list_init(&iface->busy);
    words = mmap(NULL, iface->words_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (words == MAP_FAILED)
        return pki_fail_errno(PK_ERR_SYSTEM, NULL, "mmap of %zu bytes for completion words", iface->words_bytes);
    result = iface->device->ops->host_register(iface->device, words, iface->words_bytes);
    if (result != PK_OK) {
        munmap(words, iface->words_bytes);
        return result;
    }
    iface->words = words;
    queue_init(&iface->bulk, iface, config->size);
    queue_init(&iface->ordered, iface, config->size + 1);
    result = iface->device->ops->queue_open(iface->device, &iface->bulk.queue);
    if (result != PK_OK)
        release_words(iface);
    return result;
}

static void nvlink_close(struct pki_iface *base)
{
    struct nvlink_iface *iface = iface_of(base);

    queue_drain(&iface->bulk);
    queue_drain(&iface->ordered);
    iface->device->ops->queue_close(&iface->bulk.queue);
    release_words(iface);
}

static pk_result_t nvlink_ep_init(struct pki_ep *base, struct pki_blob *mine)
{
    struct nvlink_iface *iface = iface_of(base->iface);
    struct nvlink_ep *ep = ep_of(base);
    struct greeting greeting = { .magic = MAGIC };
    struct pki_device_info info;

    queue_init(&ep->own, iface, base->peer);
    iface->device->ops->info(iface->device, &info);
    memcpy(greeting.device_uuid, info.uuid, sizeof greeting.device_uuid);
    memcpy(mine->bytes, &greeting, sizeof greeting);
    mine->len = sizeof greeting;
    mine->fd = -1;
    /* Not at the first put: to make a stream may wait for all work of the GPU, and with that for what this put is for. */
    return iface->device->ops->queue_open(iface->device, &ep->own.queue);
}

static pk_result_t nvlink_ep_connect(struct pki_ep *base, struct pki_blob *theirs)
{
    struct nvlink_ep *ep = ep_of(base);
    struct pki_device_info info;
    struct pki_where where = { .rank = base->rank, .peer = base->peer, .op = "init" };
    struct greeting greeting;

    if (theirs->fd >= 0)
        close(theirs->fd);
    if (theirs->len != sizeof greeting)
        return pki_fail(PK_ERR_MISMATCH, &where, "nvlink: the peer's hello is %u bytes long, not %zu", theirs->len,
                        sizeof greeting);
    memcpy(&greeting, theirs->bytes, sizeof greeting);
    if (greeting.magic != MAGIC)
        return pki_fail(PK_ERR_MISMATCH, &where, "nvlink: the peer speaks another version (%#x, here %#x)", greeting.magic,
                        MAGIC);
    memcpy(ep->device_uuid, greeting.device_uuid, sizeof ep->device_uuid);
    iface_of(base->iface)->device->ops->info(iface_of(base->iface)->device, &info);
    ep->same_gpu = memcmp(ep->device_uuid, info.uuid, sizeof ep->device_uuid) == 0;
    base->can_put = true;
    return PK_OK;
}

static bool nvlink_progress(struct pki_iface *base)
{
    struct pki_list *busy = &iface_of(base)->busy;
    struct pki_list *next;

    for (struct pki_list *node = busy->next; node != busy; node = next) {
        next = node->next;
        queue_progress(pki_container_of(node, struct copy_queue, node));
    }
    return !pki_list_empty(&base->events);
}

static void nvlink_ep_close(struct pki_ep *base)
{
    struct nvlink_ep *ep = ep_of(base);

    if (ep->own.word == NULL) /* ep_init was not reached */
        return;
    queue_drain(&ep->own);
    queue_drain(&ep->own.iface->bulk); /* it may hold puts of this endpoint */
    queue_drain(&ep->own.iface->ordered);
    if (ep->own.queue.device != NULL)
        ep->own.queue.device->ops->queue_close(&ep->own.queue);
    base->can_put = false;
}

static pk_result_t nvlink_reg(struct pki_iface *base, const struct pki_mem *mem, struct pki_export *out)
{
    struct pki_device *device = iface_of(base)->device;

    return out != NULL ? device->ops->export(device, mem, out) : PK_ERR_UNSUPPORTED;
}

static pk_result_t nvlink_map(struct pki_ep *base, const struct pki_export *in, uint64_t *remote)
{
    struct pki_device *device = iface_of(base->iface)->device;
    struct nvlink_ep *ep = ep_of(base);
    struct pki_where where = { .rank = base->rank, .peer = base->peer };
    pk_result_t result;
    void *mapped;

    if (memcmp(in->device_uuid, ep->device_uuid, sizeof ep->device_uuid) != 0)
        return pki_fail(PK_ERR_MISMATCH, &where, "nvlink: the peer's memory is on another GPU than the one it named at init");
    result = device->ops->import(device, in, base->same_process, &mapped);
    if (result == PK_OK)
        *remote = (uint64_t)(uintptr_t)mapped;
    return result;
}

static void nvlink_unmap(struct pki_ep *base, const struct pki_export *in, uint64_t remote)
{
    struct pki_device *device = iface_of(base->iface)->device;

    device->ops->unimport(device, in, base->same_process, (void *)(uintptr_t)remote);
}

/* The copy, and behind it the words that say so. */
static pk_result_t submit(const struct pki_queue *queue, const struct pki_put *put, const struct pki_signal *ended)
{
    const struct pki_device_ops *ops = queue->device->ops;
    struct pki_signal_op words[2];
    int n = 0;
    pk_result_t result;

    if (put->done_remote.word != NULL)
        words[n++] = (struct pki_signal_op){ PKI_SIGNAL_WRITE, put->done_remote };
    if (ended != NULL)
        words[n++] = (struct pki_signal_op){ PKI_SIGNAL_WRITE, *ended };
    ops->enter(queue->device);
    result = ops->copy(queue, (void *)(uintptr_t)put->remote, put->src, put->bytes);
    if (result == PK_OK && n > 0)
        result = ops->signals(queue, words, n, PKI_WAIT_VALUE);
    ops->leave(queue->device);
    return result;
}

static struct copy_queue *queue_for(const struct pki_put *put)
{
    struct nvlink_iface *iface = iface_of(put->ep->iface);
    const size_t whole = put->whole > put->bytes ? put->whole : put->bytes; /* by that: what ends last says that all is there */

    if (put->lane != NULL) {
        iface->ordered.queue = *put->lane;
        return &iface->ordered;
    }
    return whole >= pki_tuning.gpu.nvlink_bulk_bytes && !ep_of(put->ep)->same_gpu ? &iface->bulk : &ep_of(put->ep)->own;
}

static pk_result_t nvlink_put(struct pki_put *put)
{
    struct nvlink_iface *iface = iface_of(put->ep->iface);
    struct copy_queue *q = queue_for(put);
    pk_result_t result;

    if (put->ep->state == PKI_EP_DEAD)
        return PK_ERR_PEER;
    if (put->queue != NULL)
        return submit(put->queue, put, NULL);
    if (q->flights >= pki_tuning.gpu.nvlink_in_flight)
        return PK_IN_PROGRESS;
    /* Copies to another GPU do not stand behind a stream that waits, unless that copies too (docs/design/0002). */
    if (!q->queue.device->ops->clear(&q->queue, ep_of(put->ep)->same_gpu))
        return PK_IN_PROGRESS;
    put->private_signal.word = q->word;
    put->private_signal.value = q->last + 1;
    result = submit(&q->queue, put, &put->private_signal);
    if (result != PK_OK)
        return result;
    q->last++;
    pki_list_push(&q->flying, &put->event.node);
    if (q->flights++ == 0)
        pki_list_push(&iface->busy, &q->node);
    return PK_OK;
}

const struct pki_transport pki_transport_nvlink = {
    .name = "nvlink",
    .iface_bytes = sizeof(struct nvlink_iface),
    .ep_bytes = sizeof(struct nvlink_ep),
    .reaches = { [PKI_MEM_DEVICE] = { [PKI_MEM_DEVICE] = true } },
    .probe = nvlink_probe,
    .open = nvlink_open,
    .close = nvlink_close,
    .ep_init = nvlink_ep_init,
    .ep_connect = nvlink_ep_connect,
    .ep_close = nvlink_ep_close,
    .reg = nvlink_reg,
    .map = nvlink_map,
    .unmap = nvlink_unmap,
    .put = nvlink_put,
    .progress = nvlink_progress,
};
