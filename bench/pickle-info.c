/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle-info: what the installed library is, what this host offers it, and why. Needs no launcher: it makes communicators of two ranks
 * in this process, by a unique id. When it is started by one (mpirun -n 2 pickle-info), it says how the ranks of the job reach one another.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <pickle/pickle.h>

#include "arguments.h"
#include "cuda_dl.h"
#include "info_startup.h"

#define INIT_TIMEOUT_MS 20000

struct variable {
    const char *name, *meaning;
};

static const struct variable settings[] = {
    { "PK_LOG", "none, error, warn (default), info, debug" },
    { "PK_TIMEOUT_MS", "deadline of operations and of init; 600000 by default" },
    { "PK_SM_POLICY", "default, none, or a number of multiprocessors" },
    { "PK_UNPACK", "how GPU memory gets what arrives through the host: copy (default), kernel" },
    { "PK_ALGORITHM", "of collectives: ring, or allreduce=ring,broadcast=tree; by size by default" },
    { "PK_SWITCHML", "aggregator of PK_ALGORITHM=allreduce=switchml: host:port, or a file" },
    { "PK_SWITCHML_FALLBACK", "1: what it cannot do goes without it" },
    { "PK_P2P_LEVEL", "farthest GPUs that copy directly: LOC NVL PIX PXB PHB NODE SYS" },
    { "PK_THREAD_CPUS", "CPUs of the library's own threads" },
    { "PK_SOCKETS", "TCP connections for data between two ranks of different hosts" },
    { "PK_CHUNK_BYTES", "most that one of them carries at a time" },
    { "PK_WINDOW", "chunks that one of them may have on its way" },
    { "PK_RETRY_MS", "how long a broken connection is tried again" },
    { "PK_QPS", "RDMA: queue pairs for data to each peer; 2 by default" },
    { "PK_RDMA_DEVICES", "RDMA: devices that may be used, mlx5_0,mlx5_1:2 or none; all by default" },
    { "PK_GID_INDEX", "RDMA: entry of the port's table of addresses; chosen by default" },
    { "PK_IFNAME", "network interfaces, eth0,eth1" },
    { "PK_PORTS", "TCP ports to listen at, first-last; any by default" },
    { "PK_HOST_ID", "joins containers that share a machine" },
    { "PK_RUN_DIR", "directory that they share, where their networks are apart" },
    { "PK_SECRET_FILE", "secret that ranks prove to know" },
    { "PK_INSECURE", "1: serve other hosts without a secret" },
    { "CUDA_VISIBLE_DEVICES", "GPUs that this process sees" },
    { "CUDA_DEVICE_MAX_CONNECTIONS", "hardware queues of this process; 8 by default" },
};

static const struct variable launchers[] = {
    { "PK_RANK", "this rank" },
    { "PK_SIZE", "number of ranks" },
    { "PK_ROOT", "host:port of rank 0" },
    { "RANK", "this rank, from torchrun" },
    { "WORLD_SIZE", "number of ranks, from torchrun" },
    { "MASTER_ADDR", "host of rank 0, from torchrun" },
    { "MASTER_PORT", "torch's port there; this library's is 1013 or 2026 above" },
    { "PMIX_RANK", "this rank, from mpirun or srun" },
    { "PMIX_NAMESPACE", "the job" },
};

static void print_variables(const char *title, const struct variable *variables, size_t n)
{
    printf("%s\n", title);
    for (size_t i = 0; i < n; i++) {
        const char *value = getenv(variables[i].name);

        printf("  %-28s %-16s %s\n", variables[i].name, value != NULL ? value : "-", variables[i].meaning);
    }
}

static bool launched(void)
{
    return getenv("PK_RANK") != NULL || (getenv("WORLD_SIZE") != NULL && getenv("MASTER_PORT") != NULL) ||
           (getenv("PMIX_RANK") != NULL && getenv("PMIX_NAMESPACE") != NULL);
}

static void print_error(const char *what, pk_result_t result)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    pk_last_error(&info);
    printf("  %s: %s %s\n", what, pk_strerror(result), info.text);
}

static void print_version(void)
{
    int version = pk_version();

    printf("pickle %d.%d.%d (this program was built for %d.%d.%d)\n", version / 10000, version / 100 % 100, version % 100,
           PK_VERSION_MAJOR, PK_VERSION_MINOR, PK_VERSION_PATCH);
    printf("  program built with compiler %s\n", __VERSION__);
}

