/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues whose work kernels do that are on the GPU already, because a stream waits there for an operation (kernels/serve.cu).
 * The driver keeps the library's threads out while any thread of the process loads a kernel or frees memory, and that may last
 * as long as a stream waits: so what an operation needs behind its call is an order in host memory, and no call
 * (docs/design/0052).
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "device/device.h"
#include "tuning/tuning.h"
#include "util/list.h"
#include "util/log.h"

_Static_assert(PKI_LANES == (int)PKI_SERVE_LANES, "the kernel knows as many");

#define STATES_BYTES 256u /* of all lanes, rounded up */
#define ROOM 16u          /* orders that may be written behind one look at clear */

struct lane {
    uint32_t written, told; /* orders so far; the kernels know of `told` */
};

struct orders {
    struct pki_device base;
    struct pki_device *gpu;
    struct pki_serve_board *board; /* host memory that the GPU sees */
    char *states;                  /* its own, and behind them the slots of launches */
    uint32_t launches;
    struct lane lanes[PKI_LANES];
};

static struct orders *orders_of(const struct pki_queue *queue)
{
    return pki_container_of(queue->device, struct orders, base);
}

static enum pki_lane number_of(const struct pki_queue *queue)
{
    return (enum pki_lane)(uintptr_t)queue->handle;
}

static struct lane *lane_of(const struct pki_queue *queue)
{
    return &orders_of(queue)->lanes[number_of(queue)];
}

static uint32_t ended_in(const struct pki_queue *queue)
{
    const void *word = &orders_of(queue)->board->ended[number_of(queue)];

    return atomic_load_explicit((const _Atomic uint32_t *)word, memory_order_acquire);
}

static struct pki_order *order_at(const struct pki_queue *queue, uint32_t number)
{
    return &orders_of(queue)->board->orders[number_of(queue)][number % PKI_SERVE_ORDERS];
}

static void orders_nothing(struct pki_device *device)
{
    (void)device;
}

static bool orders_clear(struct pki_queue *queue, bool work)
{
    (void)work;
    return lane_of(queue)->written - ended_in(queue) < PKI_SERVE_ORDERS - ROOM;
}

static bool orders_idle(const struct pki_queue *queue)
{
    return lane_of(queue)->told == ended_in(queue);
}

/* Of an order of `bytes` in all; whole vectors. */
static uint64_t unit_bytes(uint64_t bytes)
{
    uint64_t unit = bytes / pki_tuning.gpu.serve_units / 256 * 256;

    if (unit < pki_tuning.gpu.serve_least_bytes)
        return pki_tuning.gpu.serve_least_bytes;
    return unit < pki_tuning.gpu.serve_most_bytes ? unit : pki_tuning.gpu.serve_most_bytes;
}

/* The next order of the lane; `count` things of `width` bytes. NULL: there is no room, recorded. */
static struct pki_order *write_order(const struct pki_queue *queue, uint32_t kind, void *dst, uint64_t count, uint32_t width,
                                     pk_result_t *result)
{
    struct lane *lane = lane_of(queue);
    struct pki_order *order = order_at(queue, lane->written);
    uint64_t unit = unit_bytes(count * width) / width;

    *result = PK_OK;
    if (lane->written - ended_in(queue) >= PKI_SERVE_ORDERS - 1) { /* a kernel may still look at the one that ended last */
        *result = pki_fail(PK_ERR_INTERNAL, NULL, "%u orders for kernels at once", PKI_SERVE_ORDERS);
        return NULL;
    }
    memset(order, 0, sizeof *order);
    order->kind = kind;
    order->width = width;
    order->unit = unit;
    order->units = count > unit ? (uint32_t)((count + unit - 1) / unit) : 1;
    order->work.dst = (uint64_t)(uintptr_t)dst;
    order->work.count = count;
    lane->written++;
    return order;
}

static pk_result_t orders_copy(const struct pki_queue *queue, void *dst, const void *src, size_t bytes)
{
    struct pki_order *order;
    pk_result_t result;

    if (bytes == 0 || dst == src)
        return PK_OK;
    order = write_order(queue, PKI_ORDER_COPY, dst, bytes, 1, &result);
    if (order == NULL)
        return result;
    order->work.srcs[0] = (uint64_t)(uintptr_t)src;
    return PK_OK;
}

