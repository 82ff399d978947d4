/* SPDX-License-Identifier: Apache-2.0 */
/* What people and programs read: the table of nccl-tests, CSV and JSON. */
#include "perf.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DESCRIPTION_BYTES 256

static void cpu_model(char *out, size_t bytes)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];
    char *colon;

    snprintf(out, bytes, "unknown CPU");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "model name", 10) == 0 && (colon = strchr(line, ':')) != NULL) {
            line[strcspn(line, "\n")] = '\0';
            snprintf(out, bytes, "%s", colon + 2);
            break;
        }
    }
    if (file != NULL)
        fclose(file);
}

/* This rank's process and hardware in one line. */
static void describe(const struct perf_run *run, char *out)
{
    char host[64] = "?";
    char cpu[96];
    char gpu[64] = "no GPU";

    gethostname(host, sizeof host - 1);
    cpu_model(cpu, sizeof cpu);
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
    printf("# pickle-perf %s%s%s, library %d.%d.%d, %s\n", perf_op_name(o->op), o->op == PERF_SENDRECV ? " " : "",
           o->op == PERF_SENDRECV ? perf_pattern_name(o->pattern) : "", version / 10000, version / 100 % 100, version % 100, date);
    printf("# %d ranks, memory %s, %s, %s, %u samples after %u warm-up, check %s%s\n", run->size, o->cuda ? "cuda" : "host",
           o->ending == PERF_BLOCKING ? "blocking" : "stream", o->in_place ? "in place" : "out of place", o->iterations, o->warmup,
           o->check ? "yes" : "no", o->zero_sm ? ", sm_policy none" : "");
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

static FILE *open_output(const char *path)
{
    FILE *file = fopen(path, "w");

    if (file == NULL) {
        perror(path);
        exit(2);
    }
    return file;
}

static void json_string(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            fprintf(out, "\\%c", *text);
        else if ((unsigned char)*text < 0x20)
            fprintf(out, "\\u%04x", *text);
        else
            fputc(*text, out);
    }
    fputc('"', out);
}

static void json_header(struct perf_run *run)
{
    const struct perf_options *o = &run->options;
    char own[DESCRIPTION_BYTES];

    describe(run, own);
    fprintf(run->json, "{\"tool\": \"pickle-perf\", \"library\": %d, \"date\": %lld, \"operation\": \"%s\", \"pattern\": \"%s\",\n",
            pk_version(), (long long)time(NULL), perf_op_name(o->op), o->op == PERF_SENDRECV ? perf_pattern_name(o->pattern) : "");
    fprintf(run->json, " \"ranks\": %d, \"memory\": \"%s\", \"stream\": \"%s\", \"in_place\": %s, \"zero_sm\": %s,\n", run->size,
            o->cuda ? "cuda" : "host", o->ending == PERF_BLOCKING ? "blocking" : "stream", o->in_place ? "true" : "false",
            o->zero_sm ? "true" : "false");
    if (o->nccl != PERF_NCCL_OFF) {
        fprintf(run->json, " \"nccl_version\": \"%s\", \"nccl_path\": ", perf_nccl_version());
        json_string(run->json, perf_nccl_path());
        fputs(",\n", run->json);
    }
    fputs(" \"rank0\": ", run->json);
    json_string(run->json, own);
    fputs(",\n \"rows\": [", run->json);
}

