/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a GPU does in an interval. Cycles: a kernel before and one after it write every multiprocessor's counter and the time. Clock and
 * power by NVML, opened at run time: a thread reads them all the time and counts those readings that are wanted.
 */
#include "overlap.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "ptx.h"

#define MULTIPROCESSORS_MAX 1024
#define STAMP_THREADS 64

enum { CLOCK_SM = 1, FIELD_POWER_INSTANT = 186 };

/* Of nvml.h: a field to be read, and what was read. */
struct field {
    unsigned id, scope;
    long long timestamp, latency_us;
    int type, code;
    union {
        unsigned number;
        double floating;
        unsigned long long wide;
    } value;
};

static struct {
    int (*init)(void);
    int (*by_bus_id)(const char *bus_id, void **device);
    int (*clock)(void *device, int which, unsigned *mhz);
    int (*power)(void *device, unsigned *milliwatts);
    int (*fields)(void *device, int count, struct field *fields);
    int (*limit)(void *device, unsigned *milliwatts);
    void *device; /* NULL: nothing can be read */
} nvml;

static gpu_kernel_t stamp_kernel;
static uint64_t (*stamps)[MULTIPROCESSORS_MAX][2]; /* [beginning, end] in pinned host memory */
static int blocks;
static pthread_t thread;
static bool thread_runs;
static atomic_bool leaving, wanted;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static double mhz_sum, watts_sum;
static unsigned mhz_count, watts_count;

static double read_watts(void)
{
    struct field field = { .id = FIELD_POWER_INSTANT };
    unsigned milliwatts;

    if (nvml.fields != NULL && nvml.fields(nvml.device, 1, &field) == 0 && field.code == 0 && field.value.number > 0)
        return field.value.number * 1e-3;
    if (nvml.power != NULL && nvml.power(nvml.device, &milliwatts) == 0)
        return milliwatts * 1e-3;
    return NAN;
}

static void *sample(void *argument)
{
    while (!atomic_load(&leaving)) {
        bool before = atomic_load(&wanted);
        unsigned mhz = 0;
        bool clock_read = nvml.clock(nvml.device, CLOCK_SM, &mhz) == 0;
        double watts = read_watts();

        pthread_mutex_lock(&lock);
        if (before && atomic_load(&wanted)) { /* not when it began or ended meanwhile */
            mhz_sum += mhz;
            mhz_count += clock_read;
            watts_sum += isnan(watts) ? 0 : watts;
            watts_count += !isnan(watts);
        }
        pthread_mutex_unlock(&lock);
        usleep(4000);
    }
    return argument;
}

static void *entry(void *library, const char *name)
{
    return library != NULL ? dlsym(library, name) : NULL;
}

static void open_nvml(struct overlap_run *run)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    char bus_id[32] = "";

    *(void **)&nvml.init = entry(library, "nvmlInit_v2");
    *(void **)&nvml.by_bus_id = entry(library, "nvmlDeviceGetHandleByPciBusId_v2");
    *(void **)&nvml.clock = entry(library, "nvmlDeviceGetClockInfo");
    *(void **)&nvml.power = entry(library, "nvmlDeviceGetPowerUsage");
    *(void **)&nvml.fields = entry(library, "nvmlDeviceGetFieldValues");
    *(void **)&nvml.limit = entry(library, "nvmlDeviceGetEnforcedPowerLimit");
    gpu_bus_id(run->gpu, bus_id, sizeof bus_id);
    if (nvml.init == NULL || nvml.by_bus_id == NULL || nvml.clock == NULL || nvml.init() != 0 ||
        nvml.by_bus_id(bus_id, &nvml.device) != 0)
        nvml.device = NULL;
}

void overlap_samples_open(struct overlap_run *run)
{
    blocks = gpu_multiprocessors(run->gpu);
    if (blocks > MULTIPROCESSORS_MAX)
        overlap_fail("%d multiprocessors are more than expected", blocks);
    stamp_kernel = gpu_kernel_load(ptx_stamp, PTX_STAMP);
    stamps = gpu_host_alloc(2 * sizeof *stamps);
    open_nvml(run);
    atomic_store(&leaving, false);
    thread_runs = nvml.device != NULL && pthread_create(&thread, NULL, sample, NULL) == 0;
}

void overlap_samples_close(void)
{
    atomic_store(&leaving, true);
    if (thread_runs)
        pthread_join(thread, NULL);
    gpu_host_free(stamps);
}

void overlap_stamp(struct overlap_run *run, int end)
{
    uint64_t(*table)[2] = stamps[end];
    void *params[] = { &table };

    for (int i = 0; i < MULTIPROCESSORS_MAX; i++)
        table[i][0] = table[i][1] = 0;
    gpu_kernel_launch(stamp_kernel, blocks, STAMP_THREADS, params, run->compute_stream);
}

void overlap_sampling(bool on)
{
    pthread_mutex_lock(&lock);
    if (on && !atomic_load(&wanted)) {
        mhz_sum = watts_sum = 0;
        mhz_count = watts_count = 0;
    }
    atomic_store(&wanted, on);
    pthread_mutex_unlock(&lock);
}

struct overlap_samples overlap_samples_take(void)
{
    struct overlap_samples s = { 0 };
    int n = 0;

    for (int i = 0; i < MULTIPROCESSORS_MAX; i++) {
        if (stamps[0][i][1] == 0 || stamps[1][i][1] <= stamps[0][i][1])
            continue;
        s.cycles += (double)(stamps[1][i][0] - stamps[0][i][0]);
        s.us += (double)(stamps[1][i][1] - stamps[0][i][1]) * 1e-3;
        n++;
    }
    s.cycles = n > 0 ? s.cycles / n : NAN;
    s.us = n > 0 ? s.us / n : NAN;
    pthread_mutex_lock(&lock);
    s.nvml_mhz = mhz_count > 0 ? mhz_sum / mhz_count : NAN;
    s.watts = watts_count > 0 ? watts_sum / watts_count : NAN;
    pthread_mutex_unlock(&lock);
    return s;
}

double overlap_power_limit(void)
{
    unsigned milliwatts;

    return nvml.device != NULL && nvml.limit != NULL && nvml.limit(nvml.device, &milliwatts) == 0 ? milliwatts * 1e-3 : NAN;
}
