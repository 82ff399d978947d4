/* SPDX-License-Identifier: Apache-2.0 */
#include "overlap.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"

const char *const beside_operation_names[BESIDE_OPERATIONS] = { "sendrecv", "oneway", "allgather", "allreduce" };

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

enum { COMPUTE = 256, CASES, TURNS, INTERVAL, WARM, MAX_SMS, KERNELS, PRIORITY, BARE, NCCL, LIMIT, CSV, JSON, SPOIL, STALL };

static const struct option long_options[] = {
    { "compute", required_argument, NULL, COMPUTE }, { "cases", required_argument, NULL, CASES },
    { "turns", required_argument, NULL, TURNS },     { "interval", required_argument, NULL, INTERVAL },
    { "warm", required_argument, NULL, WARM },       { "max-sms", required_argument, NULL, MAX_SMS },
    { "kernels", no_argument, NULL, KERNELS },
    { "priority", required_argument, NULL, PRIORITY }, { "bare", no_argument, NULL, BARE },
    { "nccl", optional_argument, NULL, NCCL },       { "limit", required_argument, NULL, LIMIT },
    { "csv", required_argument, NULL, CSV },         { "json", required_argument, NULL, JSON },
    { "spoil", no_argument, NULL, SPOIL },           { "stall", no_argument, NULL, STALL },
    { "help", no_argument, NULL, 'h' },              { NULL, 0, NULL, 0 },
};

static void parse_works(char *list, struct beside_options *o)
{
    static const char *const known[] = { "matmul", "attention", "burn" };
    char *rest = NULL;

    o->work_count = 0;
    for (char *word = strtok_r(list, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
        size_t i = 0;

        while (i < sizeof known / sizeof known[0] && strcmp(word, known[i]) != 0)
            i++;
        if (i == sizeof known / sizeof known[0] || o->work_count == BESIDE_WORKS)
            argument_refuse("computing", word);
        o->works[o->work_count++] = known[i];
    }
}

static void parse_cases(char *list, struct beside_options *o)
{
    char *rest = NULL;

    o->case_count = 0;
    for (char *word = strtok_r(list, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
        struct beside_case *c = &o->cases[o->case_count];
        char *colon = strchr(word, ':');
        int op = 0;

        if (colon == NULL || o->case_count == BESIDE_CASES)
            argument_refuse("case", word);
        *colon = '\0';
        while (op < BESIDE_OPERATIONS && strcmp(word, beside_operation_names[op]) != 0)
            op++;
        if (op == BESIDE_OPERATIONS)
            argument_refuse("case", word);
        c->bytes = argument_size("size of a case", colon + 1, 4096, (size_t)16 << 30);
        c->operation = (enum beside_operation)op;
        c->bytes -= c->bytes % 4096;
        o->case_count++;
    }
}

static enum beside_nccl parse_nccl(const char *word)
{
    static const char *const settings[] = { "default", "zerocta", NULL };

    return word != NULL && argument_word("--nccl", word, settings) == 1 ? BESIDE_NCCL_ZERO_CTA : BESIDE_NCCL_DEFAULT;
}

static void parse_option(int option, char *value, struct beside_options *o)
{
    static const char *const priorities[] = { "normal", "high", NULL };

    switch (option) {
    case COMPUTE: parse_works(value, o); break;
    case CASES: parse_cases(value, o); break;
    case TURNS: o->turns = argument_number("--turns", value, 1, BESIDE_TURNS); break;
    case INTERVAL: o->interval_ms = argument_number("--interval", value, 1, 10000); break;
    case WARM: o->warm_ms = argument_number("--warm", value, 0, 10000); break;
    case MAX_SMS: o->max_sms = (int)argument_number("--max-sms", value, 1, 1024); break;
    case KERNELS: o->kernels = true; break;
    case PRIORITY: o->first = argument_word("--priority", value, priorities) == 1; break;
    case BARE: o->bare = true; break;
    case NCCL: o->nccl = parse_nccl(value); break;
    case LIMIT: o->limit_s = argument_number("--limit", value, 1, 100000); break;
    case CSV: o->csv_path = value; break;
    case JSON: o->json_path = value; break;
    case SPOIL: o->spoil = true; break;
    case STALL: o->stall = true; break;
    case 'h': fputs(usage, stdout); exit(0);
    default: fputs(usage, stderr); exit(2);
    }
}

void beside_parse(int argc, char **argv, struct beside_options *options)
{
    static char works[] = "matmul,attention", cases[] = "sendrecv:64M,sendrecv:1G,allgather:64M,allgather:1G,allreduce:1G";
    struct beside_options o = { .turns = 3, .interval_ms = 300, .warm_ms = 100, .max_sms = 16, .first = true, .limit_s = 60 };
    int letter;

    arguments_of("pickle-perf-overlap");
    parse_works(works, &o);
    parse_cases(cases, &o);
    while ((letter = getopt_long(argc, argv, "h", long_options, NULL)) != -1)
        parse_option(letter, optarg, &o);
    if (optind != argc) {
        fputs(usage, stderr);
        exit(2);
    }
    if (o.bare && o.nccl == BESIDE_NCCL_ZERO_CTA) /* NCCL's memory has no legacy handles */
        argument_refuse("--bare with --nccl", "zerocta");
    *options = o;
}
