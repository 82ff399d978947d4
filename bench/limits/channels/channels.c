/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What waiting copies in CUDA streams of two processes stop, with no library: two worker processes with one GPU each, which map
 * each other's memory by legacy IPC handles ("ipc") or by descriptors of cuMemCreate ("vmm"). The parent has no CUDA and opens
 * the words that streams wait for by plain stores. Data are random, and are compared after every release.
 *
 *   waiting    n waiting operations of a kind, in n streams or in one; beside them probes of every kind in 8 idle streams each,
 *              of the same process and of the other one: how many of the 8 are done in 25 ms (every 8th time that some are not:
 *              in 300 ms)
 *   programs   random programs in both processes against an ideal. --rule 1: fewer than C waiting pushes, one stream with waiting
 *              pulls and then no other pull; --rule 2: fewer than C waiting pushes and pulls. What stands still although it keeps
 *              the rule is made small and printed
 *   sequences  random sequences of waiting, small and big peer copies. --rule 3: none is queued while C other streams have
 *              unfinished ones
 *   movers     copy engine and moving kernel: time from word to word, and rate, alone and beside pushes
 *   chain      first process: write ready, wait for done; second: wait for ready, copy, write done
 *   turns      copies beside pushes without end, and copies of two streams: who comes when
 *   driver     which driver calls of a thread stand while another one loads a module, frees memory or synchronizes
 *   queued     chains that were queued before a thread does so
 *
 * nvcc -cubin -arch=sm_90 kernels.cu -o kernels.cubin && gcc -std=c11 -O2 -Wall -Wextra -Wpedantic -Werror
 *     -I../.. -I/usr/local/cuda/include *.c ../../arguments.c -L/usr/local/cuda/lib64/stubs -lcuda -lpthread -o channels
 * ./channels waiting --csv waiting.csv && python3 tables.py waiting.csv
 * All that docs/design/0035 uses, in about 13 minutes: ./run FOLDER
 *
 * Options: --mode ipc|vmm --connections CUDA_DEVICE_MAX_CONNECTIONS --copy-connections CUDA_DEVICE_MAX_COPY_CONNECTIONS (8 and 4
 * where they are not given; 0: unset) --size BYTES --block BYTES (the largest copy of `waiting`) --n LIST --types vk (waits by
 * value, by kernel) --forms ms (many streams, a single one) --fresh BITS (1: new streams; `waiting` also 2: the last work of the
 * waiting streams is a kernel, 4: they have high priority) --serial (probes one by one) --rule N --rounds N --seed N --limit
 * SECONDS --cubin FILE --dev A,B
 */
#define _GNU_SOURCE
#include "parent.h"

#include "arguments.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const char *const kind_name[KINDS] = {
    "none", "push", "pull", "H2D", "D2H", "D2D", "kernel", "write", "chain", "push+w", "pull+w"
};
const char *const type_name[] = { "value", "kernel" };
const char *const form_name[] = { "streams", "onestream" };
const char *const holder_name[HOLDERS] = { "nothing",     "load/value", "load/kernel", "free/value",
                                           "free/kernel", "sync/value", "lazy/value",  "lazy/kernel" };

struct parent parent = { .seed = 1,
                         .o = { .mode = "ipc",
                                .connections = 8,
                                .copy_connections = 4,
                                .size = 4096,
                                .block = 16l << 20,
                                .types = "vk",
                                .forms = "ms",
                                .rounds = 100,
                                .rule = 1,
                                .limit = 1e9,
                                .cubin = "kernels.cubin",
                                .dev = { 0, 1 },
                                .ns = { 1, 2, 3, 4, 5, 8, 16 },
                                .n_count = 7 } };

static const struct experiment {
    const char *name;

    void (*run)(void);
    const char *columns;
} experiments[] = {
    { "waiting", experiment_waiting,
      "mode,mc,mcc,size,fresh,wait,form,kind,n,process,probe,done_of_8,mask,done_later,seen,ms,call_ms,busy,blocked" },
    { "programs", experiment_programs,
      "mode,mc,mcc,round,step,worker,style,rule,pushes,push_streams,pulls,pull_streams,value_waits,kernel_waits,kernel_streams,"
      "other,want,idle" },
    { "sequences", experiment_sequences, "mode,mc,mcc,style,sequence,step,op,stream,kind,idle" },
    { "movers", experiment_movers,
      "mode,mc,mcc,mover,ctas,size,beside,latency_us,p90_us,back_to_back_us,GBps,load0_GBps,load1_GBps,window_ms,wrong,rc" },
    { "chain", experiment_chain,
      "mode,fresh,words,mover,ctas,size,min_us,p10,p25,median_us,p75,p90_us,in_a_row_us,wrong,blocked" },
    { "turns", experiment_turns, "mode,what,wait,item,depth,piece,size,r0,r1,r2,r3,ms,load_GBps,ms_after" },
    { "driver", experiment_driver, "mode,holder,call,held,returned,effect,rc,held_to_the_end,call_ms,holder_ms,blocked" },
    { "queued", experiment_queued, "mode,holder,chain,held,done,held_to_the_end,holders_kernel_done,ms" },
};

