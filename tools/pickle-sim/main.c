/* SPDX-License-Identifier: Apache-2.0 */
/* pickle-sim: the library's plans in virtual time over machines that need not exist. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fit.h"
#include "patterns.h"
#include "sim.h"
#include "survive.h"
#include "switched.h"
#include "switchml/packet.h"

static int usage(void)
{
    fputs("usage: pickle-sim run MACHINE OPERATION ALGORITHM RANKS BYTES...\n"
          "           simulated time of one collective; BYTES: the operation's argument (a rank's block for allgather and the "
          "like)\n"
          "       pickle-sim switch MACHINE RANKS [--values 64|256] [--window PACKETS] [--float] [--loss PERCENT] BYTES...\n"
          "           allreduces whose sums an aggregator in the network makes, packet by packet\n"
          "       pickle-sim survive MACHINE RANKS...\n"
          "           how long ranks take to agree after one of them has died, and to make a communicator of the others\n"
          "       pickle-sim check MACHINE RANKS [ALGORITHM]\n"
          "           run every plan (of this name) with data on RANKS ranks and see that every rank ends with what it should\n"
          "       pickle-sim fit MACHINE OUT [--hold-out-ranks N[,N]] CSV...\n"
          "           find the numbers of MACHINE that meet pickle-perf's --csv files best; every third size is held out\n"
          "       pickle-sim compare MACHINE CSV...\n"
          "           simulated beside measured times\n"
          "       pickle-sim scale MACHINE [--csv FILE]\n"
          "           weak and strong scaling of training patterns from one node to the whole machine\n"
          "MACHINE is a JSON file; tools/pickle-sim/machines has some.\n",
          stderr);
    return 2;
}

static bool number(const char *text, double least, double most, double *value)
{
    char *end;

    *value = strtod(text, &end);
    if (end != text && *end == '\0' && *value >= least && *value <= most)
        return true;
    fprintf(stderr, "'%s' is no number from %g to %g\n", text, least, most);
    return false;
}

static const struct pki_algorithm *algorithm_named(const char *operation, const char *name)
{
    for (int i = 0; pki_algorithms[i] != NULL; i++)
        if (strcmp(pki_coll_shape(pki_algorithms[i]->coll)->name, operation) == 0 && strcmp(pki_algorithms[i]->name, name) == 0)
            return pki_algorithms[i];
    fprintf(stderr, "no algorithm '%s' of '%s'; there are:", name, operation);
    for (int i = 0; pki_algorithms[i] != NULL; i++)
        fprintf(stderr, " %s:%s", pki_coll_shape(pki_algorithms[i]->coll)->name, pki_algorithms[i]->name);
    fputc('\n', stderr);
    return NULL;
}

/* Of the processor: what the machine does besides is of no interest. */
static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int command_run(const struct sim_machine *m, int argc, char **argv)
{
    const struct pki_algorithm *algorithm = argc < 4 ? NULL : algorithm_named(argv[0], argv[1]);
    struct sim_world world;
    double ranks, bytes;
    int status = 0;

    if (algorithm == NULL)
        return argc < 4 ? usage() : 2;
    if (!number(argv[2], 1, sim_machine_ranks(m), &ranks) || !sim_world_make(&world, m, NULL, algorithm, (int)ranks, 0, false))
        return 2;
    printf("# %s: %s\n# %s %s, %d ranks%s\n", m->name, m->measured ? "fitted to measurements" : "from data sheets: predicted",
           argv[0], argv[1], (int)ranks, m->measured ? "" : ", predicted");
    printf("%14s %14s %12s %14s %10s\n", "bytes", "us", "GB/s", "chunks", "CPU (s)");
    for (int i = 3; i < argc && status == 0; i++) {
        double start = seconds();
        struct sim_result r;

        if (!number(argv[i], 4, 1e15, &bytes) || !sim_run(m, &world, NULL, bytes, 0, &r))
            status = 1;
        else
            printf("%14.0f %14.3f %12.3f %14llu %10.2f\n", bytes, r.us, bytes / r.us / 1e3, (unsigned long long)r.chunks,
                   seconds() - start);
    }
    sim_world_free(&world);
    return status;
}

