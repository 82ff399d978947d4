/* SPDX-License-Identifier: Apache-2.0 */
#include "overlap.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void overlap_fail(const char *format, ...)
{
    va_list args;

    overlap_watch_hide();
    va_start(args, format);
    fputs("pickle-perf-overlap: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    fflush(NULL);
    _exit(1); /* the driver's own end might wait for what stands still */
}

void overlap_must(pk_result_t result, const char *what)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    if (result == PK_OK)
        return;
    pk_last_error(&info);
    overlap_fail("%s: %s %s", what, pk_strerror(result), info.text);
}

void overlap_share(struct overlap_run *run, const void *value, void *values, size_t bytes)
{
    if (bytes == 0)
        overlap_must(pk_barrier(run->world, PK_BLOCKING), "pk_barrier");
    else
        overlap_must(pk_allgather(value, values, bytes, PK_UINT8, run->world, PK_BLOCKING), "exchange of results");
}

double overlap_worst(struct overlap_run *run, double value)
{
    double worst;

    overlap_must(pk_allreduce(&value, &worst, 1, PK_F64, PK_MAX, run->world, PK_BLOCKING), "exchange of results");
    return worst;
}

bool overlap_all(struct overlap_run *run, bool value)
{
    return overlap_worst(run, value ? 0 : 1) == 0;
}

/* A little before --limit, for the library knows who is missing. */
static uint64_t timeout_ms(const struct overlap_run *run)
{
    return getenv("PK_TIMEOUT_MS") != NULL ? 0 : (uint64_t)(run->options.limit_s * 900);
}

static void open_run(struct overlap_run *run)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;

    overlap_step("cuInit, and a context");
    if (gpu_absent() != NULL) {
        fprintf(stderr, "pickle-perf-overlap: %s\n", gpu_absent());
        exit(2);
    }
    run->gpu = gpu_of_rank();
    gpu_use(run->gpu);
    config.device = PK_DEVICE_CUDA(run->gpu);
    config.timeout_ms = timeout_ms(run);
    overlap_step("pk_comm_init");
    overlap_must(pk_comm_init(&run->world, &config), "pk_comm_init");
    overlap_must(pk_comm_rank(run->world, &run->rank), "pk_comm_rank");
    overlap_must(pk_comm_size(run->world, &run->size), "pk_comm_size");
    overlap_step("pk_comm_split");
    if (run->size < 2 || run->size > gpu_count()) {
        if (run->rank == 0)
            fprintf(stderr, "pickle-perf-overlap: 2 ranks or more, each with a GPU of its own: here are %d ranks, %d GPUs\n",
                    run->size, gpu_count());
        exit(2);
    }
    config.sm_policy = run->options.kernels ? PK_SM_DEFAULT : PK_SM_NONE;
    overlap_must(pk_comm_split(run->world, 0, run->rank, &run->zero, &config), "pk_comm_split");
    config.sm_policy = PK_SM_BOUNDED;
    config.max_sms = run->options.max_sms;
    overlap_must(pk_comm_split(run->world, 0, run->rank, &run->some, &config), "pk_comm_split");
    run->compute_stream = gpu_stream_new();
    run->nccl_absent = NULL;
    overlap_step("NCCL, memory for messages, NVML");
    if (run->options.nccl != OVERLAP_NCCL_OFF && !overlap_nccl_load(run, &run->nccl_absent))
        run->options.nccl = OVERLAP_NCCL_OFF;
    else
        run->nccl_absent = NULL;
    overlap_messages_open(run);
    overlap_samples_open(run);
}

