/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The work with no library: the copies and sums that somebody has to make, flags in shared memory, and nothing else. Buffers, sizes and
 * processes are known beforehand, nothing can fail, nobody is late. What these take is what the machine asks for; where a library comes to
 * the same there is nothing left to gain.
 *
 * cma:  one copy by process_vm_readv and process_vm_writev, each rank the same share of it
 * pipe: allgather and alltoall: one copy, of pages lent by vmsplice; the rest as cma
 * copy: two copies, through shared memory
 * ring: the same through short rings; allgather, alltoall and the allreduce of two ranks
 * stream: as copy; what is written there goes by streaming stores, which need not first take the lines from the reader's cache
 */
#include "add.h"
#include "compare.h"
#include "lent.h"
#include "pieces.h"
#include "ring.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define RANKS_MAX 64
#define PIECE ((size_t)128 << 10) /* of a sum: it stays in the second-level cache */
#define LINE 64

struct seat {
    _Alignas(LINE) _Atomic uint64_t ready;  /* the operation for which this rank's data may be read */
    _Alignas(LINE) _Atomic uint64_t summed; /* its part of an allreduce may be read */
    _Alignas(LINE) _Atomic uint64_t done;   /* it has read what it needs of others */
    _Alignas(LINE) _Atomic uint32_t bell;   /* messages that have come for a sleeper */
    unsigned char message[LINE];
    _Alignas(LINE) pid_t pid;
    char *send, *recv;
};

struct hall {
    struct seat seats[RANKS_MAX];
    struct lent_seat lent[LENT_RANKS_MAX];
};

static struct hall *hall;
static char *slots; /* [rank][operation's parity] of slot_bytes */
static size_t slot_bytes;
static uint64_t number;     /* of the operation; the upper half counts sizes, for not all ranks take part in all operations */
static uint64_t offered[2]; /* the operation in which this rank used each of its slots last */
static int members;         /* ranks that take part in it */
static int through_memory, streams, by_rings, may_yield;
static struct compare_rank *me;
static float scratch[PIECE / sizeof(float)];

static _Noreturn void give_up(const char *what)
{
    perror(what);
    exit(1);
}

