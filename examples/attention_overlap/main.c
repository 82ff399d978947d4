/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is overlap worth? Each rank has queries of its own and a part of the keys and values. For each layer it needs all ranks' parts, which
 * an allgather brings while it computes the layer before. On GPUs (one a rank) attention is cuDNN's, the copies are the copy engines', and NCCL
 * does the same beside it where it is found; on the CPU MPI_Iallgather does, where the program was built with Open MPI and started by its
 * mpirun. On the CPU copies cost computing time, so leave a core to them (--threads) if you can.
 *     cmake -S . -B build && cmake --build build && mpirun -n 2 build/attention_overlap --picture overlap
 * (-DCMAKE_PREFIX_PATH=DIRECTORY where the library was installed to a place of its own.) Between "hosts" of one machine, over TCP:
 *     mpirun --mca pml ob1 --mca btl tcp,self -n 1 -x PK_HOST_ID=a build/attention_overlap --threads 1 \
 *                                           : -n 1 -x PK_HOST_ID=b build/attention_overlap --threads 1
 */
#include "attention.h"

#include <getopt.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: attention_overlap [options]     (one process a rank, by mpirun or PK_RANK, PK_SIZE, PK_ROOT; alone a job of one)\n"
    "  --layers N      layers of a run (default: on the CPU 12, on a GPU 8)\n"
    "  --heads N       attention heads (8; 32)\n"
    "  --width N       numbers of a head, 256 at most (64; 128)\n"
    "  --queries N     queries of each rank (16; 2048)\n"
    "  --keys N        keys of each rank (1024; 4096)\n"
    "  --threads N     threads that compute, on each rank (default: this process's CPUs by the ranks of this host)\n"
    "  --rounds N      measured rounds (default 15)\n"
    "  --warmup N      rounds before them (default 3)\n"
    "  --compute C     cpu, gpu (cuDNN), kernel (a GPU, by a kernel of this program) or auto (default auto: GPUs where they are)\n"
    "  --alone         do not compare with Open MPI and NCCL\n"
    "  --picture NAME  draw NAME.png and NAME.svg (needs gnuplot)\n"
    "  --spoil         change one result before it is checked: the program must then fail\n"
    "  --help          this text\n";

struct options {
    struct shape shape;
    int rounds, warmup;
    const char *compute, *picture;
    bool alone, spoil;
};

static int positive(const char *text)
{
    char *end;
    long value = strtol(text, &end, 10);

    if (*end != '\0' || value < 1 || value > 1 << 24) {
        fprintf(stderr, "attention_overlap: '%s' is not a number that can be used here\n", text);
        exit(2);
    }
    return (int)value;
}

/* Where the option's number goes; NULL: it has none. */
static int *number_of(struct options *o, int option)
{
    const struct {
        int option, *number;
    } all[] = { { 'l', &o->shape.layers }, { 'h', &o->shape.heads },   { 'w', &o->shape.width }, { 'q', &o->shape.queries },
                { 'k', &o->shape.keys },   { 't', &o->shape.threads }, { 'r', &o->rounds },      { 'u', &o->warmup } };

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i].option == option)
            return all[i].number;
    return NULL;
}

static void parse(int argc, char **argv, struct options *o)
{
    static const struct option names[] = {
        { "layers", 1, NULL, 'l' },  { "heads", 1, NULL, 'h' },   { "width", 1, NULL, 'w' },   { "queries", 1, NULL, 'q' },
        { "keys", 1, NULL, 'k' },    { "threads", 1, NULL, 't' }, { "rounds", 1, NULL, 'r' },  { "warmup", 1, NULL, 'u' },
        { "compute", 1, NULL, 'c' }, { "alone", 0, NULL, 'a' },   { "picture", 1, NULL, 'p' }, { "spoil", 0, NULL, 's' },
        { "help", 0, NULL, 'H' },    { NULL, 0, NULL, 0 },
    };
    int option, *number;

    *o = (struct options){ .rounds = 15, .warmup = 3, .compute = "auto" };
    while ((option = getopt_long(argc, argv, "", names, NULL)) != -1) {
        number = number_of(o, option);
        if (number != NULL) {
            *number = positive(optarg);
            continue;
        }
        switch (option) {
        case 'c':
            o->compute = optarg;
            break;
        case 'a':
            o->alone = true;
            break;
        case 'p':
            o->picture = optarg;
            break;
        case 's':
            o->spoil = true;
            break;
        case 'H':
            fputs(usage, stdout);
            exit(0);
        default:
            fputs(usage, stderr);
            exit(2);
        }
    }
    if (optind < argc || o->rounds > ROUNDS_MAX) {
        fputs(usage, stderr);
        exit(2);
    }
}

/* This process's CPUs, shared with the ranks that sit on the same host; all ranks take the least. */
static int threads_here(const struct job *job)
{
    cpu_set_t set;
    int32_t here = 0, mine, least;

    for (int r = 0; r < job->shape.ranks; r++) {
        pk_path_t path = { .struct_size = sizeof path };

        must(pk_comm_path(job->comm, r, PK_MEM_HOST, PK_MEM_HOST, &path), "pk_comm_path");
        here += strcmp(path.transport, "self") == 0 || strcmp(path.transport, "shm") == 0;
    }
    CPU_ZERO(&set);
    mine = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) / here : 1;
    mine = mine > 1 ? mine : 1;
    must(pk_allreduce(&mine, &least, 1, PK_INT32, PK_MIN, job->comm, PK_BLOCKING), "pk_allreduce");
    return (int)least;
}