static void open_report(struct overlap_run *run)
{
    const struct overlap_options *o = &run->options;
    int version = pk_version();
    char about[1600], name[64], limit[48] = "";

    gpu_name(run->gpu, name, sizeof name);
    if (!isnan(overlap_power_limit()))
        snprintf(limit, sizeof limit, ", power limit %.0f W", overlap_power_limit());
    snprintf(
        about, sizeof about,
        "overlap: what messages cost computing, and the other way round\n"
        "libpickle %d.%d.%d, %d ranks of a process and a GPU each, %s%s\n"
        "medians of %u turns of %.0f ms after %.0f ms of the same; of the rank whose computing lost most\n"
        "ratio: time alone / beside; /clock: cycles of the multiprocessors alone / beside (counted on each of them); MHz: cycles / time\n"
        "rate: bytes that leave a rank (of allreduce 2 (n-1)/n of it); lost: longer computing per GB that left meanwhile\n"
        "covered: messages had ended before the computing began, and the last ended after it; longest: between two ends, in medians of that\n"
        "one: a single operation, on a free GPU and while a kernel holds every multiprocessor (-: it did not end within 0.4 s)\n"
        "%s: sm_policy PK_SM_%s; allreduce: at most %d multiprocessors; messages in a stream of %s priority",
        version / 10000, version / 100 % 100, version % 100, run->size, name, limit, o->turns, o->interval_ms, o->warm_ms,
        "sendrecv, oneway, allgather", o->kernels ? "DEFAULT" : "NONE", o->max_sms, o->first ? "the highest" : "ordinary");
    overlap_watch_hide();
    if (run->rank == 0)
        overlap_report_open(run, about);
}

/* One operation on fresh buffers, looked at. */
static uint64_t try_once(struct overlap_run *run, struct overlap_side *side, const struct overlap_case *c)
{
    overlap_fill(run, c);
    side->post(run, c);
    overlap_message_wait(run, side->name);
    overlap_share(run, "", NULL, 0); /* a bare copy ends where it began */
    return overlap_check(run, c);
}

static uint64_t total(struct overlap_run *run, uint64_t wrong)
{
    uint64_t all;

    overlap_must(pk_allreduce(&wrong, &all, 1, PK_UINT64, PK_SUM, run->world, PK_BLOCKING), "exchange of results");
    return all;
}

static bool has(const struct overlap_side *side, const struct overlap_case *c)
{
    return !side->bare || c->operation == OVERLAP_SENDRECV;
}

static void phase(const struct overlap_work *work, const char *library, const struct overlap_case *c)
{
    overlap_phase("%s beside %s of %zu bytes%s%s", work->name, overlap_operation_names[c->operation], c->bytes,
                  library[0] != '\0' ? " by " : "", library);
}

static void measure_turns(struct overlap_run *run, struct overlap_work *work, struct overlap_side *sides, int n,
                          const struct overlap_case *c, struct overlap_turn (*turns)[OVERLAP_TURNS])
{
    for (unsigned t = 0; t < run->options.turns; t++) {
        struct overlap_samples alone;

        phase(work, "", c);
        overlap_step("turn %u of %u: computing alone", t + 1, run->options.turns);
        overlap_alone(run, work, &alone);
        for (int s = 0; s < n; s++) {
            if (!has(&sides[s], c))
                continue;
            phase(work, sides[s].name, c);
            turns[s][t].alone = alone;
            overlap_turn(run, work, &sides[s], c, &turns[s][t]);
        }
    }
}

