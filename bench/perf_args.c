/* SPDX-License-Identifier: Apache-2.0 */
#include "perf.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"

static const char usage[] =
    "usage: pickle-perf OPERATION [options]   (one process a rank, by mpirun or PK_RANK, PK_SIZE, PK_ROOT)\n"
    "  pickle-perf jobs ... and pickle-perf overlap ... are pickle-perf-jobs(1), patterns of training, and\n"
    "  pickle-perf-overlap(1), computing on GPUs beside messages\n"
    "  sendrecv barrier broadcast reduce allreduce reduce_scatter allgather alltoall gather scatter\n"
    "  allgatherv alltoallv gatherv scatterv (parts from nearly nothing to nearly twice the average), barecopy\n"
    "  -b, -e and rows count bytes as nccl-tests does: all parts together where each rank has one, else what one rank has\n"
    "  -b, --begin N        first size in bytes, with K, M or G (default 8)\n"
    "  -e, --end N          last size (default 32M)\n"
    "  -f, --factor N       each size is the last one times N (default 2)\n"
    "  -n, --iterations N   samples a size (default 20)\n"
    "  -w, --warmup N       iterations before them (default 5)\n"
    "  -c, --check 0|1      check the results (default 1)\n"
    "  -d, --device D       memory: host or cuda (default host)\n"
    "  -g, --gpu N          this process's GPU (default: its rank on this host)\n"
    "  -t, --type T         int8 uint8 int32 uint32 int64 uint64 f16 bf16 f32 f64 f8e4m3 f8e5m2 (default f32)\n"
    "  -o, --op OP          reduction: sum prod min max avg (default sum)\n"
    "  -r, --root N         root (default 0); -1: each rank in turn, so that no operation overlaps the next\n"
    "  -m, --memory M       plain, registered by pk_register, or alloc by pk_mem_alloc (default plain)\n"
    "  -s, --stream S       blocking or stream (default: blocking on the host, stream on a GPU)\n"
    "  -i, --in-place       source and result share memory (not sendrecv, barrier, alltoallv)\n"
    "  -z, --zero-sm        no kernels: what needs one is refused\n"
    "  -p, --pattern P      sendrecv: pingpong, oneway (ranks 0 and 1), bidir (every rank to the next; default)\n"
    "      --window N       -p oneway: messages in a row, behind which the receiver answers (default 64 to 4, by their size)\n"
    "      --bare           sendrecv on GPUs: measure a bare copy of each size as well, and print the ratio\n"
    "      --nccl[=SETTING] measure NCCL as well, in turns, and print the ratio of its time to the library's (-d cuda, in a stream):\n"
    "                       default, registered (ncclMemAlloc, ncclCommRegister) or zerocta (symmetric windows, CTA policy\n"
    "                       zero). NVLS is always off. PERF_NCCL_LIBRARY: path of libnccl.so.2 where it is not found\n"
    "      --csv FILE       rows as comma-separated values\n"
    "      --json FILE      rows as JSON\n"
    "  -h, --help           this text\n";

/* In the order of PK_SUM and the others. */
static const char *const reduction_names[] = { "sum", "prod", "min", "max", "avg", NULL };
static const char *const memory_names[] = { "plain", "registered", "alloc", NULL };
static const char *const pattern_names[] = { "pingpong", "oneway", "bidir", NULL };
static const char *const ending_names[] = { "blocking", "stream", NULL };
static const char *const device_names[] = { "host", "cuda", NULL };
static const char *const check_names[] = { "0", "1", NULL };
static const char *const nccl_names[] = { "off", "default", "registered", "zerocta", NULL };

const char *perf_reduction_name(pk_op_t reduction)
{
    return reduction_names[reduction];
}

const char *perf_memory_name(enum perf_memory memory)
{
    return memory_names[memory];
}

const char *perf_pattern_name(enum perf_pattern pattern)
{
    return pattern_names[pattern];
}

static struct perf_options o = { .pattern = PERF_BIDIR,
                                 .begin_bytes = 8,
                                 .end_bytes = (size_t)32 << 20,
                                 .factor = 2,
                                 .iterations = 20,
                                 .warmup = 5,
                                 .dtype = PK_F32,
                                 .check = true,
                                 .gpu = -1 };
static int ending = -1;

static void take_type(char *value)
{
    for (int i = 0; i < PK_DTYPE_COUNT; i++)
        if (strcmp(value, pk_dtype_name((pk_dtype_t)i)) == 0) {
            o.dtype = (pk_dtype_t)i;
            return;
        }
    argument_refuse("--type", value);
}