/* What stands before the sizes. The first of these, or -1. */
static int switched_options(struct sim_switched *what, int argc, char **argv)
{
    double number_of = 0;
    int i = 0;

    for (; i < argc && argv[i][0] == '-'; i++) {
        const char *name = argv[i];

        if (strcmp(name, "--float") == 0) {
            what->floats = true;
            continue;
        }
        if (++i == argc)
            return -1;
        if (strcmp(name, "--values") == 0 && number(argv[i], 64, 256, &number_of) && (number_of == 64 || number_of == 256))
            what->values = (uint32_t)number_of;
        else if (strcmp(name, "--window") == 0 && number(argv[i], 1, PKI_SWITCHML_SLOTS_MAX, &number_of))
            what->window = (uint32_t)number_of;
        else if (strcmp(name, "--loss") == 0 && number(argv[i], 0, 50, &number_of))
            what->loss = number_of / 100;
        else
            return -1;
    }
    return i;
}

static int command_switch(const struct sim_machine *m, int argc, char **argv)
{
    struct sim_switched what = { .values = 256, .window = 256 };
    double ranks, bytes;
    int first = argc < 2 ? -1 : switched_options(&what, argc - 1, argv + 1), status = 0;

    if (first < 0 || !number(argv[0], 2, PKI_SWITCHML_WORKERS_MAX, &ranks))
        return usage();
    if (m->aggregator.rank_us <= 0 && m->aggregator.gbps <= 0) {
        fprintf(stderr, "%s: 'aggregator' with its numbers is needed\n", m->name);
        return 2;
    }
    what.ranks = (int)ranks;
    printf("# %s: %s\n# allreduce by %s, %d ranks, %u values a packet, %u on their way, %s, %g %% lost by each end\n", m->name,
           m->measured ? "fitted to measurements" : "from data sheets: predicted",
           m->aggregator.packet_us > 0 ? "a program" : "a switch", what.ranks, what.values, what.window,
           what.floats ? "float" : "int32", 100 * what.loss);
    printf("%14s %14s %12s %14s %14s\n", "bytes", "us", "GB/s", "packets", "sent again");
    for (int i = first + 1; i < argc && status == 0; i++) {
        struct sim_switched_result r;

        if (!number(argv[i], 4, 1e12, &bytes) || !sim_switched_run(m, &what, bytes, &r))
            status = 1;
        else
            printf("%14.0f %14.3f %12.3f %14llu %14llu\n", bytes, r.us, bytes / r.us / 1e3, (unsigned long long)r.packets,
                   (unsigned long long)r.again);
    }
    return status;
}

static int command_check(const struct sim_machine *m, int argc, char **argv)
{
    double ranks;
    int bad = 0, done = 0;

    if (argc != 1 && argc != 2)
        return usage();
    if (!number(argv[0], 1, sim_machine_ranks(m), &ranks))
        return 2;
    for (int i = 0; pki_algorithms[i] != NULL; i++) {
        const struct pki_algorithm *algorithm = pki_algorithms[i];
        const struct pki_shape *shape = pki_coll_shape(algorithm->coll);
        double start = seconds();
        struct sim_world world;
        bool good;

        if (shape->counts || (argc == 2 && strcmp(argv[1], algorithm->name) != 0)) /* v-forms have the plans of the others */
            continue;
        good = sim_world_make(&world, m, NULL, algorithm, (int)ranks, (int)ranks / 3, false);
        if (good) {
            good = algorithm->coll == PKI_COLL_BARRIER ? sim_check(m, &world, 0, 1) : sim_check(m, &world, 3, 2);
            sim_world_free(&world);
        }
        printf("%-16s %-10s %6d ranks  %s  %.2f s\n", shape->name, algorithm->name, (int)ranks, good ? "right" : "WRONG",
               seconds() - start);
        fflush(stdout);
        bad += !good;
        done++;
    }
    printf("%d plans, %d wrong\n", done, bad);
    return bad > 0 || done == 0;
}

