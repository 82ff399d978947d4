/* SPDX-License-Identifier: Apache-2.0 */
#include "bed.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#define MINUTE_MS 60000
#define FD_NAME \
    "NCCL_TEST_SHARED" /* the descriptor of the shared memory, its role and number in the environment of those that are started */
#define ROLE_NAME "NCCL_TEST_ROLE"
#define NUMBER_NAME "NCCL_TEST_NUMBER"

extern char **environ;

static atomic_int passed, failed;

bool check(bool ok, const char *format, ...)
{
    char text[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    atomic_fetch_add(ok ? &passed : &failed, 1);
    printf("%s %s\n", ok ? "PASS" : "FAIL", text);
    fflush(stdout);
    return ok;
}

int bed_end(void)
{
    printf("%d passed, %d failed\n", atomic_load(&passed), atomic_load(&failed));
    return atomic_load(&failed) > 0 || atomic_load(&passed) == 0;
}

void must_succeed(pkn_result_t result, const char *call)
{
    if (result == PKN_SUCCESS)
        return;
    printf("FAIL %s: %s: %s\n", call, ncclGetErrorString(result), ncclGetLastError(NULL));
    fflush(stdout);
    exit(1);
}

bool bed_has_gpus(int gpus)
{
    if (gpu_absent() == NULL && gpu_count() >= gpus)
        return true;
    printf("SKIPPED: %d GPUs are needed: %s\n", gpus, gpu_absent() != NULL ? gpu_absent() : "there are fewer");
    return false;
}

float *bed_upload(const float *host, size_t count)
{
    float *device = gpu_alloc(count * sizeof *host);

    gpu_copy(device, host, count * sizeof *host);
    return device;
}

void bed_download(float *host, const float *device, size_t count)
{
    gpu_copy(host, device, count * sizeof *host);
}

float *bed_ones(void)
{
    float host[BED_ONES];

    for (size_t i = 0; i < BED_ONES; i++)
        host[i] = 1;
    return bed_upload(host, BED_ONES);
}

bool bed_adds_up(pkn_comm_t comm, gpu_stream_t stream, const float *in, float *out, int size)
{
    float host[BED_ONES];

    if (ncclAllReduce(in, out, BED_ONES, PKN_FLOAT32, PKN_SUM, comm, stream) != PKN_SUCCESS || !bed_idle(stream))
        return false;
    bed_download(host, out, BED_ONES);
    for (size_t i = 0; i < BED_ONES; i++)
        if (host[i] != (float)size)
            return false;
    return true;
}

double bed_now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

bool bed_idle(gpu_stream_t stream)
{
    double until = bed_now_ms() + MINUTE_MS;
    int code = gpu_stream_query(stream);

    for (; code == GPU_NOT_READY && bed_now_ms() < until; code = gpu_stream_query(stream))
        usleep(200);
    return code == 0;
}

pkn_result_t bed_settled(pkn_comm_t comm)
{
    double until = bed_now_ms() + MINUTE_MS;
    pkn_result_t state = PKN_IN_PROGRESS;

    while (state == PKN_IN_PROGRESS && bed_now_ms() < until) {
        MUST(ncclCommGetAsyncError(comm, &state));
        usleep(200);
    }
    return state;
}

int bed_free_port(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &bytes) != 0)
        exit(2);
    close(fd);
    return ntohs(address.sin_port);
}

/* ---- processes ---- */

struct bed_shared *bed_shared(void)
{
    static struct bed_shared *shared;
    const char *given = getenv(FD_NAME);
    char text[16];
    int fd;

    if (shared != NULL)
        return shared;
    fd = given != NULL ? atoi(given) : memfd_create("nccl-test", 0);
    if (fd < 0 || (given == NULL && ftruncate(fd, sizeof *shared) != 0))
        exit(2);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED)
        exit(2);
    snprintf(text, sizeof text, "%d", fd);
    setenv(FD_NAME, text, 1);
    return shared;
}

pid_t bed_start(const char *role, int number)
{
    char name[] = "/proc/self/exe", text[16], *argv[] = { name, NULL };
    pid_t pid;

    (void)bed_shared();
    fflush(stdout);
    snprintf(text, sizeof text, "%d", number);
    setenv(ROLE_NAME, role, 1);
    setenv(NUMBER_NAME, text, 1);
    if (posix_spawn(&pid, name, NULL, NULL, argv, environ) != 0)
        exit(2);
    unsetenv(ROLE_NAME);
    return pid;
}

int bed_wait(pid_t pid)
{
    double until = bed_now_ms() + MINUTE_MS;
    int status;

    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (bed_now_ms() > until) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return -1;
        }
        usleep(2000);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

const char *bed_role(int *number)
{
    const char *role = getenv(ROLE_NAME), *text = getenv(NUMBER_NAME);

    *number = text != NULL ? atoi(text) : 0;
    return role;
}

void bed_await(_Atomic int *word, int least)
{
    double until = bed_now_ms() + MINUTE_MS;

    while (atomic_load(word) < least) {
        if (bed_now_ms() > until) {
            printf("FAIL waited a minute for another process\n");
            exit(1);
        }
        usleep(500);
    }
}
