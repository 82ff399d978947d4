/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle-allreduce: jobs of one allreduce each, as SwitchML's allreduce_benchmark does them. With PK_ALGORITHM=allreduce=switchml
 * an aggregator sums (docs/switchml.md), without it the library as it likes.
 */
#include <math.h>
#include <pickle/pickle.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "allreduce.h"
#include "cuda_dl.h"
#include "timing.h"

struct run {
    struct allreduce_options o;
    pk_comm_t *comm;
    int rank, size;
    void *in, *out; /* where the library sees them */
    void *host;     /* for data and checks */
    pk_stream_t stream;
    gpu_stream_t gpu_stream;
    double *took; /* ns of each batch of jobs */
    unsigned batches;
    double cpu_s; /* that this process has used in them */
};

static int failed(const char *what)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    pk_last_error(&info);
    fprintf(stderr, "pickle-allreduce: %s: %s\n", what, info.text);
    return 1;
}

static double cpu_seconds(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* ---- data ---- */

static uint32_t hash(uint32_t a, uint32_t b)
{
    uint32_t h = a * 2654435761u ^ (b + 0x9e3779b9u) * 2246822519u;

    h ^= h >> 15;
    h *= 2654435761u;
    return h ^ h >> 13;
}

static int32_t integer(const struct run *r, int rank, size_t i)
{
    return r->o.random ? (int32_t)hash((uint32_t)i, (uint32_t)rank + 1000 * r->o.seed) : (int32_t)(i % 1000) + rank;
}

static float real(const struct run *r, int rank, size_t i)
{
    return r->o.random ? (float)(int32_t)hash((uint32_t)i, (uint32_t)rank + 1000 * r->o.seed) / 2147483648.0f
                       : (float)((int)(i % 1000) + rank);
}

static void move(const struct run *r, void *to, const void *from)
{
    if (r->o.gpu)
        gpu_copy(to, from, r->o.numel * 4);
    else
        memcpy(to, from, r->o.numel * 4);
}

static void fill(struct run *r)
{
    for (size_t i = 0; i < r->o.numel; i++)
        if (r->o.floats)
            ((float *)r->host)[i] = real(r, r->rank, i);
        else
            ((int32_t *)r->host)[i] = integer(r, r->rank, i);
    move(r, r->in, r->host);
}

static bool is_right(const struct run *r, size_t i, unsigned jobs)
{
    double sum = 0, times = r->o.in_place ? pow(r->size, jobs - 1) : 1, most = 0;
    uint32_t whole = 0;

    for (int k = 0; k < r->size; k++) {
        whole += (uint32_t)integer(r, k, i);
        sum += (double)real(r, k, i);
        most += r->o.random ? 1 : fabs((double)real(r, k, i));
    }
    if (r->o.floats)
        return fabs((double)((const float *)r->host)[i] - sum * times) <= r->o.err / 100 * (fabs(sum) + most * 1e-3) * times;
    for (unsigned j = 1; j < jobs && r->o.in_place; j++)
        whole *= (uint32_t)r->size;
    return ((const uint32_t *)r->host)[i] == whole;
}

static int check(struct run *r)
{
    const unsigned jobs = r->o.warmup_jobs + r->o.jobs;
    size_t wrong = 0;

    move(r, r->host, r->o.in_place ? r->in : r->out);
    for (size_t i = 0; i < r->o.numel; i++)
        if (!is_right(r, i, jobs) && wrong++ < 3)
            fprintf(stderr, "rank %d: element %zu is %g\n", r->rank, i,
                    r->o.floats ? (double)((const float *)r->host)[i] : (double)((const int32_t *)r->host)[i]);
    if (wrong > 0)
        fprintf(stderr, "rank %d: %zu of %zu elements are wrong\n", r->rank, wrong, r->o.numel);
    else if (r->rank == 0 || r->o.all)
        printf("All %zu elements are right\n", r->o.numel);
    return wrong > 0;
}

/* ---- jobs ---- */

static pk_result_t batch(struct run *r, unsigned jobs)
{
    pk_result_t result = PK_OK;

    for (unsigned j = 0; j < jobs && result == PK_OK; j++)
        result = pk_allreduce(r->in, r->o.in_place ? r->in : r->out, r->o.numel, r->o.floats ? PK_F32 : PK_INT32, PK_SUM, r->comm,
                              jobs == 1 && !r->o.gpu ? PK_BLOCKING : r->stream);
    if (result == PK_OK && r->o.gpu)
        result = gpu_stream_sync(r->gpu_stream) == 0 ? pk_comm_async_error(r->comm) : PK_ERR_SYSTEM;
    else if (result == PK_OK && jobs > 1)
        result = pk_stream_synchronize(r->stream);
    return result;
}

static double gbps(const struct run *r, double ns, double jobs)
{
    return (double)r->o.numel * 32 * jobs / ns;
}

static int go(struct run *r)
{
    for (unsigned j = 0; j < r->o.warmup_jobs; j++)
        if (batch(r, 1) != PK_OK)
            return failed("allreduce");
    r->cpu_s = -cpu_seconds();
    for (unsigned done = 0; done < r->o.jobs; r->batches++) {
        const unsigned jobs = r->o.jobs - done < r->o.sync_every ? r->o.jobs - done : r->o.sync_every;
        const double began = now_us();

        if (batch(r, jobs) != PK_OK)
            return failed("allreduce");
        r->took[r->batches] = (now_us() - began) * 1e3 / jobs;
        if (r->rank == 0 || r->o.all)
            printf("Job(s) #%u# finished. Duration: #%.0f# ns Goodput: #%g# Gbps.\n", done, r->took[r->batches] * jobs,
                   gbps(r, r->took[r->batches], 1));
        done += jobs;
    }
    r->cpu_s += cpu_seconds();
    return 0;
}

/* ---- the end ---- */

static void line(const struct run *r, const char *name, double ns)
{
    printf("%-7s %.0f ns %g Gbps\n", name, ns, gbps(r, ns, 1));
}

static void summarise(const struct run *r)
{
    const unsigned n = r->batches;
    double mean = 0, square = 0;

    if (r->rank != 0 && !r->o.all)
        return;
    sort_up(r->took, n);
    for (unsigned i = 0; i < n; i++)
        mean += r->took[i] / n;
    for (unsigned i = 0; i < n; i++)
        square += (r->took[i] - mean) * (r->took[i] - mean) / n;
    line(r, "Min", r->took[0]);
    line(r, "Max", r->took[n - 1]);
    line(r, "Median", median(r->took, n));
    line(r, "Mean", mean);
    printf("Std dev %.0f ns\n", sqrt(square));
}

static void dump(const struct run *r)
{
    pk_stats_t s = { .struct_size = sizeof s };

    if (!r->o.stats || pk_comm_stats(r->comm, &s) != PK_OK)
        return;
    printf("rank %d: processor time of the jobs %.6f s, operations %llu, steps %llu, messages %llu, bytes sent %llu, "
           "copies %llu, kernels %llu\n",
           r->rank, r->cpu_s, (unsigned long long)s.operations, (unsigned long long)s.steps, (unsigned long long)s.messages,
           (unsigned long long)s.bytes_sent, (unsigned long long)s.copies, (unsigned long long)s.kernels);
}

static void *memory(const struct run *r)
{
    const size_t bytes = (r->o.numel + 1) * 4;

    return r->o.gpu ? gpu_alloc(bytes) : malloc(bytes);
}

static int prepare(struct run *r)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_explanation_t how = { .struct_size = sizeof how };

    if (r->o.gpu && gpu_absent() != NULL) {
        fprintf(stderr, "pickle-allreduce: %s\n", gpu_absent());
        return 2;
    }
    if (r->o.gpu)
        gpu_use(gpu_of_rank());
    config.device = r->o.gpu ? gpu_of_rank() : PK_DEVICE_HOST;
    if (pk_comm_init(&r->comm, &config) != PK_OK)
        return failed("pk_comm_init");
    pk_comm_rank(r->comm, &r->rank);
    pk_comm_size(r->comm, &r->size);
    r->in = memory(r);
    r->out = r->o.in_place ? r->in : memory(r);
    r->host = malloc((r->o.numel + 1) * 4);
    r->took = calloc(r->o.jobs, sizeof *r->took);
    if (r->in == NULL || r->out == NULL || r->host == NULL || r->took == NULL)
        return fputs("pickle-allreduce: no memory\n", stderr), 1;
    r->gpu_stream = r->o.gpu ? gpu_stream_new() : NULL;
    r->stream = PK_CUDA_STREAM(r->gpu_stream);
    if (!r->o.gpu && pk_stream_create(&r->stream) != PK_OK)
        return failed("pk_stream_create");
    if (r->rank == 0 && pk_explain(r->comm, PK_OP_ALLREDUCE, r->o.numel, r->o.floats ? PK_F32 : PK_INT32,
                                   r->o.gpu ? PK_MEM_DEVICE : PK_MEM_HOST, r->o.in_place, 0, &how) == PK_OK)
        printf("%d ranks, %zu elements of %s, algorithm %s (%s)\n", r->size, r->o.numel, r->o.floats ? "float" : "int32",
               how.algorithm, how.reason);
    return 0;
}

int main(int argc, char **argv)
{
    struct run r = { .rank = 0 };
    int rc;

    allreduce_parse(argc, argv, &r.o);
    rc = prepare(&r);
    if (rc == 0) {
        fill(&r);
        rc = go(&r);
    }
    if (rc == 0 && r.o.verify)
        rc = check(&r);
    if (rc == 0)
        summarise(&r);
    if (rc == 0)
        dump(&r);
    if (r.comm != NULL && pk_comm_destroy(r.comm) != PK_OK && rc == 0)
        rc = failed("pk_comm_destroy");
    return rc; /* memory goes with the process */
}