/* The text that one of the library's dumps writes, whatever its length; indented. */
static void print_dump(const char *title, pk_result_t (*dump)(const pk_comm_t *, char *, size_t, size_t *), const pk_comm_t *comm)
{
    size_t bytes = 0;
    char *text = NULL;
    pk_result_t result = dump(comm, NULL, 0, &bytes);

    puts(title);
    if (result == PK_OK)
        text = malloc(bytes);
    if (text != NULL)
        result = dump(comm, text, bytes, NULL);
    if (result != PK_OK)
        print_error("the library cannot tell", result);
    for (char *line = text != NULL ? strtok(text, "\n") : NULL; line != NULL; line = strtok(NULL, "\n"))
        printf("  %s\n", line);
    free(text);
}

/* Two ranks in one thread, as `nonblocking` allows: start both, then wait for both. */
static pk_result_t open_pair(pk_comm_t *comms[2], int device0, int device1)
{
    pk_comm_config_t configs[2] = { PK_COMM_CONFIG_INIT, PK_COMM_CONFIG_INIT };
    pk_unique_id_t id;
    pk_result_t result = pk_get_unique_id(&id);

    configs[0].device = device0;
    configs[1].device = device1;
    for (int r = 0; r < 2 && (result == PK_OK || result == PK_IN_PROGRESS); r++) {
        configs[r].nonblocking = 1;
        configs[r].timeout_ms = INIT_TIMEOUT_MS;
        result = pk_comm_init_rank(&comms[r], 2, r, &id, &configs[r]);
    }
    for (int r = 0; r < 2 && (result == PK_OK || result == PK_IN_PROGRESS); r++) {
        do {
            usleep(500);
            result = pk_comm_async_error(comms[r]);
        } while (result == PK_IN_PROGRESS);
    }
    return result;
}

static void close_pair(pk_comm_t *comms[2])
{
    pk_comm_destroy(comms[0]);
    pk_comm_destroy(comms[1]);
}

static void print_path(const pk_comm_t *comm, int peer, pk_mem_kind_t source, pk_mem_kind_t target)
{
    static const char *const kinds[] = { "host", "device" };
    pk_path_t path = { .struct_size = sizeof path };
    pk_result_t result = pk_comm_path(comm, peer, source, target, &path);

    if (result != PK_OK) {
        print_error("pk_comm_path", result);
        return;
    }
    printf("  to rank %d, %-6s -> %-6s  %-8s %-14s", peer, kinds[source], kinds[target], path.transport, path.device);
    if (path.expected_gbps > 0)
        printf(" %6.1f GB/s", path.expected_gbps);
    printf("  %s\n", path.reason);
}

static void print_paths(const pk_comm_t *comm, bool device)
{
    int size;

    if (pk_comm_size(comm, &size) != PK_OK)
        return;
    for (int peer = 0; peer < size; peer++) {
        print_path(comm, peer, PK_MEM_HOST, PK_MEM_HOST);
        if (!device)
            continue;
        print_path(comm, peer, PK_MEM_HOST, PK_MEM_DEVICE);
        print_path(comm, peer, PK_MEM_DEVICE, PK_MEM_HOST);
        print_path(comm, peer, PK_MEM_DEVICE, PK_MEM_DEVICE);
    }
}

static void print_explanation(const pk_comm_t *comm, const char *name, pk_op_kind_t op, size_t count, pk_mem_kind_t kind)
{
    pk_explanation_t e = { .struct_size = sizeof e };
    pk_result_t result = pk_explain(comm, op, count, PK_F32, kind, 1, 0, &e);

    if (result != PK_OK)
        print_error(name, result);
    else
        printf("  %-10s %10zu B  %-12s over %-10s %3llu steps %3d SMs  %s\n", name, count * sizeof(float), e.algorithm,
               e.transports, (unsigned long long)e.steps, e.sms, e.reason);
}

static void print_explanations(const pk_comm_t *comm, pk_mem_kind_t kind)
{
    static const size_t counts[] = { 2, 16384, 4 << 20 };

    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        print_explanation(comm, "allgather", PK_OP_ALLGATHER, counts[i], kind);
        print_explanation(comm, "allreduce", PK_OP_ALLREDUCE, counts[i], kind);
    }
}