static const struct experiment *find_experiment(const char *name)
{
    for (size_t i = 0; i < sizeof experiments / sizeof *experiments; i++)
        if (!strcmp(experiments[i].name, name))
            return &experiments[i];
    return NULL;
}

static void take_list(char *list)
{
    parent.o.n_count = 0;
    for (char *t = strtok(list, ","); t && parent.o.n_count < 16; t = strtok(NULL, ","))
        parent.o.ns[parent.o.n_count++] = (int)argument_size("--n", t, 0, INT_MAX);
}

static void take_devices(char *pair)
{
    char *comma = strchr(pair, ',');

    if (!comma)
        argument_refuse("--dev", pair);
    *comma = '\0';
    parent.o.dev[0] = (int)argument_size("--dev", pair, 0, INT_MAX);
    parent.o.dev[1] = (int)argument_size("--dev", comma + 1, 0, INT_MAX);
}

static const struct argument table[] = {
    ARGUMENT_TEXT("mode", 0, &parent.o.mode),
    ARGUMENT_NUMBER("connections", 0, &parent.o.connections, 0, INT_MAX),
    ARGUMENT_NUMBER("copy-connections", 0, &parent.o.copy_connections, 0, INT_MAX),
    ARGUMENT_NUMBER("size", 0, &parent.o.size, 0, LONG_MAX),
    ARGUMENT_NUMBER("block", 0, &parent.o.block, 0, LONG_MAX),
    ARGUMENT_TAKEN("n", 0, take_list),
    ARGUMENT_TEXT("types", 0, &parent.o.types),
    ARGUMENT_TEXT("forms", 0, &parent.o.forms),
    ARGUMENT_NUMBER("fresh", 0, &parent.o.fresh, 0, INT_MAX),
    ARGUMENT_FLAG("serial", 0, &parent.o.serial),
    ARGUMENT_NUMBER("rule", 0, &parent.o.rule, 0, INT_MAX),
    ARGUMENT_NUMBER("rounds", 0, &parent.o.rounds, 0, INT_MAX),
    ARGUMENT_NUMBER("seed", 0, &parent.seed, 0, UINT32_MAX),
    ARGUMENT_REAL("limit", 0, &parent.o.limit, 0, 1e9),
    ARGUMENT_TEXT("csv", 0, &parent.o.csv_path),
    ARGUMENT_TEXT("cubin", 0, &parent.o.cubin),
    ARGUMENT_TAKEN("dev", 0, take_devices),
    { 0 },
};

static int open_all(const char *columns)
{
    static char self[4096];
    size_t bytes = (sizeof(struct shared) + 4095) & ~4095ul;

    parent.start = now();
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        return -1;
    parent.self = self;
    parent.memfd = memfd_create("channels", 0);
    if (parent.memfd < 0 || ftruncate(parent.memfd, (off_t)bytes))
        return -1;
    parent.sh = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, parent.memfd, 0);
    if (parent.sh == MAP_FAILED || !(parent.csv = fopen(parent.o.csv_path, "a")))
        return -1;
    fseek(parent.csv, 0, SEEK_END);
    if (ftell(parent.csv) == 0)
        fprintf(parent.csv, "%s\n", columns);
    return 0;
}

static const char usage[] = "usage: channels EXPERIMENT --csv FILE [OPTIONS]; see the comment at the top of channels.c\n";

int main(int argc, char **argv)
{
    const struct experiment *e = argc > 1 ? find_experiment(argv[1]) : NULL;

    if (argc == 9 && !strcmp(argv[1], "worker"))
        return worker_main(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]), argv[5], atol(argv[6]), atoi(argv[7]), argv[8]);
    arguments_parse("channels", usage, table, 1, 1, argc, argv);
    if (!e || !parent.o.csv_path)
        return fputs(usage, stderr), 2;
    parent.experiment = e->name;
    if (open_all(e->columns)) {
        perror("channels");
        return 1;
    }
    if (start_pair())
        printf("no pair\n");
    else
        e->run();
    fclose(parent.csv);
    kill_pair();
    printf("# %s: %.1f s, %d with wrong data\n", e->name, (now() - parent.start) * 1e-3, parent.unverified);
    return parent.unverified != 0;
}
