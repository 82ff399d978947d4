/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of any world: waits for orders, runs the library's operations, answers with times. */
#include "compare.h"
#include "timing.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define PAGE_BYTES 4096u
#define ASLEEP_NS 100000000 /* nobody looks for a message longer than this without sleeping, if ever it sleeps */

static _Noreturn void give_up(const char *what)
{
    perror(what);
    exit(1);
}

static int call_driver(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || strlen(path) >= sizeof address.sun_path)
        give_up("socket of the driver");
    memcpy(address.sun_path, path, strlen(path) + 1);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        give_up(path);
    return fd;
}

static void tell(int fd, const void *data, size_t bytes)
{
    const char *at = data;

    while (bytes > 0) {
        ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            give_up("answer to the driver");
        at += n;
        bytes -= (size_t)n;
    }
}

/* The next order; "end" when the driver is gone. */
static struct compare_order listen_to(int fd)
{
    struct compare_order order = { .op = COMPARE_OPS };
    ssize_t n;

    do {
        n = recv(fd, &order, sizeof order, MSG_WAITALL);
    } while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof order)
        order.op = COMPARE_OPS;
    return order;
}

/* Small whole numbers: sums over ranks are exact. */
static float number(int rank, size_t i)
{
    return (float)((i * 7 + (size_t)rank * 13) % 61);
}

static float expected(const struct compare_rank *self, const struct compare_work *work, size_t i)
{
    size_t part = i / work->block, within = i % work->block;
    float sum = 0;

    switch (work->op) {
    case COMPARE_PINGPONG:
        return number(1 - self->rank, i);
    case COMPARE_WAKE:
        return number(0, i);
    case COMPARE_BROADCAST:
        return number(work->root, i);
    case COMPARE_ALLGATHER:
        return number((int)part, within);
    case COMPARE_ALLTOALL:
        return number((int)part, (size_t)self->rank * work->block + within);
    case COMPARE_REDUCE_SCATTER:
        i += (size_t)self->rank * work->block;
        break;
    default:
        break;
    }
    for (int r = 0; r < self->size; r++)
        sum += number(r, i);
    return sum;
}

static size_t result_count(const struct compare_rank *self, const struct compare_work *work)
{
    switch (work->op) {
    case COMPARE_PINGPONG:
        return self->rank < 2 ? work->count : 0;
    case COMPARE_WAKE:
        return self->rank == 1 ? work->count : 0;
    case COMPARE_REDUCE:
        return self->rank == work->root ? work->count : 0;
    case COMPARE_ALLGATHER:
    case COMPARE_ALLTOALL:
        return work->block * (size_t)self->size;
    case COMPARE_REDUCE_SCATTER:
        return work->block;
    case COMPARE_BARRIER:
        return 0;
    default:
        return work->count;
    }
}

static uint64_t check(struct compare_rank *self, const struct compare_library *library, const struct compare_work *work)
{
    size_t all = work->count > work->block * (size_t)self->size ? work->count : work->block * (size_t)self->size;
    int own_input = work->op == COMPARE_BROADCAST ||
                    (library->in_place && (work->op == COMPARE_ALLREDUCE || work->op == COMPARE_REDUCE_SCATTER));
    float *send = (float *)(void *)self->send;
    float *recv = (float *)(void *)self->recv;
    uint64_t wrong = 0;

    for (size_t i = 0; i < all; i++) {
        send[i] = number(self->rank, i);
        recv[i] = own_input ? send[i] : -1;
    }
    library->run(self, work);
    for (size_t i = 0; i < result_count(self, work); i++)
        wrong += recv[i] != expected(self, work, i);
    return wrong;
}

static int has_roots(enum compare_op op)
{
    return op == COMPARE_BROADCAST || op == COMPARE_REDUCE;
}

static void run_chunk(struct compare_rank *self, const struct compare_library *library, struct compare_work *work, unsigned n)
{
    for (unsigned k = 0; k < n; k++) {
        library->run(self, work);
        if (has_roots(work->op))
            work->root = (work->root + 1) % self->size;
    }
}

/* The message is the time at which it was sent. */
static void take_wakings(struct compare_rank *self, const struct compare_library *library, const struct compare_work *work,
                         unsigned samples, double *us)
{
    memset(us, 0, samples * sizeof *us);
    for (unsigned s = 0; s < samples; s++) {
        double sent;

        if (self->rank == 0) {
            nanosleep(&(struct timespec){ .tv_nsec = ASLEEP_NS }, NULL);
            sent = now_us();
            memcpy(self->send, &sent, sizeof sent);
        }
        library->run(self, work);
        if (self->rank == 1) {
            memcpy(&sent, self->recv, sizeof sent);
            us[s] = now_us() - sent;
        }
    }
}