static void cpu_pause(void)
{
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

static void await(const _Atomic uint64_t *word, uint64_t value)
{
    while (atomic_load_explicit(word, memory_order_acquire) < value)
        if (may_yield)
            sched_yield();
        else
            cpu_pause();
}

static void say(_Atomic uint64_t *word)
{
    atomic_store_explicit(word, number, memory_order_release);
}

static void remote_get(int rank, void *to, const void *from, size_t bytes)
{
    struct iovec local = { to, bytes }, remote = { (void *)(uintptr_t)from, bytes };

    if (bytes > 0 && process_vm_readv(hall->seats[rank].pid, &local, 1, &remote, 1, 0) != (ssize_t)bytes)
        give_up("process_vm_readv");
}

static void remote_put(int rank, void *to, const void *from, size_t bytes)
{
    struct iovec local = { (void *)(uintptr_t)from, bytes }, remote = { to, bytes };

    if (bytes > 0 && process_vm_writev(hall->seats[rank].pid, &local, 1, &remote, 1, 0) != (ssize_t)bytes)
        give_up("process_vm_writev");
}

static char *slot_of(int rank)
{
    return slots + ((size_t)rank * 2 + number % 2) * slot_bytes;
}

/* Into a slot. */
static void write_out(char *to, const char *from, size_t bytes)
{
#ifdef __SSE2__
    for (; streams && bytes >= LINE; bytes -= LINE, to += LINE, from += LINE)
        for (int i = 0; i < LINE; i += 16)
            _mm_stream_si128((__m128i *)(void *)(to + i), _mm_loadu_si128((const __m128i *)(const void *)(from + i)));
    if (streams)
        _mm_sfence();
#endif
    memcpy(to, from, bytes);
}

/* `from` may be read by the others from now on. */
static void offer(const void *from, size_t bytes)
{
    uint64_t *last = &offered[number % 2];

    for (int r = 0; through_memory && *last != 0 && r < members; r++)
        await(&hall->seats[r].done, *last); /* whoever read this slot has done so */
    *last = number;
    if (through_memory)
        write_out(slot_of(me->rank), from, bytes);
    say(&hall->seats[me->rank].ready);
}

/* Bytes at `at` of what the rank has offered out of the buffer `from`. */
static void take(int rank, const char *from, size_t at, void *to, size_t bytes)
{
    await(&hall->seats[rank].ready, number);
    if (through_memory)
        memcpy(to, slot_of(rank) + at, bytes);
    else
        remote_get(rank, to, from + at, bytes);
}

/* to = the sum of all ranks' elements [first, first + count). */
static void sum(float *to, size_t first, size_t count)
{
    const float *own = (const float *)(const void *)me->send + first;

    for (size_t i = 0; i < count; i += PIECE / sizeof(float)) {
        size_t n = count - i < PIECE / sizeof(float) ? count - i : PIECE / sizeof(float);
        size_t at = (first + i) * sizeof(float);

        for (int hop = 1; hop < me->size; hop++) {
            int r = (me->rank + hop) % me->size;
            const float *other = scratch;

            if (through_memory) {
                await(&hall->seats[r].ready, number);
                other = (const float *)(const void *)(slot_of(r) + at);
            } else {
                take(r, hall->seats[r].send, at, scratch, n * sizeof(float));
            }
            add(to + i, hop == 1 ? own + i : to + i, other, n);
        }
    }
}

/* Nobody needs this rank's buffers any more. */
static void leave(void)
{
    say(&hall->seats[me->rank].done);
    for (int r = 0; !through_memory && r < me->size; r++)
        await(&hall->seats[r].done, number);
}

/* From rank `root` to each of `takers` others: the root puts as much as each of them gets. */
static void hand_out(const char *from, size_t bytes, int root, int takers, char *(*place)(int rank))
{
    size_t share = bytes / (size_t)(takers + 1) / LINE * LINE; /* of each taker's bytes that the root moves */

    if (me->rank == root) {
        offer(from, bytes);
        for (int hop = 1; hop <= takers && !through_memory; hop++) {
            int r = (root + hop) % members;

            await(&hall->seats[r].ready, number);
            remote_put(r, place(r), from, share);
        }
    } else {
        if (!through_memory)
            say(&hall->seats[me->rank].ready);
        share = through_memory ? 0 : share;
        take(root, from, share, place(me->rank) + share, bytes - share);
    }
}

static char *recv_of(int rank)
{
    return rank == me->rank ? me->recv : hall->seats[rank].recv;
}

static void pingpong(size_t bytes)
{
    for (int root = 0; root < 2; root++) {
        number++;
        hand_out(me->rank == root ? me->send : hall->seats[root].send, bytes, root, 1, recv_of);
        say(&hall->seats[me->rank].done);
        if (!through_memory)
            await(&hall->seats[1 - me->rank].done, number);
    }
}

#define AROUND ((size_t)4 << 20) /* a block and what goes beside it do not stay in a cache: its copy need not go there */

/* This rank's own block. */
static void keep_own(const struct compare_work *work)
{
    size_t block = work->block * sizeof(float);
    const char *from = me->send + (work->op == COMPARE_ALLTOALL ? (size_t)me->rank * block : 0);
    int before = streams;

    streams |= block >= AROUND;
    write_out(me->recv + (size_t)me->rank * block, from, block);
    streams = before;
}

static void exchange(const struct compare_work *work)
{
    size_t block = work->block * sizeof(float);
    int scattered = work->op == COMPARE_ALLTOALL;

    offer(me->send, scattered ? block * (size_t)me->size : block);
    for (int hop = 1; hop < me->size; hop++) {
        int r = (me->rank + hop) % me->size;

        take(r, hall->seats[r].send, scattered ? (size_t)me->rank * block : 0, me->recv + (size_t)r * block, block);
    }
    keep_own(work);
}

static void exchange_lent(const struct compare_work *work)
{
    pieces_exchange(me, work, may_yield, &(struct pieces_way){ lent_give, lent_take });
    keep_own(work);
}

static int by_pipes(void)
{
    return strcmp(me->variant, "pipe") == 0;
}

/* Of `count` elements the part that rank r sums up; *n: how many. */
static size_t part_of(int r, size_t count, size_t *n)
{
    size_t each = (count / (size_t)me->size + 15) / 16 * 16;
    size_t first = (size_t)r * each < count ? (size_t)r * each : count;

    *n = r == me->size - 1 || count - first < each ? count - first : each;
    return first;
}

static void take_part(int rank, float *out, size_t count)
{
    size_t n, first = part_of(rank, count, &n);

    take(rank, hall->seats[rank].recv, first * sizeof(float), out + first, n * sizeof(float));
}

#define FLAT_COUNT 4096u /* elements up to which everyone sums up everything */

static void allreduce(size_t count)
{
    float *out = (float *)(void *)me->recv;
    size_t n, first = part_of(me->rank, count, &n);

    offer(me->send, count * sizeof(float));
    if (through_memory && count <= FLAT_COUNT) {
        sum(out, 0, count);
        return;
    }
    sum(out + first, first, n);
    if (through_memory) /* nobody else reads this part of the slot any more */
        write_out(slot_of(me->rank) + first * sizeof(float), (const char *)(out + first), n * sizeof(float));
    say(&hall->seats[me->rank].summed);
    for (int hop = 1; hop < me->size; hop++) {
        int r = (me->rank + hop) % me->size;

        if (!through_memory) { /* it is in this core's cache: put, not got */
            await(&hall->seats[r].ready, number);
            remote_put(r, hall->seats[r].recv + first * sizeof(float), out + first, n * sizeof(float));
            continue;
        }
        await(&hall->seats[r].summed, number);
        take_part(r, out, count);
    }
}

/* cma: each rank sums up its part and puts it in place; copy: the root sums up. */
static void reduce(size_t count, int root)
{
    size_t n, first = part_of(me->rank, count, &n);

    offer(me->send, count * sizeof(float));
    if (through_memory) {
        if (me->rank == root)
            sum((float *)(void *)me->recv, 0, count);
        return;
    }
    sum((float *)(void *)me->recv + first, first, n);
    if (me->rank != root)
        remote_put(root, hall->seats[root].recv + first * sizeof(float), (float *)(void *)me->recv + first, n * sizeof(float));
}

static void barrier(void)
{
    say(&hall->seats[me->rank].ready);
    for (int r = 0; r < me->size; r++)
        await(&hall->seats[r].ready, number);
}

/* Asleep at once, and woken by the kernel: nobody wakes faster. */
static void wake(size_t bytes)
{
    static uint32_t heard;
    struct seat *sleeper = &hall->seats[1];

    if (me->rank == 0) {
        memcpy(sleeper->message, me->send, bytes);
        atomic_fetch_add(&sleeper->bell, 1);
        syscall(SYS_futex, &sleeper->bell, FUTEX_WAKE, 1, NULL, NULL, 0);
        return;
    }
    while (atomic_load(&sleeper->bell) == heard)
        syscall(SYS_futex, &sleeper->bell, FUTEX_WAIT, heard, NULL, NULL, 0);
    heard++;
    memcpy(me->recv, sleeper->message, bytes);
}

static void run(struct compare_rank *self, const struct compare_work *work)
{
    members = work->op == COMPARE_PINGPONG ? 2 : self->size;
    if (work->op == COMPARE_PINGPONG || work->op == COMPARE_WAKE) {
        (work->op == COMPARE_WAKE ? wake : pingpong)(work->count * sizeof(float));
        return;
    }
    if (by_rings) {
        ring_run(work);
        if (work->op != COMPARE_ALLREDUCE)
            keep_own(work);
        return;
    }
    number++;
    switch (work->op) {
    case COMPARE_ALLREDUCE:
        allreduce(work->count);
        break;
    case COMPARE_ALLGATHER:
    case COMPARE_ALLTOALL:
        (by_pipes() ? exchange_lent : exchange)(work);
        break;
    case COMPARE_REDUCE_SCATTER:
        offer(me->send, work->block * (size_t)me->size * sizeof(float));
        sum((float *)(void *)me->recv, (size_t)me->rank * work->block, work->block);
        break;
    case COMPARE_BROADCAST:
        hand_out(recv_of(work->root), work->count * sizeof(float), work->root, me->size - 1, recv_of);
        break;
    case COMPARE_REDUCE:
        reduce(work->count, work->root);
        break;
    default:
        barrier();
        return;
    }
    leave();
}

/* Of rank 0; the others open it through /proc. */
static int shared_memory(const struct compare_rank *self, size_t bytes)
{
    char path[512], text[64] = "";
    FILE *file;
    int fd;

    snprintf(path, sizeof path, "%s/hall", self->folder);
    if (self->rank == 0) {
        char draft[520];

        fd = memfd_create("compare-bare", MFD_CLOEXEC);
        snprintf(draft, sizeof draft, "%s.new", path);
        file = fopen(draft, "w");
        if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0 || file == NULL)
            give_up(draft);
        fprintf(file, "/proc/%d/fd/%d\n", (int)getpid(), fd);
        if (fclose(file) != 0 || rename(draft, path) != 0)
            give_up(path);
        return fd;
    }
    while ((file = fopen(path, "r")) == NULL)
        usleep(1000);
    if (fgets(text, sizeof text, file) == NULL)
        give_up(path);
    fclose(file);
    text[strcspn(text, "\n")] = '\0';
    fd = open(text, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        give_up(text);
    return fd;
}

static void open_world(struct compare_rank *self, int argc, char **argv)
{
    const char *rank = getenv("PK_RANK"), *size = getenv("PK_SIZE");
    size_t bytes, rings_at;
    void *memory;

    (void)argc;
    (void)argv;
    self->rank = rank != NULL ? atoi(rank) : 0;
    self->size = size != NULL ? atoi(size) : 1;
    if (self->size < 2 || self->size > RANKS_MAX || self->rank < 0 || self->rank >= self->size)
        give_up("PK_RANK and PK_SIZE");
    me = self;
    streams = strcmp(self->variant, "stream") == 0;
    through_memory = streams || strcmp(self->variant, "copy") == 0;
    may_yield = self->size > sysconf(_SC_NPROCESSORS_ONLN);
    slot_bytes = through_memory ? (self->capacity_bytes + (size_t)self->size * sizeof(float) + 4095) / 4096 * 4096 : 0;
    bytes = sizeof *hall + 2 * (size_t)self->size * slot_bytes;
    rings_at = (bytes + 4095) / 4096 * 4096;
    by_rings = strcmp(self->variant, "ring") == 0;
    if (by_rings)
        bytes = rings_at + (size_t)self->size * (size_t)self->size * sizeof(struct ring);
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, shared_memory(self, bytes), 0);
    if (memory == MAP_FAILED)
        give_up("mmap of shared memory");
    hall = memory;
    slots = (char *)memory + sizeof *hall;
    if (by_rings)
        ring_open((struct ring *)(void *)((char *)memory + rings_at), self, may_yield);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    snprintf(self->settings, sizeof self->settings, "no library, %s%s",
             through_memory || by_rings ? "shared memory" : "process_vm_readv, process_vm_writev",
             by_rings  ? ", rings"
             : streams ? ", streaming stores"
                       : "");
}