/* Does the library itself take the GPU? A communicator on it, and on the next one, tells. */
static int print_gpu(int gpu)
{
    pk_comm_t *comms[2] = { NULL, NULL };
    int next = (gpu + 1) % gpu_count();
    char name[96] = "";
    pk_result_t result;

    gpu_name(gpu, name, sizeof name);
    printf("GPU %d: %s, %d multiprocessors; rank 0 on it, rank 1 on GPU %d\n", gpu, name, gpu_multiprocessors(gpu), next);
    result = open_pair(comms, PK_DEVICE_CUDA(gpu), PK_DEVICE_CUDA(next));
    if (result == PK_OK) {
        print_paths(comms[0], true);
        print_explanations(comms[0], PK_MEM_DEVICE);
    } else {
        print_error("the library cannot use it", result);
    }
    close_pair(comms);
    return result != PK_OK;
}

static int print_host(void)
{
    pk_comm_t *comms[2] = { NULL, NULL };
    pk_result_t result;

    puts("host memory, two ranks in this process");
    result = open_pair(comms, PK_DEVICE_HOST, PK_DEVICE_HOST);
    if (result == PK_OK) {
        print_paths(comms[0], false);
        print_explanations(comms[0], PK_MEM_HOST);
        print_dump("settings of that communicator", pk_config_dump, comms[0]);
    } else {
        print_error("a communicator", result);
    }
    close_pair(comms);
    return result != PK_OK;
}

/* Under a launcher: the whole job. Rank 0 speaks. */
static int print_job(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *comm = NULL;
    int rank = 0;
    int size = 0;
    int32_t token = 0;
    int32_t *tokens;
    pk_result_t result;

    config.device = PK_DEVICE_HOST;
    result = pk_comm_init(&comm, &config);
    if (result != PK_OK) {
        print_error("pk_comm_init", result);
        return 1;
    }
    pk_comm_rank(comm, &rank);
    pk_comm_size(comm, &size);
    tokens = calloc((size_t)size, sizeof *tokens);
    if (rank == 0) {
        print_version();
        print_variables("launcher", launchers, sizeof launchers / sizeof launchers[0]);
        printf("job of %d ranks, seen by rank 0\n", size);
        print_paths(comm, false);
        print_explanations(comm, PK_MEM_HOST);
        print_dump("topology", pk_topology_dump, comm);
        print_dump("settings", pk_config_dump, comm);
    }
    /* Nobody leaves while rank 0 looks. */
    if (tokens == NULL || pk_allgather(&token, tokens, 1, PK_INT32, comm, PK_BLOCKING) != PK_OK)
        print_error("pk_allgather", PK_ERR_MEMORY);
    free(tokens);
    return pk_comm_destroy(comm) == PK_OK ? 0 : 1;
}

static int startup_ranks;

static const char usage[] = "usage: pickle-info [--startup N]    what there is, alone or under torchrun, mpirun or srun\n"
                            "  --startup N   how long N processes need to make a communicator, and how much memory\n"
                            "  -h, --help    this text\n";

static const struct argument table[] = { ARGUMENT_NUMBER("startup", 0, &startup_ranks, 1, STARTUP_RANKS_MAX), { 0 } };

int main(int argc, char **argv)
{
    char host[128] = "?";
    int failed;

    if (argc == 5 && strcmp(argv[1], "--startup-rank") == 0)
        return startup_rank(argv[2], argv[3], argv[4]);
    arguments_parse("pickle-info", usage, table, 0, 0, argc, argv);
    if (startup_ranks > 0)
        return startup_print(startup_ranks);
    if (launched())
        return print_job();
    gethostname(host, sizeof host - 1);
    print_version();
    printf("host %s, %ld CPUs\n", host, sysconf(_SC_NPROCESSORS_ONLN));
    puts(
        "launcher: none found (PK_RANK, torchrun, PMIx); start ranks by torchrun, mpirun, srun, or PK_RANK, PK_SIZE and PK_ROOT");
    print_variables("settings", settings, sizeof settings / sizeof settings[0]);
    print_dump("topology", pk_topology_dump, NULL);
    failed = print_host();
    if (gpu_absent() != NULL)
        printf("GPUs: none, %s\n", gpu_absent());
    for (int gpu = 0; gpu < gpu_count(); gpu++)
        failed |= print_gpu(gpu);
    return failed;
}
