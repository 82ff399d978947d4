/* SPDX-License-Identifier: Apache-2.0 */
#include "allreduce.h"

#include "arguments.h"

static const char usage[] = "usage: pickle-allreduce [OPTION...]\n"
                            "Allreduces as SwitchML's allreduce_benchmark does them: the same options, the same lines.\n"
                            "  --tensor-numel N     elements (268435456)\n"
                            "  --tensor-type T      float or int32 (float)\n"
                            "  --device D           cpu or gpu: where the tensor is (cpu)\n"
                            "  --num-jobs N         allreduces that are measured (10)\n"
                            "  --num-warmup-jobs N  and before them (5)\n"
                            "  --inplace 0|1        the sums replace the tensor, and so grow with each job (1)\n"
                            "  --sync-every N       wait after every N jobs, and measure them together (1)\n"
                            "  --verify             compare every element with the right sum\n"
                            "  --err PERCENT        of the right sum: what a float may differ (1)\n"
                            "  --random             elements by chance, else small whole numbers\n"
                            "  --seed N             of chance (1)\n"
                            "  --dump-stats         the library's counters at the end\n"
                            "  --all                lines of every rank, not of rank 0 alone\n"
                            "  --help               this text\n";

static struct allreduce_options o = {
    .numel = 268435456, .floats = true, .in_place = true, .jobs = 10, .warmup_jobs = 5, .sync_every = 1, .seed = 1, .err = 1
};
static const char *const types[] = { "int32", "float", NULL };
static const char *const devices[] = { "cpu", "gpu", NULL };
static const char *const truths[] = { "0", "1", NULL };

static const struct argument table[] = {
    ARGUMENT_NUMBER("tensor-numel", 0, &o.numel, 0, 1e12),
    ARGUMENT_WORD("tensor-type", 0, &o.floats, types),
    ARGUMENT_WORD("device", 0, &o.gpu, devices),
    ARGUMENT_NUMBER("num-jobs", 0, &o.jobs, 1, 1000000),
    ARGUMENT_NUMBER("num-warmup-jobs", 0, &o.warmup_jobs, 0, 1000000),
    ARGUMENT_WORD("inplace", 0, &o.in_place, truths),
    ARGUMENT_NUMBER("sync-every", 0, &o.sync_every, 1, 1000000),
    ARGUMENT_MAYBE("verify", 0, &o.verify, truths, "1"),
    ARGUMENT_REAL("err", 0, &o.err, 0, 100),
    ARGUMENT_FLAG("random", 0, &o.random),
    ARGUMENT_NUMBER("seed", 0, &o.seed, 0, 1000000),
    ARGUMENT_FLAG("dump-stats", 0, &o.stats),
    ARGUMENT_FLAG("all", 0, &o.all),
    { 0 },
};

void allreduce_parse(int argc, char **argv, struct allreduce_options *options)
{
    arguments_parse("pickle-allreduce", usage, table, 0, 0, argc, argv);
    *options = o;
}