static pk_result_t orders_unpack(const struct pki_queue *queue, void *dst, const void *src,
                                 const struct pki_unpack_fragment *fragments, int n)
{
    pk_result_t result = PK_OK;

    for (int i = 0; i < n && result == PK_OK; i++)
        result = orders_copy(queue, (char *)dst + fragments[i].dst_offset, (const char *)src + fragments[i].src_offset,
                             fragments[i].bytes);
    return result;
}

static pk_result_t orders_reduce(const struct pki_queue *queue, void *dst, const void *const *srcs, int n, size_t count,
                                 pk_dtype_t dtype, pk_op_t op)
{
    size_t width = pk_dtype_size(dtype);
    struct pki_order *order;
    uint64_t low = (uint64_t)(uintptr_t)dst;
    pk_result_t result;

    if (n < 1 || n > PKI_REDUCE_SOURCES)
        return pki_fail(PK_ERR_ARG, NULL, "a reduction of %d blocks; up to %d are possible", n, PKI_REDUCE_SOURCES);
    for (int i = 0; i < n; i++)
        low |= (uint64_t)(uintptr_t)srcs[i];
    if (width == 0 || low % width != 0)
        return pki_fail(PK_ERR_ARG, NULL, "a buffer to be reduced on a GPU is not aligned to its elements of %zu bytes", width);
    if (count == 0)
        return PK_OK;
    order = write_order(queue, PKI_ORDER_REDUCE, dst, count, (uint32_t)width, &result);
    if (order == NULL)
        return result;
    order->type = (uint32_t)dtype;
    order->work.n = (uint32_t)n;
    order->work.divisor = pki_op_divisor(op);
    order->work.op = order->work.divisor > 0 ? PKI_KERNEL_SUM : (uint32_t)op;
    for (int i = 0; i < n; i++)
        order->work.srcs[i] = (uint64_t)(uintptr_t)srcs[i];
    return PK_OK;
}

static pk_result_t orders_scale(const struct pki_queue *queue, void *dst, const void *src, size_t count, pk_dtype_t dtype,
                                const struct pki_factor *factor)
{
    const size_t width = pk_dtype_size(dtype);
    struct pki_order *order;
    pk_result_t result;

    if (width == 0 || ((uintptr_t)dst | (uintptr_t)src | (uintptr_t)factor->at) % width != 0)
        return pki_fail(PK_ERR_ARG, NULL, "a buffer to be multiplied on a GPU is not aligned to its elements of %zu bytes",
                        width);
    if (count == 0)
        return PK_OK;
    order = write_order(queue, PKI_ORDER_SCALE, dst, count, (uint32_t)width, &result);
    if (order == NULL)
        return result;
    order->type = (uint32_t)dtype;
    order->work.srcs[0] = (uint64_t)(uintptr_t)src;
    order->factor = (uint64_t)(uintptr_t)factor->at;
    order->value = factor->value;
    return PK_OK;
}

static void add_word(struct pki_order *order, const struct pki_signal *signal)
{
    order->done[order->ndone] = (uint64_t)(uintptr_t)signal->word;
    order->done_value[order->ndone++] = signal->value;
}

static void tell(const struct pki_queue *queue)
{
    struct lane *lane = lane_of(queue);
    void *head = &orders_of(queue)->board->heads[number_of(queue)];

    lane->told = lane->written;
    atomic_store_explicit((_Atomic uint32_t *)head, lane->told, memory_order_release);
}

