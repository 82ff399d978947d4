/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy itself and the cost of handles, with nothing of a library in between: rank 0 copies into memory of rank 1. On the host that
 * is a mapping of the other's memory file or the kernel's copy between processes; on a GPU an IPC mapping and the copy engine.
 */
#include "bare.h"
#include "jobs.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

static const struct table_column columns[] = {
    { "memory", "memory", "", 6, -1 },
    { "bytes", "bytes", "", 12, 0 },
    { "asynchronous_us", "asynchr.", "(us)", 11, 2 },
    { "synchronous_us", "synchr.", "(us)", 11, 2 },
    { "open_each_time_us", "open each", "time (us)", 11, 2 },
    { "kernel_copy_us", "copy by", "kernel (us)", 11, 2 },
    { "open_us", "open", "(us)", 9, 2 },
    { "close_us", "close", "(us)", 9, 2 },
    { "gbit_per_s", "asynchr.", "(Gb/s)", 9, 2 },
    { "wrong", "#wrong", "", 7, 0 },
    { NULL, NULL, NULL, 0, 0 },
};

enum way { ASYNCHRONOUS, SYNCHRONOUS, OPENING, BY_KERNEL, OPEN, CLOSE, WAYS };

/* What one rank tells the other of its memory. */
struct handle {
    gpu_ipc_t ipc;
    int pid, fd;
    void *address;
};

struct copies {
    struct jobs_run *run;
    size_t bytes;
    char *source, *target; /* target: here at rank 1, where rank 0 may not look */
    struct handle peer;    /* rank 1's */
    int fd;                /* the target's file, at both */
    double us[WAYS];
    const char *reason; /* why cells are empty */
};

static char *host_target(size_t bytes, int *fd)
{
    char *memory = MAP_FAILED;

    *fd = memfd_create("pickle-perf-jobs", MFD_CLOEXEC);
    if (*fd >= 0 && ftruncate(*fd, (off_t)bytes) == 0)
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (memory == MAP_FAILED) {
        perror("memory for the target");
        exit(1);
    }
    memset(memory, 0x55, bytes);
    return memory;
}

static char *open_target(struct copies *c)
{
    char *memory;

    if (c->run->options.cuda)
        return gpu_ipc_open(&c->peer.ipc);
    memory = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, c->fd, 0);
    if (memory == MAP_FAILED) {
        perror("mapping the target");
        exit(1);
    }
    return memory;
}

static void close_target(struct copies *c, char *memory)
{
    if (c->run->options.cuda)
        gpu_ipc_close(memory);
    else
        munmap(memory, c->bytes);
}

/* Microseconds of `n` copies, one behind the other. */
static double copies_us(struct copies *c, char *to, unsigned n)
{
    double begin = now_us();

    if (c->run->options.cuda)
        return bare_copies_us(to, c->source, c->bytes, n, c->run->compute_stream, NULL);
    for (unsigned i = 0; i < n; i++)
        memcpy(to, c->source, c->bytes);
    return now_us() - begin;
}

static double by_kernel_us(struct copies *c)
{
    double begin = now_us();

    for (size_t at = 0; at < c->bytes;) {
        struct iovec from = { c->source + at, c->bytes - at }, to = { (char *)c->peer.address + at, c->bytes - at };
        ssize_t n = process_vm_writev(c->peer.pid, &from, 1, &to, 1, 0);

        if (n <= 0) {
            c->reason = errno == EPERM ? "process_vm_writev is not permitted here" : strerror(errno);
            return NAN;
        }
        at += (size_t)n;
    }
    return now_us() - begin;
}

static void one_sample(struct copies *c, double samples[WAYS])
{
    char *to;
    double at[4];

    at[0] = now_us();
    to = open_target(c);
    at[1] = now_us();
    copies_us(c, to, 1);
    at[2] = now_us();
    close_target(c, to);
    at[3] = now_us();
    samples[OPEN] = at[1] - at[0];
    samples[CLOSE] = at[3] - at[2];
    samples[OPENING] = at[3] - at[0];
    to = open_target(c);
    copies_us(c, to, 1); /* pages are there now */
    samples[ASYNCHRONOUS] = copies_us(c, to, BARE_COPIES) / BARE_COPIES;
    samples[SYNCHRONOUS] = copies_us(c, to, 1);
    close_target(c, to);
    samples[BY_KERNEL] = c->run->options.cuda || c->reason != NULL ? NAN : by_kernel_us(c);
    if (!c->run->options.cuda)
        samples[ASYNCHRONOUS] = NAN; /* a copy by the CPU is done when the call returns */
}

static void sample(struct copies *c)
{
    unsigned n = c->run->options.steps;
    double *samples = calloc((size_t)n * WAYS, sizeof *samples), *column = calloc(n, sizeof *column);

    if (samples == NULL || column == NULL)
        abort();
    for (unsigned i = 0; i < n; i++)
        one_sample(c, samples + (size_t)i * WAYS);
    for (unsigned way = 0; way < WAYS; way++) {
        for (unsigned i = 0; i < n; i++)
            column[i] = samples[i * WAYS + way];
        c->us[way] = median(column, n);
    }
    free(samples);
    free(column);
}

