/* SPDX-License-Identifier: Apache-2.0 */
/* The table, and what it means in plain words. Rank 0 speaks. */
#include "attention.h"

#include <stdio.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

/* The part of the communication that cost no time, of what could be hidden: the first layer's has no attention before it. Beyond all and
 * nothing, as noise or ranks that wait for each other make it, it is all and nothing. */
static double hidden(const struct job *job, const struct times *t)
{
    double could = t->communication * (job->shape.layers - 1) / job->shape.layers, gained = t->in_turn - t->overlapped;

    if (could <= 0 || gained <= 0)
        return 0;
    return gained < could ? gained / could : 1;
}

/* What a rank receives for all layers, in GB. */
static double received(const struct job *job)
{
    return (double)(job->shape.ranks - 1) * (double)shape_part(&job->shape) * (double)job->compute->element_bytes * 1e-9 *
           job->shape.layers;
}

static void print_row(const struct job *job, int l)
{
    const struct times *t = &job->times[l];
    double layers = job->shape.layers, gb = received(job), beside = gb * (layers - 1) / layers;

    printf("%-12s %9.3f %13.3f %9.3f %10.3f %7.0f %% %12.3f", job->libraries[l].name, t->attention / layers,
           t->communication / layers, t->in_turn / layers, t->overlapped / layers, 100 * hidden(job, t),
           t->attention / t->overlapped);
    if (gb > 0)
        printf(" %11.2f %9.1f", gb / t->communication * 1e3, beside > 0 ? (t->overlapped - t->attention) / beside : 0);
    else
        printf(" %11s %9s", "-", "-");
    printf("%c %s\n", t->unquiet ? '~' : ' ', job->libraries[l].how);
}

static void print_way(const struct job *job)
{
    pk_path_t path = { .struct_size = sizeof path };
    pk_explanation_t e = { .struct_size = sizeof e };
    int peer = (job->shape.rank + 1) % job->shape.ranks;

    if (job->shape.ranks == 1)
        return;
    if (pk_comm_path(job->comm, peer, job->compute->memory, job->compute->memory, &path) == PK_OK)
        printf("path to rank %d: %s (%s): %s\n", peer, path.transport, path.device, path.reason);
    if (pk_explain(job->comm, PK_OP_ALLGATHER, shape_part(&job->shape), job->compute->type, job->compute->memory, 1, 0, &e) ==
        PK_OK)
        printf("allgather: %s over %s, %d SMs: %s\n", e.algorithm, e.transports, e.sms, e.reason);
}

static void print_set_up(const struct job *job)
{
    const struct shape *s = &job->shape;
    double flops = 4.0 * (double)shape_queries(s) * s->ranks * s->keys * s->layers;
    time_t now = time(NULL);
    struct utsname host = { .release = "?" };
    char date[32] = "";

    uname(&host);
    strftime(date, sizeof date, "%Y-%m-%d %H:%M", localtime(&now));
    printf("attention_overlap, %s, Linux %s, %ld CPUs\n", date, host.release, sysconf(_SC_NPROCESSORS_ONLN));
    printf("attention on the %s%s%s\n", job->compute->name, job->compute->how != NULL ? ": " : "",
           job->compute->how != NULL ? job->compute->how(job->compute_state) : "");
    printf("%d ranks of %d thread%s, %d layers; each rank: %d heads of %d, %d queries against %d keys of every rank\n", s->ranks,
           s->threads, s->threads == 1 ? "" : "s", s->layers, s->heads, s->width, s->queries, s->keys);
    printf(
        "a layer's keys and values: %.2f MB from each rank; its attention: %.0f million operations, %.1f GFLOP/s a rank alone\n",
        (double)shape_part(s) * (double)job->compute->element_bytes * 1e-6, flops / s->layers * 1e-6,
        flops / job->times[0].attention * 1e-6);
    print_way(job);
}

static void print_sentence(const struct job *job)
{
    const struct times *t = &job->times[0];
    double layers = job->shape.layers, share = hidden(job, t);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);

    if (job->shape.ranks == 1) {
        printf("\nOne rank has nobody to hear from: start more, by mpirun -n 2.\n");
        return;
    }
    printf(
        "\nA layer takes %.2f ms when its keys and values are fetched first and %.2f ms when they travel during the layer before: ",
        t->in_turn / layers, t->overlapped / layers);
    if (share >= 0.05)
        printf("%.0f %% of the communication disappears behind the attention.\n", 100 * share);
    else
        printf("overlapping gains nothing here.\n");
    if (t->unquiet)
        printf(
            "(But times moved by more than half from round to round, ~: something else runs on this machine, and the figures say little.)\n");
    if (job->compute->memory == PK_MEM_HOST && (long)job->shape.threads * job->shape.ranks >= cores)
        printf(
            "(The ranks' threads are as many as the %ld CPUs: whoever copies takes a CPU from the attention. With a CPU to spare, --threads,\n"
            "or with copy engines of GPUs, it need not.)\n",
            cores);
}

void report(const struct job *job)
{
    if (job->shape.rank != 0)
        return;
    print_set_up(job);
    printf("\nms a layer, medians of %d rounds, slowest rank\n", job->rounds);
    printf("%-12s %9s %13s %9s %10s %9s %12s %11s %9s\n", "", "attention", "communication", "in turn", "overlapped", "hidden",
           "attention", "communic.", "attention");
    printf("%-12s %9s %13s %9s %10s %9s %12s %11s %9s\n", "", "alone", "alone", "", "", "", "/ overlapped", "alone, GB/s",
           "lost,ms/GB");
    for (int l = 0; l < job->library_count; l++)
        print_row(job, l);
    print_sentence(job);
}
