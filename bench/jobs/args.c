/* SPDX-License-Identifier: Apache-2.0 */
#include "jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"

const char *const jobs_type_names[JOBS_TYPES + 1] = { "f32", "int32", "f64", "int64", NULL };

static const char about_options[] =
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

static struct jobs_options o = { .layers = 4,
                                 .hidden = 128,
                                 .tokens = 64,
                                 .pieces = 8,
                                 .warmup = 5,
                                 .bucket_bytes = (size_t)1 << 20,
                                 .begin_bytes = 4096,
                                 .end_bytes = (size_t)16 << 20,
                                 .factor = 8,
                                 .numel = 1048576,
                                 .type = JOBS_INT32 };
static const char *const devices[] = { "host", "cuda", NULL };

static const struct argument table[] = {
    ARGUMENT_NUMBER("layers", 0, &o.layers, 1, 1000),
    ARGUMENT_NUMBER("hidden", 0, &o.hidden, 8, 32768),
    ARGUMENT_NUMBER("tokens", 0, &o.tokens, 1, 1 << 20),
    ARGUMENT_NUMBER("pieces", 0, &o.pieces, 1, 1024),
    ARGUMENT_NUMBER("bucket", 0, &o.bucket_bytes, 1, 1ull << 40),
    ARGUMENT_NUMBER("steps", 0, &o.steps, 1, 100000),
    ARGUMENT_NUMBER("jobs", 0, &o.steps, 1, 100000),
    ARGUMENT_NUMBER("warmup", 0, &o.warmup, 0, 100000),
    ARGUMENT_NUMBER("begin", 0, &o.begin_bytes, 8, 1ull << 40),
    ARGUMENT_NUMBER("end", 0, &o.end_bytes, 8, 1ull << 40),
    ARGUMENT_NUMBER("factor", 0, &o.factor, 2, 1 << 20),
    ARGUMENT_NUMBER("numel", 0, &o.numel, 1, 1ull << 40),
    ARGUMENT_WORD("dtype", 0, &o.type, jobs_type_names),
    ARGUMENT_WORD("device", 0, &o.cuda, devices),
    ARGUMENT_TEXT("csv", 0, &o.csv_path),
    ARGUMENT_TEXT("json", 0, &o.json_path),
    ARGUMENT_FLAG("spoil", 0, &o.spoil),
    { 0 },
};

static const char *usage(void)
{
    static char text[4096];
    int n = snprintf(text, sizeof text, "usage: %s MODE [options]\n", library_program);

    for (int i = 0; jobs_mode_at(i) != NULL; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "  %-10s %s\n", jobs_mode_at(i)->name, jobs_mode_at(i)->what);
    (void)snprintf(text + n, sizeof text - (size_t)n, "%s", about_options);
    return text;
}

void jobs_parse(int argc, char **argv, struct jobs_options *options)
{
    const char *mode = argv[arguments_parse(library_program, usage(), table, 1, 1, argc, argv)];

    o.mode = jobs_find_mode(mode);
    if (o.mode == NULL)
        argument_refuse("mode", mode);
    if (o.end_bytes < o.begin_bytes)
        argument_refuse("last size", "smaller than the first");
    if (o.steps == 0)
        o.steps = o.mode->pattern != NULL ? 15 : 10;
    *options = o;
}