static void print_error(const struct sim_rows *rows, bool held_out, int ranks)
{
    double median, largest;
    char which[32] = "";
    int count;

    sim_error(rows, held_out, ranks, &median, &largest, &count);
    if (ranks > 0)
        snprintf(which, sizeof which, ", %d ranks", ranks);
    if (count > 0)
        printf("# %s%s: %d rows, median error %.1f %%, largest %.1f %%\n", held_out ? "held out" : "fitted to", which, count,
               100 * median, 100 * largest);
}

static void print_rows(const struct sim_rows *rows)
{
    int most = 0;

    printf("%-16s %-10s %6s %14s %14s %14s %8s\n", "operation", "algorithm", "ranks", "bytes", "measured us", "simulated us",
           "error");
    for (int i = 0; i < rows->count; i++) {
        const struct sim_row *r = &rows->rows[i];

        if (r->predicted_us > 0)
            printf("%-16s %-10s %6d %14.0f %14.3f %14.3f %+7.1f%%%s\n", r->operation, r->algorithm, r->ranks, r->bytes, r->us,
                   r->predicted_us, 100 * (r->predicted_us / r->us - 1), r->held_out ? " held out" : "");
    }
    for (int i = 0; i < rows->count; i++)
        most = rows->rows[i].ranks > most ? rows->rows[i].ranks : most;
    for (int held = 0; held < 2; held++)
        for (int ranks = 0; ranks <= most; ranks++)
            print_error(rows, held == 1, ranks);
}

