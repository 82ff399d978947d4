/* SPDX-License-Identifier: Apache-2.0 */
#include "jobs.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"

const char *const jobs_type_names[JOBS_TYPES + 1] = { "f32", "int32", "f64", "int64", NULL };

static const char usage[] =
    "options (one process a rank, by mpirun; pickle-perf-jobs also by PK_RANK, PK_SIZE, PK_ROOT):\n"
    "  patterns of training (the product is tensor parallel in pairs times data parallel):\n"
    "      --layers N --hidden N --tokens N  the model: a layer has 12 hidden^2 parameters (default 4, 128, 64)\n"
    "      --pieces N        micro-batches of the pipeline (default 8)\n"
    "      --bucket BYTES    data parallel: gradients reduced at once, at least a layer's (default 1M)\n"
    "      --steps N         steps measured, of each kind: computing alone, communicating alone, both (default 15)\n"
    "  allreduce, as jobs:\n"
    "      --numel N --dtype f32|int32|f64|int64 --jobs N   (default 1048576, int32, 10)\n"
    "  beside and copies:\n"
    "      --begin BYTES --end BYTES --factor N             (default 4K, 16M, 8)\n"
    "  all:\n"
    "      --warmup N        steps or jobs before (default 5)\n"
    "      --device host|cuda\n"
    "      --csv FILE --json FILE\n"
    "      --spoil           change a result before it is checked: the program must then fail\n";

enum { LAYERS = 256, HIDDEN, TOKENS, PIECES, BUCKET, STEPS, WARMUP, BEGIN, END, FACTOR, NUMEL, DTYPE, DEVICE, CSV, JSON, SPOIL };

static const struct option long_options[] = {
    { "layers", required_argument, NULL, LAYERS }, { "hidden", required_argument, NULL, HIDDEN },
    { "tokens", required_argument, NULL, TOKENS }, { "pieces", required_argument, NULL, PIECES },
    { "bucket", required_argument, NULL, BUCKET }, { "steps", required_argument, NULL, STEPS },
    { "jobs", required_argument, NULL, STEPS },    { "warmup", required_argument, NULL, WARMUP },
    { "begin", required_argument, NULL, BEGIN },   { "end", required_argument, NULL, END },
    { "factor", required_argument, NULL, FACTOR }, { "numel", required_argument, NULL, NUMEL },
    { "dtype", required_argument, NULL, DTYPE },   { "device", required_argument, NULL, DEVICE },
    { "csv", required_argument, NULL, CSV },       { "json", required_argument, NULL, JSON },
    { "spoil", no_argument, NULL, SPOIL },         { "help", no_argument, NULL, 'h' },
    { NULL, 0, NULL, 0 },
};

static void print_usage(FILE *out)
{
    fprintf(out, "usage: %s MODE [options]\n", library_program);
    for (int i = 0; jobs_mode_at(i) != NULL; i++)
        fprintf(out, "  %-10s %s\n", jobs_mode_at(i)->name, jobs_mode_at(i)->what);
    fputs(usage, out);
}

static void parse_option(int option, const char *value, struct jobs_options *o)
{
    static const char *const devices[] = { "host", "cuda", NULL };
    const size_t most = (size_t)1 << 40;

    switch (option) {
    case LAYERS: o->layers = argument_number("--layers", value, 1, 1000); break;
    case HIDDEN: o->hidden = argument_number("--hidden", value, 8, 32768); break;
    case TOKENS: o->tokens = argument_number("--tokens", value, 1, 1u << 20); break;
    case PIECES: o->pieces = argument_number("--pieces", value, 1, 1024); break;
    case BUCKET: o->bucket_bytes = argument_size("--bucket", value, 1, most); break;
    case STEPS: o->steps = argument_number("--steps", value, 1, 100000); break;
    case WARMUP: o->warmup = argument_number("--warmup", value, 0, 100000); break;
    case BEGIN: o->begin_bytes = argument_size("--begin", value, 8, most); break;
    case END: o->end_bytes = argument_size("--end", value, 8, most); break;
    case FACTOR: o->factor = argument_number("--factor", value, 2, 1u << 20); break;
    case NUMEL: o->numel = argument_size("--numel", value, 1, most); break;
    case DTYPE: o->type = (enum jobs_type)argument_word("--dtype", value, jobs_type_names); break;
    case DEVICE: o->cuda = argument_word("--device", value, devices) == 1; break;
    case CSV: o->csv_path = value; break;
    case JSON: o->json_path = value; break;
    case SPOIL: o->spoil = true; break;
    case 'h': print_usage(stdout); exit(0);
    default: print_usage(stderr); exit(2);
    }
}

void jobs_parse(int argc, char **argv, struct jobs_options *options)
{
    struct jobs_options o = { .layers = 4, .hidden = 128, .tokens = 64, .pieces = 8, .steps = 0, .warmup = 5,
                              .bucket_bytes = (size_t)1 << 20, .begin_bytes = 4096, .end_bytes = (size_t)16 << 20, .factor = 8,
                              .numel = 1048576, .type = JOBS_INT32 };
    int letter;

    arguments_of(library_program);
    while ((letter = getopt_long(argc, argv, "h", long_options, NULL)) != -1)
        parse_option(letter, optarg, &o);
    if (optind != argc - 1) {
        print_usage(stderr);
        exit(2);
    }
    o.mode = jobs_find_mode(argv[optind]);
    if (o.mode == NULL)
        argument_refuse("mode", argv[optind]);
    if (o.end_bytes < o.begin_bytes)
        argument_refuse("last size", "smaller than the first");
    if (o.steps == 0)
        o.steps = o.mode->pattern != NULL ? 15 : 10;
    *options = o;
}
