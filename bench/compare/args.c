/* SPDX-License-Identifier: Apache-2.0 */
#include "driver.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arguments.h"

static const char usage[] =
    "usage: pickle-compare [options]   the same work through libpickle, Open MPI and Gloo, turn by turn in one run\n"
    "  -r, --ranks N      ranks of each world, on this machine (default 2)\n"
    "  -o, --ops LIST     pingpong,allreduce,allgather,alltoall,reduce_scatter,broadcast,reduce,barrier (default these)\n"
    "                     and wake: how long after it was sent a message has been received by a rank that had waited 100 ms for it\n"
    "  -b, --begin N      first size in bytes, with K, M or G (default 8)\n"
    "  -e, --end N        last size (default 64M); sizes are what one rank has, all its blocks together\n"
    "  -f, --factor N     each size is the last one times N (default 8)\n"
    "  -k, --rounds N     turns of each world for each size (default 5)\n"
    "  -t, --turn-ms N    length of a turn (default 20)\n"
    "  -w, --worlds LIST  pickle, pickle-mem, ompi-cma, ompi-copy, ompi-ucx, ompi-tcp, gloo, gloo-poll, bare-cma, bare-copy,\n"
    "                     bare-stream, bare-wire, bare-splice, bare-frames, with commas; the first is what the others are compared with. bare: no library,\n"
    "                     the copies and sums alone; wire: send and recv on a TCP connection (pingpong, allreduce of 2, which keeps\n"
    "                     what it sent, or hears that it was read), splice: the same without the sender's copy; frames: short messages\n"
    "                     of a pingpong with heads, and kept.\n"
    "                     NAME:VARIABLE=VALUE:... sets environment variables of one world\n"
    "                     (pickle,pickle:PICKLE_TEST_TUNING=shm.cma=0,pickle:LD_LIBRARY_PATH=/other/build)\n"
    "                     bare-pipe: allgather and alltoall of pages lent by vmsplice, bare-ring: these and the allreduce of 2 by two copies through\n"
    "                     a short ring, no library\n"
    "      --net          over TCP, on the loopback interface: each rank of libpickle is a host of its own\n"
    "      --enter WORDS  before the command of each rank, %r the rank, as in \"ip netns exec host%r\"; --root ADDRESS: where rank 0 is\n"
    "                     then (default 127.0.0.1). Worlds for that: ompi-eth0, and variables of the others; see bench/net-compare\n"
    "      --bind core|none  each rank to a core, in turn, or as the kernel likes (default: core where there are enough of them)\n"
    "      --backwards    start the worlds from the last to the first: memory got early may be slower than memory got late (by up to a fifth\n"
    "                     from 8 MiB on, the same program), so ratios of large sizes want both orders\n"
    "      --csv FILE, --json FILE\n"
    "  -h, --help\n"
    "Times are of the slowest rank; ratios are of medians, the first world's time to the other's: below 1 the first is faster.\n"
    "A ratio with ~ differed from round to round by more than half: the machine was not quiet enough for it.\n";

static struct driver_options o = {
    .ranks = 2, .begin_bytes = 8, .end_bytes = (size_t)64 << 20, .factor = 8, .rounds = 5, .root = "127.0.0.1"
};
static unsigned turn_ms = 20;
static int bind = -1;

static void take_operations(char *value)
{
    memset(o.operations, 0, sizeof o.operations);
    for (char *name = strsep(&value, ","); name != NULL; name = strsep(&value, ",")) {
        int op = 0;

        while (op < COMPARE_OPS && strcmp(name, driver_op_name((enum compare_op)op)) != 0)
            op++;
        if (op == COMPARE_OPS)
            argument_refuse("--ops", name);
        o.operations[op] = true;
    }
}

static const char *const bindings[] = { "none", "core", NULL };

static const struct argument table[] = {
    ARGUMENT_NUMBER("ranks", 'r', &o.ranks, 2, RANKS_MAX),
    ARGUMENT_TAKEN("ops", 'o', take_operations),
    ARGUMENT_NUMBER("begin", 'b', &o.begin_bytes, 1, SIZE_MAX),
    ARGUMENT_NUMBER("end", 'e', &o.end_bytes, 1, SIZE_MAX),
    ARGUMENT_NUMBER("factor", 'f', &o.factor, 2, 1 << 20),
    ARGUMENT_NUMBER("rounds", 'k', &o.rounds, 1, ROUNDS_MAX),
    ARGUMENT_NUMBER("turn-ms", 't', &turn_ms, 1, 60000),
    ARGUMENT_TEXT("worlds", 'w', &o.worlds),
    ARGUMENT_FLAG("net", 0, &o.net),
    ARGUMENT_TEXT("enter", 0, &o.enter),
    ARGUMENT_TEXT("root", 0, &o.root),
    ARGUMENT_WORD("bind", 0, &bind, bindings),
    ARGUMENT_FLAG("backwards", 0, &o.backwards),
    ARGUMENT_TEXT("csv", 0, &o.csv_path),
    ARGUMENT_TEXT("json", 0, &o.json_path),
    { 0 },
};

void driver_parse(int argc, char **argv, struct driver_options *options)
{
    for (int op = 0; op < COMPARE_OPS; op++)
        o.operations[op] = op != COMPARE_WAKE;
    arguments_parse("pickle-compare", usage, table, 0, 0, argc, argv);
    if (o.end_bytes < o.begin_bytes) {
        fputs(usage, stderr);
        exit(2);
    }
    o.net = o.net || o.enter != NULL;
    o.turn_us = 1e3 * turn_ms;
    o.bind = bind >= 0 ? bind : o.ranks <= sysconf(_SC_NPROCESSORS_ONLN);
    *options = o;
}