static long switches_so_far(void)
{
    struct rusage use;

    getrusage(RUSAGE_SELF, &use);
    return use.ru_nvcsw + use.ru_nivcsw;
}

/* Returns how often the core went to somebody else, of one operation. */
static double take_samples(struct compare_rank *self, const struct compare_library *library, struct compare_work *work,
                           const struct compare_order *order, double *samples)
{
    double ways = work->op == COMPARE_PINGPONG ? 2 : 1;
    long switches;

    run_chunk(self, library, work, order->warmup);
    switches = switches_so_far();
    for (unsigned s = 0; s < order->samples; s++) {
        double begin = now_us();

        run_chunk(self, library, work, order->chunk);
        samples[s] = (now_us() - begin) / order->chunk / ways;
    }
    return (double)(switches_so_far() - switches) / order->chunk / order->samples / ways;
}

static int takes_part(const struct compare_rank *self, enum compare_op op)
{
    return self->rank < 2 || (op != COMPARE_PINGPONG && op != COMPARE_WAKE);
}

static void obey(int fd, struct compare_rank *self, const struct compare_library *library, const struct compare_order *order,
                 struct compare_work *last)
{
    static double samples[COMPARE_SAMPLES_MAX];
    struct compare_answer answer = { .samples = order->check ? 0 : order->samples };
    struct compare_work work = { .op = (enum compare_op)order->op, .count = order->bytes / sizeof(float) };

    work.block = work.count / (size_t)self->size;
    work.count = work.count > 0 ? work.count : 1;
    work.block = work.block > 0 ? work.block : 1;
    if (library->prepare != NULL && (work.op != last->op || work.count != last->count))
        library->prepare(self, &work);
    *last = work;
    if (!takes_part(self, work.op))
        memset(samples, 0, sizeof samples);
    else if (!order->check && work.op == COMPARE_WAKE)
        take_wakings(self, library, &work, order->samples, samples);
    else if (!order->check)
        answer.switches = take_samples(self, library, &work, order, samples);
    for (int r = 0; order->check && r < (has_roots(work.op) ? self->size : 1); r++) {
        work.root = r;
        if (takes_part(self, work.op))
            answer.wrong += check(self, library, &work);
    }
    if (order->check && self->rank == 0 && library->explain != NULL)
        library->explain(self, &work, answer.note);
    tell(fd, &answer, sizeof answer);
    tell(fd, samples, answer.samples * sizeof *samples);
}

static void open_buffers(struct compare_rank *self, const struct compare_library *library)
{
    size_t bytes = (self->capacity_bytes + (size_t)self->size * sizeof(float) + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    char **buffers[2] = { &self->send, &self->recv };

    for (int i = 0; i < 2; i++) {
        void *memory = NULL;

        if (library->alloc != NULL)
            memory = library->alloc(self, bytes);
        else if (posix_memalign(&memory, PAGE_BYTES, bytes) != 0)
            memory = NULL;
        if (memory == NULL) {
            fprintf(stderr, "rank %d: no memory for %zu bytes\n", self->rank, bytes);
            exit(1);
        }
        memset(memory, 0, bytes);
        *buffers[i] = memory;
    }
}

int compare_main(int argc, char **argv, const struct compare_library *library)
{
    struct compare_rank self = { .size = 1 };
    struct compare_hello hello;
    struct compare_work last = { .op = COMPARE_OPS };
    struct compare_order order;
    int fd;

    if (argc != 6) {
        fprintf(stderr, "%s: started by pickle-compare, not by hand\n", argv[0]);
        return 2;
    }
    fd = call_driver(argv[1]);
    self.folder = argv[3];
    self.capacity_bytes = strtoull(argv[4], NULL, 10);
    self.variant = argv[5];
    library->open(&self, argc, argv);
    open_buffers(&self, library);
    memset(&hello, 0, sizeof hello);
    hello.world = atoi(argv[2]);
    hello.rank = self.rank;
    hello.size = self.size;
    hello.operations = library->operations;
    memcpy(hello.settings, self.settings, sizeof hello.settings);
    tell(fd, &hello, sizeof hello);
    while ((order = listen_to(fd)).op != COMPARE_OPS)
        obey(fd, &self, library, &order, &last);
    library->close(&self);
    return 0;
}
