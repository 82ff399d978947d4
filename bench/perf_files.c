/* SPDX-License-Identifier: Apache-2.0 */
/* What programs read: CSV and JSON. */
#include "perf.h"

#include <time.h>

#include "output.h"

static const char end[] = "\n ]}\n";

static void json_header(struct perf_run *run, const char *description)
{
    const struct perf_options *o = &run->options;

    fprintf(run->json,
            "{\"tool\": \"pickle-perf\", \"library\": %d, \"date\": %lld, \"operation\": \"%s\", \"pattern\": \"%s\",\n",
            pk_version(), (long long)time(NULL), perf_operation(o->op)->name,
            o->op == PERF_SENDRECV ? perf_pattern_name(o->pattern) : "");
    fprintf(run->json, " \"reduction\": \"%s\", \"root\": %d, \"buffers\": \"%s\",\n",
            perf_reduces(o->op) ? perf_reduction_name(o->reduction) : "", perf_has_root(o->op) ? o->root : -1,
            perf_memory_name(o->memory));
    fprintf(run->json, " \"ranks\": %d, \"memory\": \"%s\", \"stream\": \"%s\", \"in_place\": %s, \"zero_sm\": %s,\n", run->size,
            o->cuda ? "cuda" : "host", o->ending == PERF_BLOCKING ? "blocking" : "stream", o->in_place ? "true" : "false",
            o->zero_sm ? "true" : "false");
    if (o->nccl != PERF_NCCL_OFF) {
        fprintf(run->json, " \"nccl_version\": \"%s\", \"nccl_path\": ", perf_nccl_version());
        output_json_string(run->json, perf_nccl_path());
        fputs(",\n", run->json);
    }
    fputs(" \"rank0\": ", run->json);
    output_json_string(run->json, description);
    fputs(",\n \"rows\": [", run->json);
}

void perf_files_open(struct perf_run *run, const char *description)
{
    const struct perf_options *o = &run->options;

    if (o->csv_path != NULL) {
        run->csv = output_open(o->csv_path);
        fputs(
            "operation,pattern,ranks,memory,bytes,count,type,in_place,median_us,p99_us,min_us,max_us,algbw_gbps,busbw_gbps,wrong,"
            "bare_gbps,algorithm,transports,sms,nccl_median_us,nccl_ratio,nccl_wrong,nccl_setting,reduction,root,buffers\n",
            run->csv);
    }
    if (o->json_path != NULL) {
        run->json = output_open(o->json_path);
        json_header(run, description);
    }
}

static void csv_row(struct perf_run *run, const struct perf_row *row)
{
    const struct perf_options *o = &run->options;

    fprintf(run->csv, "%s,%s,%d,%s,%zu,%zu,%s,%d,%.3f,%.3f,%.3f,%.3f,%.4f,%.4f,", perf_operation(o->op)->name,
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
    fprintf(run->csv, ",%s,%s,", o->nccl != PERF_NCCL_OFF ? perf_nccl_setting_name(o->nccl) : "",
            perf_reduces(o->op) ? perf_reduction_name(o->reduction) : "");
    if (perf_has_root(o->op))
        fprintf(run->csv, "%d", o->root);
    fprintf(run->csv, ",%s\n", perf_memory_name(o->memory));
}

static void json_nccl(const struct perf_run *run, const struct perf_row *row)
{
    const struct perf_options *o = &run->options;

    fprintf(run->json,
            "\"nccl_setting\": \"%s\", \"nccl_median_us\": %.3f, \"nccl_p99_us\": %.3f, \"nccl_min_us\": %.3f,"
            " \"nccl_max_us\": %.3f, \"nccl_ratio\": %.4f, ",
            perf_nccl_setting_name(o->nccl), row->nccl_times.median_us, row->nccl_times.p99_us, row->nccl_times.min_us,
            row->nccl_times.max_us, row->nccl_ratio);
    if (o->check)
        fprintf(run->json, "\"nccl_wrong\": %llu, ", (unsigned long long)row->nccl_wrong);
}

static void json_row(struct perf_run *run, const struct perf_row *row)
{
    const struct perf_options *o = &run->options;

    fprintf(run->json,
            "%s\n  {\"bytes\": %zu, \"count\": %zu, \"type\": \"%s\", \"median_us\": %.3f, \"p50_us\": %.3f, \"p99_us\": %.3f,"
            " \"min_us\": %.3f, \"max_us\": %.3f, \"algbw_gbps\": %.4f, \"busbw_gbps\": %.4f, ",
            run->first_row ? "" : ",", row->size.bytes, row->size.count, pk_dtype_name(o->dtype), row->times.median_us,
            row->times.median_us, row->times.p99_us, row->times.min_us, row->times.max_us, row->algorithm_gbps, row->bus_gbps);
    if (o->check)
        fprintf(run->json, "\"wrong\": %llu, ", (unsigned long long)row->wrong);
    if (row->bare_gbps > 0)
        fprintf(run->json, "\"bare_gbps\": %.4f, ", row->bare_gbps);
    if (o->nccl != PERF_NCCL_OFF)
        json_nccl(run, row);
    fputs("\"algorithm\": ", run->json);
    output_json_string(run->json, row->explanation.algorithm);
    fputs(", \"transports\": ", run->json);
    output_json_string(run->json, row->explanation.transports);
    fprintf(run->json, ", \"sms\": %d, \"steps\": %llu}", row->explanation.sms, (unsigned long long)row->explanation.steps);
}

void perf_files_row(struct perf_run *run, const struct perf_row *row)
{
    if (run->csv != NULL)
        csv_row(run, row);
    if (run->json != NULL)
        json_row(run, row);
    output_flush(run->csv, NULL);
    output_flush(run->json, end);
    run->first_row = false;
}

void perf_files_close(struct perf_run *run)
{
    if (run->json != NULL)
        fputs(end, run->json);
    output_close(run->csv, run->options.csv_path);
    output_close(run->json, run->options.json_path);
}
