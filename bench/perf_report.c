/* SPDX-License-Identifier: Apache-2.0 */
/* What people and programs read: the table of nccl-tests, CSV and JSON. */
#include "perf.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "output.h"

#define DESCRIPTION_BYTES 256

/* This rank's process and hardware in one line. */
static void describe(const struct perf_run *run, char *out)
{
    char host[64] = "?";
    char cpu[96];
    char gpu[64] = "no GPU";

    gethostname(host, sizeof host - 1);
    output_cpu_model(cpu, sizeof cpu);
    if (run->options.cuda)
        gpu_name(run->gpu, gpu, sizeof gpu);
    if (run->options.cuda)
        snprintf(out, DESCRIPTION_BYTES, "pid %d on %.63s, %.95s, GPU %d %s", (int)getpid(), host, cpu, run->gpu, gpu);
    else
        snprintf(out, DESCRIPTION_BYTES, "pid %d on %.63s, %.95s", (int)getpid(), host, cpu);
}

static void print_ranks(struct perf_run *run)
{
    char own[DESCRIPTION_BYTES] = "";
    char *all = calloc((size_t)run->size, DESCRIPTION_BYTES);

    if (all == NULL)
        abort();
    describe(run, own);
    perf_share(run, own, all, DESCRIPTION_BYTES);
    for (int r = 0; run->rank == 0 && r < run->size; r++)
        printf("# rank %d: %s\n", r, all + (size_t)r * DESCRIPTION_BYTES);
    free(all);
}

static void print_paths(const struct perf_run *run)
{
    pk_mem_kind_t kind = run->options.cuda ? PK_MEM_DEVICE : PK_MEM_HOST;

    for (int peer = 0; peer < run->size; peer++) {
        pk_path_t path = { .struct_size = sizeof path };

        if (peer == run->rank && run->size > 1)
            continue;
        perf_must(pk_comm_path(run->comm, peer, kind, kind, &path), "pk_comm_path");
        printf("# path 0 -> %d: %s (%s), expected %.1f GB/s: %s\n", peer, path.transport, path.device, path.expected_gbps,
               path.reason);
    }
}

static void print_settings(const struct perf_run *run)
{
    const struct perf_options *o = &run->options;
    int version = pk_version();
    time_t now = time(NULL);
    char date[32] = "";
    struct tm tm;

    if (localtime_r(&now, &tm) != NULL)
        strftime(date, sizeof date, "%Y-%m-%d %H:%M", &tm);
    printf("# pickle-perf %s%s%s, library %d.%d.%d, %s\n", perf_operation(o->op)->name, o->op == PERF_SENDRECV ? " " : "",
           o->op == PERF_SENDRECV ? perf_pattern_name(o->pattern) : "", version / 10000, version / 100 % 100, version % 100,
           date);
    printf("# %d ranks, memory %s%s, %s, %s, %u samples after %u warm-up, check %s%s\n", run->size, o->cuda ? "cuda" : "host",
           o->memory == PERF_PLAIN        ? ""
           : o->memory == PERF_REGISTERED ? " registered"
                                          : " of pk_mem_alloc",
           o->ending == PERF_BLOCKING ? "blocking" : "stream", o->in_place ? "in place" : "out of place", o->iterations,
           o->warmup, o->check ? "yes" : "no", o->zero_sm ? ", sm_policy none" : "");
}

static void print_nccl(const struct perf_run *run)
{
    static const char *const meaning[] = {
        [PERF_NCCL_DEFAULT] = "plain buffers",
        [PERF_NCCL_REGISTERED] = "both libraries on buffers of ncclMemAlloc, registered by ncclCommRegister",
        [PERF_NCCL_ZERO_CTA] = "both libraries on buffers of ncclMemAlloc, in symmetric windows, NCCL_CTA_POLICY_ZERO",
    };
    enum perf_nccl_setting setting = run->options.nccl;

    printf("# NCCL %s (%s), setting %s: %s; NVLS off\n", perf_nccl_version(), perf_nccl_path(), perf_nccl_setting_name(setting),
           meaning[setting]);
}