/* "3,8": bits 3 and 8. Changes the text. */
static bool rank_numbers(char *list, uint64_t *ranks)
{
    char *rest = NULL;
    double one;

    for (char *word = strtok_r(list, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
        if (!number(word, 1, 63, &one))
            return false;
        *ranks |= UINT64_C(1) << (int)one;
    }
    return true;
}

static int command_fit(struct sim_machine *m, int argc, char **argv)
{
    struct sim_rows rows = { 0 };
    uint64_t ranks = 0;
    int first = 1, status = 1;

    if (argc > 3 && strcmp(argv[1], "--hold-out-ranks") == 0) {
        if (!rank_numbers(argv[2], &ranks))
            return 2;
        first = 3;
    }
    if (argc <= first)
        return usage();
    for (int i = first; i < argc; i++)
        if (!sim_rows_read(&rows, argv[i]))
            goto out;
    sim_rows_hold_out(&rows, ranks);
    if (!sim_fit(m, &rows) || !sim_predict(m, &rows) || !sim_machine_save(m, argv[0]))
        goto out;
    print_rows(&rows);
    status = 0;

out:
    sim_rows_free(&rows);
    return status;
}

static int command_compare(const struct sim_machine *m, int argc, char **argv)
{
    struct sim_rows rows = { 0 };
    int status = 1;

    if (argc < 1)
        return usage();
    for (int i = 0; i < argc; i++)
        if (!sim_rows_read(&rows, argv[i]))
            goto out;
    if (sim_predict(m, &rows)) {
        print_rows(&rows);
        status = 0;
    }

out:
    sim_rows_free(&rows);
    return status;
}

/* Rank 1 has died. */
static int command_survive(const struct sim_machine *m, int argc, char **argv)
{
    struct sim_recovery r;
    double ranks;

    if (argc < 1)
        return usage();
    printf("# %s: predicted\n%8s %12s %10s %6s %12s %12s\n", m->name, "ranks", "agree us", "messages", "most", "meet us",
           "shrink us");
    for (int i = 0; i < argc; i++) {
        if (!number(argv[i], 3, sim_machine_ranks(m), &ranks) || !sim_recover(m, (int)ranks, 1, &r))
            return 1;
        printf("%8d %12.1f %10.0f %6.0f %12.1f %12.1f\n", (int)ranks, r.agree_us, r.messages, r.most_messages, r.meet_us,
               r.shrink_us);
    }
    return 0;
}

static bool scale_row(const struct sim_machine *m, struct sim_memo *memo, const struct sim_pattern *pattern,
                      const struct sim_model *model, bool weak, int ranks, FILE *csv)
{
    const char *scaling = weak ? "weak" : "strong";
    struct sim_step_time t = { 0 };

    if (!pattern->step(m, memo, model, ranks, &t))
        return false;
    printf("%-10s %-6s %6d %12.2f %12.2f %12.2f %7.1f%% %7.1f%%  predicted\n", pattern->name, scaling, ranks, t.step_us / 1e3,
           t.compute_us / 1e3, t.total_us / 1e3, 100 * t.exposed_us / t.step_us, 100 * t.compute_us / t.step_us);
    fflush(stdout);
    if (csv != NULL)
        fprintf(csv, "%s,%s,%d,%.3f,%.3f,%.3f,%.5f,%.5f,predicted\n", pattern->name, scaling, ranks, t.step_us, t.compute_us,
                t.total_us, t.exposed_us / t.step_us, t.compute_us / t.step_us);
    return true;
}

static int command_scale(const struct sim_machine *m, int argc, char **argv)
{
    struct sim_model model = { .layers = 32, .hidden = 4096, .experts = 64, .tokens = 8192, .efficiency = 0.5 };
    struct sim_memo *memo = sim_memo_make();
    FILE *csv = NULL;
    bool good = memo != NULL;

    if (m->tflops <= 0 || (argc != 0 && (argc != 2 || strcmp(argv[0], "--csv") != 0))) {
        if (m->tflops <= 0)
            fprintf(stderr, "%s: 'tflops' is needed\n", m->name);
        return usage();
    }
    if (argc == 2) {
        csv = fopen(argv[1], "w");
        if (csv == NULL) {
            perror(argv[1]);
            return 1;
        }
        fputs("pattern,scaling,ranks,step_us,compute_us,communication_us,exposed_share,efficiency,kind\n", csv);
    }
    printf("# %s; %d layers, hidden %d, %.0f tokens a rank at first\n%-10s %-6s %6s %12s %12s %12s %8s %8s\n", m->name,
           model.layers, model.hidden, model.tokens, "pattern", "", "ranks", "step ms", "compute ms", "comm. ms", "exposed",
           "eff.");
    for (int p = 0; good && sim_patterns[p].name != NULL; p++)
        for (int weak = 1; good && weak >= 0; weak--)
            for (int ranks = m->ranks_per_node; good && ranks <= sim_machine_ranks(m); ranks *= 2) {
                struct sim_model of = model;

                of.tokens = weak ? model.tokens : model.tokens * m->ranks_per_node / ranks;
                good = scale_row(m, memo, &sim_patterns[p], &of, weak == 1, ranks, csv);
            }
    free(memo);
    if (csv != NULL)
        good &= fclose(csv) == 0;
    return good ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct sim_machine machine;

    if (argc < 3)
        return usage();
    if (!sim_machine_load(&machine, argv[2]))
        return 2;
    if (strcmp(argv[1], "run") == 0)
        return command_run(&machine, argc - 3, argv + 3);
    if (strcmp(argv[1], "switch") == 0)
        return command_switch(&machine, argc - 3, argv + 3);
    if (strcmp(argv[1], "survive") == 0)
        return command_survive(&machine, argc - 3, argv + 3);
    if (strcmp(argv[1], "check") == 0)
        return command_check(&machine, argc - 3, argv + 3);
    if (strcmp(argv[1], "fit") == 0)
        return command_fit(&machine, argc - 3, argv + 3);
    if (strcmp(argv[1], "compare") == 0)
        return command_compare(&machine, argc - 3, argv + 3);
    if (strcmp(argv[1], "scale") == 0)
        return command_scale(&machine, argc - 3, argv + 3);
    return usage();
}