/* The other process's file, by its number there. */
static void adopt(struct copies *c)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/fd/%d", c->peer.pid, c->peer.fd);
    c->fd = open(path, O_RDWR | O_CLOEXEC);
    if (c->fd < 0)
        c->reason = "rank 1's memory cannot be opened from here (another PID namespace?)";
}

static void meet(struct copies *c)
{
    struct handle own = { .pid = (int)getpid(), .fd = c->fd, .address = c->target };
    struct handle *all = calloc((size_t)c->run->world.size, sizeof *all);

    if (all == NULL)
        abort();
    if (c->run->options.cuda)
        gpu_ipc_export(c->target, &own.ipc);
    library_share(c->run, &own, all, sizeof own);
    c->peer = all[1];
    free(all);
}

static void make_buffers(struct copies *c)
{
    c->source = jobs_alloc(c->run, c->bytes);
    c->target = c->run->options.cuda ? jobs_alloc(c->run, c->bytes) : host_target(c->bytes, &c->fd);
    if (c->run->options.cuda)
        gpu_fill(c->source, 0x77, c->bytes);
    else
        memset(c->source, 0x77, c->bytes);
}

static void free_buffers(struct copies *c)
{
    if (c->run->options.cuda) {
        gpu_free(c->source);
        gpu_free(c->target);
        return;
    }
    free(c->source);
    munmap(c->target, c->bytes);
}

/* At rank 1, after rank 0's copies. */
static uint64_t wrong_bytes(struct copies *c)
{
    char *got = malloc(c->bytes);
    uint64_t wrong = 0;

    if (got == NULL)
        abort();
    jobs_get(c->run, got, c->target, c->bytes);
    for (size_t i = 0; i < c->bytes; i++)
        wrong += got[i] != 0x77;
    free(got);
    return wrong;
}

static void report(struct copies *c, uint64_t wrong)
{
    const char *reason = c->reason;
    bool cuda = c->run->options.cuda;

    if (reason == NULL)
        reason = cuda ? "copy by kernel: for host memory" : "asynchronous: a CPU's copy is done when it returns";
    table_row(c->run->table,
              (struct table_cell[]){ TABLE_TEXT(cuda ? "cuda" : "host"), TABLE_NUMBER(c->bytes),
                                     TABLE_NUMBER(c->us[ASYNCHRONOUS]), TABLE_NUMBER(c->us[SYNCHRONOUS]),
                                     TABLE_NUMBER(c->us[OPENING]), TABLE_NUMBER(c->us[BY_KERNEL]), TABLE_NUMBER(c->us[OPEN]),
                                     TABLE_NUMBER(c->us[CLOSE]),
                                     TABLE_NUMBER((double)c->bytes * 8e-3 / (cuda ? c->us[ASYNCHRONOUS] : c->us[SYNCHRONOUS])),
                                     TABLE_NUMBER(wrong) },
              reason);
}

static void measure(struct jobs_run *run, size_t bytes)
{
    struct copies c = { .run = run, .bytes = bytes, .fd = -1 };
    uint64_t wrong = 0;
    int own_fd;

    make_buffers(&c);
    own_fd = c.fd;
    meet(&c);
    for (int way = 0; way < WAYS; way++)
        c.us[way] = NAN;
    if (run->world.rank == 0 && !run->options.cuda)
        adopt(&c);
    if (run->world.rank == 0 && c.reason == NULL)
        sample(&c);
    jobs_barrier(run);
    if (run->world.rank == 1)
        wrong = wrong_bytes(&c);
    wrong = (uint64_t)jobs_total(run, (double)wrong);
    run->wrong += wrong;
    if (run->world.rank == 0)
        report(&c, wrong);
    free_buffers(&c);
    if (c.fd >= 0 && c.fd != own_fd)
        close(c.fd);
    if (own_fd >= 0)
        close(own_fd);
}

static void open_table(struct jobs_run *run)
{
    const struct jobs_options *o = &run->options;
    char about[512];

    snprintf(about, sizeof about,
             "copies: %s\n%s memory, medians of %u; open: %s\nasynchronous: %u back to back; Gb/s: of the asynchronous copy%s",
             o->mode->what, o->cuda ? "cuda" : "host", o->steps,
             o->cuda ? "cuIpcOpenMemHandle" : "mmap of the other process's memory file", BARE_COPIES,
             o->cuda ? "" : ", on the host of the synchronous one");
    run->table = table_open("pickle-perf-jobs", about, columns, o->csv_path, o->json_path);
}

void jobs_copies(struct jobs_run *run)
{
    const struct jobs_options *o = &run->options;

    if (run->world.rank == 0)
        open_table(run);
    if (run->world.size != 2) {
        if (run->world.rank == 0)
            table_row(run->table,
                      (struct table_cell[]){ TABLE_TEXT(o->cuda ? "cuda" : "host"), TABLE_NUMBER(NAN), TABLE_NUMBER(NAN),
                                             TABLE_NUMBER(NAN), TABLE_NUMBER(NAN), TABLE_NUMBER(NAN), TABLE_NUMBER(NAN),
                                             TABLE_NUMBER(NAN), TABLE_NUMBER(NAN), TABLE_NUMBER(NAN) },
                      "is for 2 ranks");
        return;
    }
    for (size_t bytes = o->begin_bytes; bytes <= o->end_bytes; bytes *= o->factor)
        measure(run, bytes);
}