/* Once the buffers are there: everyone learns where they are. */
static void prepare(struct compare_rank *self, const struct compare_work *work)
{
    struct seat *mine = &hall->seats[self->rank];

    (void)work;
    mine->send = self->send;
    mine->recv = self->recv;
    mine->pid = getpid();
    number = ((number >> 32) + 1) << 32;
    memset(offered, 0, sizeof offered);
    say(&mine->done);
    barrier();
}

/* What there is through rings. */
static unsigned ringed_operations(void)
{
    const char *size = getenv("PK_SIZE");
    unsigned exchanges = 1u << COMPARE_ALLGATHER | 1u << COMPARE_ALLTOALL;

    return size != NULL && atoi(size) == 2 ? exchanges | 1u << COMPARE_ALLREDUCE : exchanges;
}

static void open_any(struct compare_rank *self, int argc, char **argv)
{
    open_world(self, argc, argv);
    if (!by_pipes())
        return;
    lent_open(hall->lent, self->rank, self->size);
    snprintf(self->settings, sizeof self->settings, "no library, vmsplice and read");
}

static void close_world(struct compare_rank *self)
{
    (void)self;
}

int main(int argc, char **argv)
{
    struct compare_library library = { .open = open_any, .close = close_world, .prepare = prepare, .run = run };

    library.operations = argc == 6 && strcmp(argv[5], "ring") == 0 ? ringed_operations() : (1u << COMPARE_OPS) - 1;
    return compare_main(argc, argv, &library);
}