static void print_heads(const struct perf_options *o)
{
    printf("#\n# %12s %13s %8s %6s %4s %11s %10s %10s %10s %8s %8s %7s", "size", "count", "type", "redop", "root", "time p50",
           "p99", "min", "max", "algbw", "busbw", "#wrong");
    if (o->bare)
        printf(" %8s %7s", "bare", "ratio");
    if (o->nccl != PERF_NCCL_OFF)
        printf(" %11s %8s", "nccl", "ratio");
    printf("\n# %12s %13s %8s %6s %4s %11s %10s %10s %10s %8s %8s %7s", "(B)", "(elements)", "", "", "", "(us)", "(us)", "(us)",
           "(us)", "(GB/s)", "(GB/s)", "");
    if (o->bare)
        printf(" %8s %7s", "(GB/s)", "to bare");
    if (o->nccl != PERF_NCCL_OFF)
        printf(" %11s %8s", "us", "to ours");
    putchar('\n');
}

void perf_header(struct perf_run *run)
{
    const struct perf_options *o = &run->options;
    char own[DESCRIPTION_BYTES];

    if (run->rank == 0)
        print_settings(run);
    print_ranks(run);
    if (run->rank != 0)
        return;
    print_paths(run);
    if (o->nccl != PERF_NCCL_OFF)
        print_nccl(run);
    describe(run, own);
    perf_files_open(run, own);
    print_heads(o);
    fflush(stdout);
}

/* A line whenever the library goes over to another way of doing it. */
static void explain(const struct perf_row *row)
{
    static pk_explanation_t last;
    const pk_explanation_t *now = &row->explanation;

    if (now->algorithm[0] == '\0' ||
        (strcmp(now->algorithm, last.algorithm) == 0 && strcmp(now->transports, last.transports) == 0 && now->sms == last.sms))
        return;
    last = *now;
    printf("# from %zu B: %s over %s, %llu steps, %d SMs: %s\n", row->size.bytes, now->algorithm, now->transports,
           (unsigned long long)now->steps, now->sms, now->reason);
}

void perf_report_row(struct perf_run *run, const struct perf_row *row)
{
    const struct perf_options *o = &run->options;
    char wrong[24] = "N/A";
    char root[12] = "-";

    if (run->rank != 0)
        return;
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
    explain(row);
    if (perf_has_root(o->op))
        snprintf(root, sizeof root, "%d", o->root);
    if (o->check && o->op != PERF_BARECOPY)
        snprintf(wrong, sizeof wrong, "%llu", (unsigned long long)row->wrong);
    printf("  %12zu %13zu %8s %6s %4s %11.2f %10.2f %10.2f %10.2f %8.3f %8.3f %7s", row->size.bytes, row->size.count,
           pk_dtype_name(o->dtype), perf_reduces(o->op) ? perf_reduction_name(o->reduction) : "none", root, row->times.median_us,
           row->times.p99_us, row->times.min_us, row->times.max_us, row->algorithm_gbps, row->bus_gbps, wrong);
    if (o->bare) {
        run->ratio = row->bare_gbps > 0 ? row->algorithm_gbps / row->bare_gbps : 0;
        printf(" %8.3f %7.3f", row->bare_gbps, run->ratio);
    }
    if (o->nccl != PERF_NCCL_OFF)
        printf(" %11.2f %8.3f", row->nccl_times.median_us, row->nccl_ratio);
    putchar('\n');
    if (row->nccl_wrong > 0)
        printf("# NCCL: %llu wrong elements in the row above\n", (unsigned long long)row->nccl_wrong);
    fflush(stdout);
    perf_files_row(run, row);
}

void perf_progress(struct perf_run *run, size_t bytes)
{
    if (run->rank == 0 && isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K%s: %zu of %zu bytes", perf_operation(run->options.op)->name, bytes, run->options.end_bytes);
}

void perf_footer(struct perf_run *run, uint64_t wrong)
{
    if (run->rank != 0)
        return;
    if (run->options.check && run->options.op != PERF_BARECOPY)
        printf("# wrong elements: %llu %s\n", (unsigned long long)wrong, wrong == 0 ? "OK" : "FAILED");
    if (run->options.bare)
        printf("# ratio to bare copy at the last size: %.3f\n", run->ratio);
    perf_files_close(run);
}