static void *memory(struct job *job, size_t elements)
{
    void *memory = job->compute->alloc(job->compute_state, elements);

    if (memory == NULL) {
        fprintf(stderr, "attention_overlap: rank %d has no memory\n", job->shape.rank);
        exit(1);
    }
    return memory;
}

static void fill(struct job *job, void *to, int kind, int layer, size_t elements)
{
    float scale = kind == 0 ? 1 / sqrtf((float)job->shape.width) : 1, *plain = malloc(elements * sizeof *plain);

    if (plain == NULL)
        exit(1);
    for (size_t i = 0; i < elements; i++)
        plain[i] = number(kind, layer, job->shape.rank, i) * scale;
    job->compute->put(job->compute_state, to, plain, elements);
    free(plain);
}

static void open_memory(struct job *job)
{
    const struct shape *s = &job->shape;
    size_t layers = (size_t)s->layers;

    job->gathered = calloc(3 * layers, sizeof *job->gathered);
    if (job->gathered == NULL)
        exit(1);
    job->queries = job->gathered + layers;
    job->outputs = job->queries + layers;
    for (int layer = 0; layer < s->layers; layer++) {
        job->gathered[layer] = memory(job, (size_t)s->ranks * shape_part(s));
        job->queries[layer] = memory(job, shape_queries(s));
        job->outputs[layer] = memory(job, shape_queries(s));
        fill(job, place(job, layer, s->rank), 1, layer, shape_part(s));
        fill(job, job->queries[layer], 0, layer, shape_queries(s));
    }
    /* Once before anything is under way: CUDA loads a kernel when it is first launched, and may wait for all streams to do so, also for those
     * that wait for a peer. */
    job->compute->begin(job->compute_state, job->queries[0], job->gathered[0], job->outputs[0]);
    job->compute->end(job->compute_state, NULL, NULL);
}

/* What was asked for, else what suits the computing. */
static struct shape shape_of(const struct options *o, const struct compute *compute)
{
    struct shape s = o->shape;
    const struct shape *d = &compute->defaults;

    s.layers = s.layers != 0 ? s.layers : d->layers;
    s.heads = s.heads != 0 ? s.heads : d->heads;
    s.width = s.width != 0 ? s.width : d->width;
    s.queries = s.queries != 0 ? s.queries : d->queries;
    s.keys = s.keys != 0 ? s.keys : d->keys;
    return s;
}

static void open_job(struct job *job, const struct options *o)
{
    const char *why = NULL;

    job->rounds = o->rounds;
    job->warmup = o->warmup;
    job->spoil = o->spoil;
    job->compute = compute_find(o->compute, &why);
    if (job->compute == NULL) {
        fprintf(stderr, "attention_overlap: --compute %s: %s\n", o->compute, why);
        exit(2);
    }
    job->shape = shape_of(o, job->compute);
    job->comm = join(&job->shape.rank, &job->shape.ranks);
    if (job->shape.threads == 0)
        job->shape.threads = threads_here(job);
    job->compute_state = job->compute->open(&job->shape, &why);
    if (job->compute_state == NULL) {
        fprintf(stderr, "attention_overlap: rank %d: %s\n", job->shape.rank, why);
        exit(2);
    }
    open_memory(job);
}

static void open_libraries(struct job *job, bool alone)
{
    static const struct {
        const char *name;
        bool (*open)(struct gather *gather, const struct job *job, const char **why);
    } others[] = { { "Open MPI", gather_mpi }, { "NCCL", gather_nccl } };

    gather_pickle(&job->libraries[job->library_count++], job);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        const char *why = "--alone";

        if (!alone && others[i].open(&job->libraries[job->library_count], job, &why))
            job->library_count++;
        else if (job->shape.rank == 0)
            printf("%s is not compared with: %s\n", others[i].name, why);
    }
}

static void close_job(struct job *job)
{
    for (int l = job->library_count - 1; l >= 0; l--)
        job->libraries[l].close(job->libraries[l].state);
    for (int i = 0; i < 3 * job->shape.layers; i++)
        job->compute->free(job->compute_state, job->gathered[i]);
    free(job->gathered);
    job->compute->close(job->compute_state);
    must(pk_comm_destroy(job->comm), "pk_comm_destroy");
}

int main(int argc, char **argv)
{
    static struct job job;
    struct options o;
    size_t wrong = 0;

    parse(argc, argv, &o);
    open_job(&job, &o);
    open_libraries(&job, o.alone);
    for (int l = 0; l < job.library_count && wrong == 0; l++) {
        wrong = check(&job, &job.libraries[l]);
        if (job.shape.rank == 0 && wrong > 0)
            fprintf(stderr, "attention_overlap: with %s %zu elements are wrong\n", job.libraries[l].name, wrong);
    }
    if (wrong == 0) {
        measure(&job);
        report(&job);
        if (job.shape.rank == 0 && o.picture != NULL && !picture(&job, o.picture))
            printf("No picture: gnuplot is not here, or could not write it.\n");
        else if (job.shape.rank == 0 && o.picture != NULL)
            printf("The picture is %s.png (and .svg).\n", o.picture);
    }
    close_job(&job);
    return wrong > 0;
}