static void take_root(char *value)
{
    o.root = strcmp(value, "-1") == 0 ? -1 : (int)argument_size("--root", value, 0, 1 << 20);
}

static const struct argument table[] = {
    ARGUMENT_NUMBER("begin", 'b', &o.begin_bytes, 0, SIZE_MAX),
    ARGUMENT_NUMBER("end", 'e', &o.end_bytes, 0, SIZE_MAX),
    ARGUMENT_NUMBER("factor", 'f', &o.factor, 2, 1 << 20),
    ARGUMENT_NUMBER("iterations", 'n', &o.iterations, 1, 1 << 24),
    ARGUMENT_NUMBER("warmup", 'w', &o.warmup, 0, 1 << 24),
    ARGUMENT_WORD("check", 'c', &o.check, check_names),
    ARGUMENT_WORD("device", 'd', &o.cuda, device_names),
    ARGUMENT_NUMBER("gpu", 'g', &o.gpu, 0, 1023),
    ARGUMENT_TAKEN("type", 't', take_type),
    ARGUMENT_WORD("op", 'o', &o.reduction, reduction_names),
    ARGUMENT_TAKEN("root", 'r', take_root),
    ARGUMENT_WORD("memory", 'm', &o.memory, memory_names),
    ARGUMENT_WORD("stream", 's', &ending, ending_names),
    ARGUMENT_FLAG("in-place", 'i', &o.in_place),
    ARGUMENT_FLAG("zero-sm", 'z', &o.zero_sm),
    ARGUMENT_WORD("pattern", 'p', &o.pattern, pattern_names),
    ARGUMENT_NUMBER("window", 0, &o.window, 1, 1 << 16),
    ARGUMENT_FLAG("bare", 0, &o.bare),
    ARGUMENT_MAYBE("nccl", 0, &o.nccl, nccl_names, "default"),
    ARGUMENT_TEXT("csv", 0, &o.csv_path),
    ARGUMENT_TEXT("json", 0, &o.json_path),
    { 0 },
};

static enum perf_op parse_operation(const char *value)
{
    for (int i = 0; i < PERF_OPS; i++)
        if (strcmp(value, perf_operation((enum perf_op)i)->name) == 0)
            return (enum perf_op)i;
    argument_refuse("operation", value);
}

static void check_together(void)
{
    const char *wrong = NULL;

    if (o.end_bytes < o.begin_bytes)
        wrong = "the last size is smaller than the first";
    else if (o.bare && (o.op != PERF_SENDRECV || !o.cuda))
        wrong = "--bare is for sendrecv with -d cuda";
    else if (o.nccl != PERF_NCCL_OFF && (!o.cuda || !perf_operation(o.op)->nccl || o.ending != PERF_STREAM))
        wrong = "--nccl is for operations that NCCL has, with -d cuda, in a stream";
    else if (o.nccl != PERF_NCCL_OFF && perf_nccl_absent() != NULL)
        wrong = perf_nccl_absent();
    else if (o.nccl > PERF_NCCL_DEFAULT && o.bare)
        wrong = "--bare copies through IPC handles, which memory of --nccl=registered and zerocta does not have";
    else if (o.in_place && perf_operation(o.op)->in_place == PERF_NEVER)
        wrong = "-i: this operation is never in place";
    else if (o.window != 0 && (o.op != PERF_SENDRECV || o.pattern != PERF_ONEWAY))
        wrong = "--window is for sendrecv -p oneway";
    else if (o.reduction != PK_SUM && !perf_reduces(o.op))
        wrong = "-o is for reductions";
    else if (o.root != 0 && !perf_has_root(o.op))
        wrong = "-r is for operations with a root";
    else if (o.memory == PERF_ALLOCATED && o.cuda)
        wrong = "-m alloc is host memory";
    else if (o.cuda && gpu_absent() != NULL)
        wrong = gpu_absent();
    if (wrong != NULL) {
        fprintf(stderr, "pickle-perf: %s\n", wrong);
        exit(2);
    }
}

void perf_parse(int argc, char **argv, struct perf_options *options)
{
    o.op = parse_operation(argv[arguments_parse("pickle-perf", usage, table, 1, 1, argc, argv)]);
    o.cuda = o.cuda || o.op == PERF_BARECOPY;
    if (ending < 0)
        ending = o.cuda ? PERF_STREAM : PERF_BLOCKING;
    o.ending = (enum perf_ending)ending;
    check_together();
    *options = o;
}