/* As many words as orders have not been told: one each. Else all behind the last of them. */
static pk_result_t orders_signals(const struct pki_queue *queue, const struct pki_signal_op *ops, int n, enum pki_wait_how how)
{
    struct lane *lane = lane_of(queue);
    const uint32_t first = lane->told, untold = lane->written - first;
    struct pki_order *last = untold > 0 ? order_at(queue, lane->written - 1) : NULL;
    pk_result_t result = PK_OK;

    (void)how;
    for (int i = 0; i < n && result == PK_OK; i++) {
        if (ops[i].kind != PKI_SIGNAL_WRITE)
            return pki_fail(PK_ERR_INTERNAL, NULL, "a wait among orders for kernels");
        if (untold == (uint32_t)n) {
            add_word(order_at(queue, first + (uint32_t)i), &ops[i].signal);
            continue;
        }
        if (last == NULL || last->ndone == PKI_ORDER_DONE)
            last = write_order(queue, PKI_ORDER_WORDS, NULL, 0, 1, &result);
        if (last != NULL)
            add_word(last, &ops[i].signal);
    }
    tell(queue);
    return result;
}

static bool orders_reduces(const struct pki_device *device, pk_dtype_t dtype, pk_op_t op)
{
    const struct orders *orders = pki_container_of(device, struct orders, base);

    return orders->gpu->ops->reduces(orders->gpu, dtype, op);
}

static const struct pki_device_ops orders_ops = {
    .name = "orders",
    .enter = orders_nothing,
    .leave = orders_nothing,
    .clear = orders_clear,
    .idle = orders_idle,
    .copy = orders_copy,
    .unpack = orders_unpack,
    .reduce = orders_reduce,
    .reduces = orders_reduces,
    .scale = orders_scale,
    .signals = orders_signals,
};

static void orders_free(struct orders *orders)
{
    if (orders->states != NULL)
        orders->gpu->ops->free(orders->gpu, orders->states);
    if (orders->board != NULL) {
        orders->gpu->ops->host_unregister(orders->gpu, orders->board);
        munmap(orders->board, sizeof *orders->board);
    }
    free(orders);
}

static pk_result_t board_open(struct orders *orders)
{
    void *memory = mmap(NULL, sizeof *orders->board, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pk_result_t result;

    if (memory == MAP_FAILED)
        return pki_fail_errno(PK_ERR_MEMORY, NULL, "mmap of %zu bytes for orders", sizeof *orders->board);
    result = orders->gpu->ops->host_register(orders->gpu, memory, sizeof *orders->board);
    if (result != PK_OK)
        munmap(memory, sizeof *orders->board);
    else
        orders->board = memory;
    return result;
}

pk_result_t pki_orders_open(struct pki_device *gpu, struct pki_queue lanes[PKI_LANES])
{
    const size_t bytes = STATES_BYTES + sizeof(struct pki_serve_slot) * PKI_SERVE_LAUNCHES;
    void *states = NULL;
    struct orders *orders = calloc(1, sizeof *orders);
    pk_result_t result;

    if (orders == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for orders");
    orders->base.ops = &orders_ops;
    orders->gpu = gpu;
    result = board_open(orders);
    if (result == PK_OK)
        result = gpu->ops->alloc(gpu, bytes, &states);
    orders->states = states;
    if (result == PK_OK)
        result = gpu->ops->zero(gpu, states, bytes);
    if (result != PK_OK) {
        orders_free(orders);
        return result;
    }
    for (int i = 0; i < PKI_LANES; i++)
        lanes[i] = (struct pki_queue){ .device = &orders->base, .handle = (void *)(uintptr_t)i };
    return PK_OK;
}

void pki_orders_close(struct pki_queue lanes[PKI_LANES])
{
    if (lanes[0].device == NULL)
        return;
    orders_free(orders_of(&lanes[0]));
    memset(lanes, 0, PKI_LANES * sizeof lanes[0]);
}

void pki_orders_launch(const struct pki_queue *lanes, struct pki_serve_args *args)
{
    struct orders *orders = orders_of(&lanes[0]);

    args->board = (uint64_t)(uintptr_t)orders->board;
    args->states = (uint64_t)(uintptr_t)orders->states;
    args->launch = ++orders->launches;
    if (args->launch == 0) /* what slots hold at first */
        args->launch = ++orders->launches;
    args->slot = args->states + STATES_BYTES + args->launch % PKI_SERVE_LAUNCHES * sizeof(struct pki_serve_slot);
}