static void print_heads(const struct perf_options *o)
{
    printf("#\n# %12s %13s %8s %8s %5s %11s %8s %8s %7s", "size", "count", "type", "redop", "root", "time", "algbw", "busbw",
           "#wrong");
    if (o->bare)
        printf(" %8s %7s", "bare", "ratio");
    if (o->nccl != PERF_NCCL_OFF)
        printf(" %11s %8s", "nccl", "ratio");
    printf("\n# %12s %13s %8s %8s %5s %11s %8s %8s %7s", "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "");
    if (o->bare)
        printf(" %8s %7s", "(GB/s)", "to bare");
    if (o->nccl != PERF_NCCL_OFF)
        printf(" %11s %8s", "us", "to ours");
    putchar('\n');
}

void perf_header(struct perf_run *run)
{
    const struct perf_options *o = &run->options;

    if (run->rank == 0)
        print_settings(run);
    print_ranks(run);
    if (run->rank != 0)
        return;
    print_paths(run);
    if (o->nccl != PERF_NCCL_OFF)
        print_nccl(run);
    if (o->csv_path != NULL) {
        run->csv = open_output(o->csv_path);
        fputs("operation,pattern,ranks,memory,bytes,count,type,in_place,median_us,p99_us,min_us,max_us,algbw_gbps,busbw_gbps,wrong,"
              "bare_gbps,algorithm,transports,sms,nccl_median_us,nccl_ratio,nccl_wrong,nccl_setting\n", run->csv);
    }
    if (o->json_path != NULL) {
        run->json = open_output(o->json_path);
        json_header(run);
    }
    print_heads(o);
    fflush(stdout);
}

static void csv_row(struct perf_run *run, const struct perf_row *row)
{
    const struct perf_options *o = &run->options;

    fprintf(run->csv, "%s,%s,%d,%s,%zu,%zu,%s,%d,%.3f,%.3f,%.3f,%.3f,%.4f,%.4f,", perf_op_name(o->op),
            o->op == PERF_SENDRECV ? perf_pattern_name(o->pattern) : "", run->size, o->cuda ? "cuda" : "host", row->size.bytes,
            row->size.count, pk_dtype_name(o->dtype), o->in_place, row->times.median_us, row->times.p99_us, row->times.min_us,
            row->times.max_us, row->algorithm_gbps, row->bus_gbps);
    if (o->check)
        fprintf(run->csv, "%llu", (unsigned long long)row->wrong);
    fprintf(run->csv, ",%.4f,\"%s\",\"%s\",%d,", row->bare_gbps, row->explanation.algorithm, row->explanation.transports,
            row->explanation.sms);
    if (o->nccl != PERF_NCCL_OFF)
        fprintf(run->csv, "%.3f,%.4f,", row->nccl_times.median_us, row->nccl_ratio);
    else
        fputs(",,", run->csv);
    if (o->nccl != PERF_NCCL_OFF && o->check)
        fprintf(run->csv, "%llu", (unsigned long long)row->nccl_wrong);
    fprintf(run->csv, ",%s\n", o->nccl != PERF_NCCL_OFF ? perf_nccl_setting_name(o->nccl) : "");
}

static void json_nccl(const struct perf_run *run, const struct perf_row *row)
{
    const struct perf_options *o = &run->options;

    fprintf(run->json, "\"nccl_setting\": \"%s\", \"nccl_median_us\": %.3f, \"nccl_p99_us\": %.3f, \"nccl_min_us\": %.3f,"
            " \"nccl_max_us\": %.3f, \"nccl_ratio\": %.4f, ", perf_nccl_setting_name(o->nccl), row->nccl_times.median_us,
            row->nccl_times.p99_us, row->nccl_times.min_us, row->nccl_times.max_us, row->nccl_ratio);
    if (o->check)
        fprintf(run->json, "\"nccl_wrong\": %llu, ", (unsigned long long)row->nccl_wrong);
}

static void json_row(struct perf_run *run, const struct perf_row *row)
{
    const struct perf_options *o = &run->options;

    fprintf(run->json, "%s\n  {\"bytes\": %zu, \"count\": %zu, \"type\": \"%s\", \"median_us\": %.3f, \"p50_us\": %.3f, \"p99_us\": %.3f,"
            " \"min_us\": %.3f, \"max_us\": %.3f, \"algbw_gbps\": %.4f, \"busbw_gbps\": %.4f, ", run->first_row ? "" : ",",
            row->size.bytes, row->size.count, pk_dtype_name(o->dtype), row->times.median_us, row->times.median_us, row->times.p99_us,
            row->times.min_us, row->times.max_us, row->algorithm_gbps, row->bus_gbps);
    if (o->check)
        fprintf(run->json, "\"wrong\": %llu, ", (unsigned long long)row->wrong);
    if (row->bare_gbps > 0)
        fprintf(run->json, "\"bare_gbps\": %.4f, ", row->bare_gbps);
    if (o->nccl != PERF_NCCL_OFF)
        json_nccl(run, row);
    fputs("\"algorithm\": ", run->json);
    json_string(run->json, row->explanation.algorithm);
    fputs(", \"transports\": ", run->json);
    json_string(run->json, row->explanation.transports);
    fprintf(run->json, ", \"sms\": %d, \"steps\": %llu}", row->explanation.sms, (unsigned long long)row->explanation.steps);
}

/* A line whenever the library goes over to another way of doing it. */
static void explain(const struct perf_row *row)
{
    static pk_explanation_t last;
    const pk_explanation_t *now = &row->explanation;

    if (now->algorithm[0] == '\0' || (strcmp(now->algorithm, last.algorithm) == 0 && strcmp(now->transports, last.transports) == 0
                                      && now->sms == last.sms))
        return;
    last = *now;
    printf("# from %zu B: %s over %s, %llu steps, %d SMs: %s\n", row->size.bytes, now->algorithm, now->transports,
           (unsigned long long)now->steps, now->sms, now->reason);
}

void perf_report_row(struct perf_run *run, const struct perf_row *row)
{
    const struct perf_options *o = &run->options;
    char wrong[24] = "N/A";

    if (run->rank != 0)
        return;
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
    explain(row);
    if (o->check && o->op != PERF_BARECOPY)
        snprintf(wrong, sizeof wrong, "%llu", (unsigned long long)row->wrong);
    printf("  %12zu %13zu %8s %8s %5d %11.2f %8.3f %8.3f %7s", row->size.bytes, row->size.count, pk_dtype_name(o->dtype),
           o->op == PERF_ALLREDUCE ? "sum" : "none", -1, row->times.median_us, row->algorithm_gbps, row->bus_gbps, wrong);
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
    if (run->csv != NULL)
        csv_row(run, row);
    if (run->json != NULL)
        json_row(run, row);
    run->first_row = false;
}

void perf_progress(struct perf_run *run, size_t bytes)
{
    if (run->rank == 0 && isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[K%s: %zu of %zu bytes", perf_op_name(run->options.op), bytes, run->options.end_bytes);
}

void perf_footer(struct perf_run *run, uint64_t wrong)
{
    if (run->rank != 0)
        return;
    if (run->options.check && run->options.op != PERF_BARECOPY)
        printf("# wrong elements: %llu %s\n", (unsigned long long)wrong, wrong == 0 ? "OK" : "FAILED");
    if (run->options.bare)
        printf("# ratio to bare copy at the last size: %.3f\n", run->ratio);
    if (run->csv != NULL && fclose(run->csv) != 0)
        perror(run->options.csv_path);
    if (run->json != NULL) {
        fputs("\n ]}\n", run->json);
        if (fclose(run->json) != 0)
            perror(run->options.json_path);
    }
}