static void measure_case(struct overlap_run *run, struct overlap_work *work, struct overlap_side *sides, int n,
                         const struct overlap_case *c)
{
    static struct overlap_turn turns[OVERLAP_SIDES][OVERLAP_TURNS];
    double held_ms[OVERLAP_SIDES], free_ms[OVERLAP_SIDES];

    work->rounds = overlap_rounds(run, work, run->options.interval_ms);
    overlap_pickle(run, &sides[0], c);
    for (int s = 0; s < n; s++) {
        uint64_t wrong;

        if (!has(&sides[s], c))
            continue;
        phase(work, sides[s].name, c);
        overlap_step("one operation");
        wrong = try_once(run, &sides[s], c);
        overlap_step("one operation while a kernel holds every multiprocessor");
        held_ms[s] = overlap_held(run, &sides[s], c, &free_ms[s]);
        run->wrong += total(run, wrong);
    }
    measure_turns(run, work, sides, n, c, turns);
    for (int s = 0; s < n; s++) {
        uint64_t wrong;

        if (!has(&sides[s], c))
            continue;
        phase(work, sides[s].name, c);
        overlap_step("are results right?");
        wrong = total(run, try_once(run, &sides[s], c) + work->check(work));
        run->wrong += wrong;
        overlap_report(run, work, &sides[s], c, turns[s], held_ms[s], free_ms[s], wrong);
    }
    overlap_explain(run, work, c);
}

static void note(struct overlap_run *run, const char *what, const char *how)
{
    char text[256];

    snprintf(text, sizeof text, "%s: %s", what, how);
    if (run->rank == 0)
        table_note(run->table, text);
}

static void note_ways(struct overlap_run *run)
{
    for (int i = 0; i < run->options.case_count; i++) {
        const struct overlap_case *c = &run->options.cases[i];
        struct overlap_side side;
        char what[64];

        overlap_pickle(run, &side, c);
        snprintf(what, sizeof what, "%s, %s of %zu bytes", side.name, overlap_operation_names[c->operation], c->bytes);
        note(run, what, side.how);
    }
}

static void measure_work(struct overlap_run *run, const char *name, struct overlap_side *sides, int n)
{
    struct overlap_work work;
    const char *why = "another rank cannot";
    bool here;

    overlap_phase("%s: its libraries and its first launch", name);
    while (run->options.stall)
        usleep(1000);
    here = overlap_work_open(&work, name, run, &why);
    if (!overlap_all(run, here)) {
        overlap_report_absent(run, name, "-", NULL, why);
        return;
    }
    work.launch(&work);
    gpu_stream_sync(run->compute_stream);
    note(run, name, work.how);
    for (int i = 0; i < run->options.case_count; i++)
        measure_case(run, &work, sides, n, &run->options.cases[i]);
    work.close(&work);
}

int main(int argc, char **argv)
{
    struct overlap_run run = { .rank = 0 };
    struct overlap_side sides[OVERLAP_SIDES];
    int n = 1;

    overlap_parse(argc, argv, &run.options);
    overlap_watch_open(&run);
    open_run(&run);
    open_report(&run);
    overlap_phase("NCCL's communicator, handles for bare copies");
    if (run.options.nccl != OVERLAP_NCCL_OFF && overlap_nccl_open(&run, &sides[n], &run.nccl_absent)) {
        run.nccl_absent = NULL;
        n++;
    }
    if (run.nccl_absent != NULL)
        overlap_report_absent(&run, "-", "NCCL", NULL, run.nccl_absent);
    note_ways(&run);
    if (run.options.bare)
        overlap_bare_open(&run, &sides[n++]);
    for (int s = 1; s < n; s++)
        note(&run, sides[s].name, sides[s].how);
    for (int w = 0; w < run.options.work_count; w++)
        measure_work(&run, run.options.works[w], sides, n);
    overlap_phase("the end");
    overlap_watch_hide();
    if (run.rank == 0 && run.wrong > 0)
        printf("# wrong elements: %llu FAILED\n", (unsigned long long)run.wrong);
    if (run.rank == 0)
        table_close(run.table);
    overlap_nccl_close();
    overlap_bare_close(&run);
    overlap_share(&run, "", NULL, 0);
    overlap_samples_close();
    overlap_messages_close(&run);
    overlap_must(pk_comm_destroy(run.some), "pk_comm_destroy");
    overlap_must(pk_comm_destroy(run.zero), "pk_comm_destroy");
    overlap_must(pk_comm_destroy(run.world), "pk_comm_destroy");
    overlap_watch_close();
    return run.wrong > 0;
}
