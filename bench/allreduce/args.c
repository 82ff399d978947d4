/* SPDX-License-Identifier: Apache-2.0 */
#include "allreduce.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int usage(FILE *to)
{
    fputs("usage: pickle-allreduce [OPTION...]\n"
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
          "  --help               this text\n",
          to);
    return to == stdout ? 0 : 2;
}

static bool number(const char *text, double most, double *value)
{
    char *end;

    errno = 0;
    *value = strtod(text, &end);
    if (errno == 0 && end != text && *end == '\0' && *value >= 0 && *value <= most)
        return true;
    fprintf(stderr, "pickle-allreduce: '%s' is no number from 0 to %.0f\n", text, most);
    return false;
}

static bool word(const char *text, const char *no, const char *yes, bool *value)
{
    *value = strcmp(text, yes) == 0;
    if (*value || strcmp(text, no) == 0)
        return true;
    fprintf(stderr, "pickle-allreduce: '%s' is neither %s nor %s\n", text, no, yes);
    return false;
}

static bool count(const char *text, unsigned least, unsigned *value)
{
    double n;

    if (!number(text, 1e6, &n) || n < least)
        return false;
    *value = (unsigned)n;
    return true;
}

static bool set(int option, const char *text, struct allreduce_options *o)
{
    double n;

    switch (option) {
    case 'n':
        if (!number(text, 1e12, &n))
            return false;
        o->numel = (size_t)n;
        return true;
    case 't':
        return word(text, "int32", "float", &o->floats);
    case 'd':
        return word(text, "cpu", "gpu", &o->gpu);
    case 'j':
        return count(text, 1, &o->jobs);
    case 'w':
        return count(text, 0, &o->warmup_jobs);
    case 'i':
        return word(text, "0", "1", &o->in_place);
    case 's':
        return count(text, 1, &o->sync_every);
    case 'v':
        o->verify = text == NULL || strcmp(text, "0") != 0;
        return true;
    case 'e':
        return number(text, 100, &o->err);
    case 'r':
        o->random = true;
        return true;
    case 'S':
        return count(text, 0, &o->seed);
    case 'D':
        o->stats = true;
        return true;
    case 'a':
        o->all = true;
        return true;
    default:
        return false;
    }
}

bool allreduce_parse(int argc, char **argv, struct allreduce_options *o, int *rc)
{
    static const struct option known[] = {
        { "tensor-numel", required_argument, NULL, 'n' },
        { "tensor-type", required_argument, NULL, 't' },
        { "device", required_argument, NULL, 'd' },
        { "num-jobs", required_argument, NULL, 'j' },
        { "num-warmup-jobs", required_argument, NULL, 'w' },
        { "inplace", required_argument, NULL, 'i' },
        { "sync-every", required_argument, NULL, 's' },
        { "verify", optional_argument, NULL, 'v' },
        { "err", required_argument, NULL, 'e' },
        { "random", no_argument, NULL, 'r' },
        { "seed", required_argument, NULL, 'S' },
        { "dump-stats", no_argument, NULL, 'D' },
        { "all", no_argument, NULL, 'a' },
        { "help", no_argument, NULL, 'h' },
        { NULL, 0, NULL, 0 },
    };
    int c;

    *o = (struct allreduce_options){
        .numel = 268435456, .floats = true, .in_place = true, .jobs = 10, .warmup_jobs = 5, .sync_every = 1, .seed = 1, .err = 1
    };
    while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
        if (c == 'h' || !set(c, optarg, o)) {
            *rc = usage(c == 'h' ? stdout : stderr);
            return false;
        }
    }
    if (optind == argc)
        return true;
    *rc = usage(stderr);
    return false;
}
