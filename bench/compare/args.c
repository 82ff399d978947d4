/* SPDX-License-Identifier: Apache-2.0 */
#include "driver.h"

#include <getopt.h>
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

enum { OPTION_NET = 256, OPTION_CSV, OPTION_JSON, OPTION_BIND, OPTION_ENTER, OPTION_ROOT, OPTION_BACKWARDS };

static const struct option long_options[] = {
    { "ranks", required_argument, NULL, 'r' },   { "ops", required_argument, NULL, 'o' },
    { "begin", required_argument, NULL, 'b' },   { "end", required_argument, NULL, 'e' },
    { "factor", required_argument, NULL, 'f' },  { "rounds", required_argument, NULL, 'k' },
    { "turn-ms", required_argument, NULL, 't' }, { "worlds", required_argument, NULL, 'w' },
    { "net", no_argument, NULL, OPTION_NET },    { "bind", required_argument, NULL, OPTION_BIND },
    { "csv", required_argument, NULL, OPTION_CSV }, { "json", required_argument, NULL, OPTION_JSON },
    { "enter", required_argument, NULL, OPTION_ENTER }, { "root", required_argument, NULL, OPTION_ROOT },
    { "backwards", no_argument, NULL, OPTION_BACKWARDS }, { "help", no_argument, NULL, 'h' },
    { NULL, 0, NULL, 0 },
};

static void parse_operations(const char *value, bool operations[COMPARE_OPS])
{
    char list[256];
    char *rest = list;

    memset(operations, 0, COMPARE_OPS * sizeof *operations);
    if (strlen(value) >= sizeof list)
        argument_refuse("operations", value);
    memcpy(list, value, strlen(value) + 1);
    for (char *name = strsep(&rest, ","); name != NULL; name = strsep(&rest, ",")) {
        int op = 0;

        while (op < COMPARE_OPS && strcmp(name, driver_op_name((enum compare_op)op)) != 0)
            op++;
        if (op == COMPARE_OPS)
            argument_refuse("operation", name);
        operations[op] = true;
    }
}

static void parse_option(int letter, const char *value, struct driver_options *o, int *bind)
{
    static const char *const bindings[] = { "none", "core", NULL };

    switch (letter) {
    case 'r': o->ranks = (int)argument_number("number of ranks", value, 2, RANKS_MAX); break;
    case 'o': parse_operations(value, o->operations); break;
    case 'b': o->begin_bytes = argument_size("size", value, 0, SIZE_MAX); break;
    case 'e': o->end_bytes = argument_size("size", value, 0, SIZE_MAX); break;
    case 'f': o->factor = argument_number("factor", value, 2, 1u << 20); break;
    case 'k': o->rounds = argument_number("number of rounds", value, 1, ROUNDS_MAX); break;
    case 't': o->turn_us = 1e3 * argument_number("length of a turn", value, 1, 60000); break;
    case 'w': o->worlds = value; break;
    case OPTION_NET: o->net = true; break;
    case OPTION_ENTER: o->enter = value; o->net = true; break;
    case OPTION_ROOT: o->root = value; break;
    case OPTION_BACKWARDS: o->backwards = true; break;
    case OPTION_BIND: *bind = argument_word("binding", value, bindings); break;
    case OPTION_CSV: o->csv_path = value; break;
    case OPTION_JSON: o->json_path = value; break;
    case 'h': fputs(usage, stdout); exit(0);
    default: fputs(usage, stderr); exit(2);
    }
}

void driver_parse(int argc, char **argv, struct driver_options *options)
{
    struct driver_options o = { .ranks = 2, .begin_bytes = 8, .end_bytes = (size_t)64 << 20, .factor = 8, .rounds = 5,
                                .turn_us = 20e3, .root = "127.0.0.1" };
    int bind = -1;
    int letter;

    arguments_of("pickle-compare");
    for (int op = 0; op < COMPARE_OPS; op++)
        o.operations[op] = op != COMPARE_WAKE;
    while ((letter = getopt_long(argc, argv, "r:o:b:e:f:k:t:w:h", long_options, NULL)) != -1)
        parse_option(letter, optarg, &o, &bind);
    if (optind != argc || o.end_bytes < o.begin_bytes || o.begin_bytes == 0) {
        fputs(usage, stderr);
        exit(2);
    }
    o.bind = bind >= 0 ? bind : o.ranks <= sysconf(_SC_NPROCESSORS_ONLN);
    *options = o;
}
