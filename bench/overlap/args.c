/* SPDX-License-Identifier: Apache-2.0 */
#include "overlap.h"

#include <string.h>

#include "arguments.h"

const char *const overlap_operation_names[OVERLAP_OPERATIONS + 1] = { "sendrecv", "oneway", "allgather", "allreduce", NULL };

static const char usage[] =
    "usage: pickle-perf-overlap [options]   (one process a rank and a GPU, by mpirun or PK_RANK, PK_SIZE, PK_ROOT; 2 ranks or more)\n"
    "What messages cost computing on GPUs that run both: times, cycles of the multiprocessors, clock, power and rates, alone and beside.\n"
    "  --compute W[,W]     matmul (bf16, cuBLAS), attention (bf16, cuDNN), burn (f32 in registers, no library)\n"
    "                      (default matmul,attention)\n"
    "  --cases OP:BYTES[,OP:BYTES]  sendrecv (both ways, round the ring), oneway (0 to 1), allgather (in place, BYTES a rank), allreduce\n"
    "                      (default sendrecv:64M,sendrecv:1G,allgather:64M,allgather:1G,allreduce:1G)\n"
    "  --turns N           of each kind, whose median is told (default 3)\n"
    "  --interval MS       of computing that is measured (default 300)\n"
    "  --warm MS           of computing before it, messages included (default 100)\n"
    "  --max-sms N         for allreduce; all else runs with sm_policy PK_SM_NONE (default 16)\n"
    "  --kernels           all else by kernels, too, where the library takes them: sm_policy PK_SM_DEFAULT\n"
    "  --priority P        of the stream in which messages are: high (kernels of messages before those of computing) or normal (default high)\n"
    "  --bare              bare copies beside it, for sendrecv: what copy engines can do at most\n"
    "  --nccl[=default|zerocta]  NCCL beside it, turn by turn (libnccl.so.2 or PERF_NCCL_LIBRARY); zerocta: symmetric windows, CTA policy zero\n"
    "  --limit S           that any step may take: then the program ends and says which, on which rank (default 60)\n"
    "  --csv FILE --json FILE\n"
    "  --spoil             change a result before it is checked: the program must then fail\n"
    "  --stall             stand still in a step: the program must then end by --limit\n";

static struct overlap_options o = { .turns = 3, .interval_ms = 300, .warm_ms = 100, .max_sms = 16, .first = true, .limit_s = 60 };

static void take_works(char *list)
{
    static const char *const known[] = { "matmul", "attention", "burn", NULL };
    char *rest = NULL;

    o.work_count = 0;
    for (char *word = strtok_r(list, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
        if (o.work_count == OVERLAP_WORKS)
            argument_refuse("--compute", word);
        o.works[o.work_count++] = known[argument_word("--compute", word, known)];
    }
}

static void take_cases(char *list)
{
    char *rest = NULL;

    o.case_count = 0;
    for (char *word = strtok_r(list, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
        struct overlap_case *c = &o.cases[o.case_count];
        char *colon = strchr(word, ':');

        if (colon == NULL || o.case_count == OVERLAP_CASES)
            argument_refuse("--cases", word);
        *colon = '\0';
        c->operation = (enum overlap_operation)argument_word("--cases", word, overlap_operation_names);
        c->bytes = argument_size("--cases", colon + 1, 4096, 16ull << 30);
        c->bytes -= c->bytes % 4096;
        o.case_count++;
    }
}

static const char *const priorities[] = { "normal", "high", NULL };
static const char *const nccl_settings[] = { "off", "default", "zerocta", NULL };

static const struct argument table[] = {
    ARGUMENT_TAKEN("compute", 0, take_works),
    ARGUMENT_TAKEN("cases", 0, take_cases),
    ARGUMENT_NUMBER("turns", 0, &o.turns, 1, OVERLAP_TURNS),
    ARGUMENT_REAL("interval", 0, &o.interval_ms, 1, 10000),
    ARGUMENT_REAL("warm", 0, &o.warm_ms, 0, 10000),
    ARGUMENT_NUMBER("max-sms", 0, &o.max_sms, 1, 1024),
    ARGUMENT_FLAG("kernels", 0, &o.kernels),
    ARGUMENT_WORD("priority", 0, &o.first, priorities),
    ARGUMENT_FLAG("bare", 0, &o.bare),
    ARGUMENT_MAYBE("nccl", 0, &o.nccl, nccl_settings, "default"),
    ARGUMENT_REAL("limit", 0, &o.limit_s, 1, 100000),
    ARGUMENT_TEXT("csv", 0, &o.csv_path),
    ARGUMENT_TEXT("json", 0, &o.json_path),
    ARGUMENT_FLAG("spoil", 0, &o.spoil),
    ARGUMENT_FLAG("stall", 0, &o.stall),
    { 0 },
};

void overlap_parse(int argc, char **argv, struct overlap_options *options)
{
    static char works[] = "matmul,attention", cases[] = "sendrecv:64M,sendrecv:1G,allgather:64M,allgather:1G,allreduce:1G";

    take_works(works);
    take_cases(cases);
    arguments_parse("pickle-perf-overlap", usage, table, 0, 0, argc, argv);
    if (o.bare && o.nccl == OVERLAP_NCCL_ZERO_CTA) /* NCCL's memory has no legacy handles */
        argument_refuse("--bare with --nccl", "zerocta");
    *options = o;
}
