/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices that are poorer, or break: preloaded, it stands between the library and libibverbs, where the library looks its functions up.
 *   SHIM_NO_INLINE=1      no queue pair carries bytes in its requests
 *   SHIM_MAX_MR_BYTES=N   one registration covers at most so many
 *   SHIM_MAX_MRS=N        so many registrations at a time; more fail with ENOMEM
 *   SHIM_DMABUF=1         what is registered as a dma-buf is a memfd: its pages are. Without it no device takes a dma-buf. Says how many were
 *   SHIM_KILL_QP=MS:K,... MS milliseconds after queue pair number K (from 0, in the order in which they are made) was made, it is put
 *                         into error
 *   SHIM_KILL_EVERY=MS    that often one of those that have been connected for a second is put into error, in turn. (One that is not
 *                         connected yet fails on no real device, and cannot be connected then.)
 */
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static void *(*real_dlsym)(void *handle, const char *name);
static struct ibv_qp *(*real_create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
static int (*real_modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
static int (*real_destroy_qp)(struct ibv_qp *qp);
static int (*real_query_device)(struct ibv_context *context, struct ibv_device_attr *attr);
static struct ibv_mr *(*real_reg_mr_iova2)(struct ibv_pd *pd, void *addr, size_t bytes, uint64_t iova, unsigned int access);
static int (*real_dereg_mr)(struct ibv_mr *mr);
static struct ibv_mr *(*real_reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access);
static atomic_int mrs, qps, dmabufs;

struct kill {
    struct ibv_qp *qp;
    int number;
    useconds_t us;
};

/* Those that are there, so that none is touched when it has been destroyed. */
#define LIVE_MAX 256
#define KILL_AGE_MS 1000

struct live {
    struct ibv_qp *qp;
    int number;
    long since_ms; /* connected; 0: not yet */
};

static struct live live[LIVE_MAX];
static pthread_mutex_t live_mutex = PTHREAD_MUTEX_INITIALIZER;

static long number_of(const char *name)
{
    const char *value = getenv(name);

    return value != NULL ? atol(value) : 0;
}

static long now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void put_into_error(const struct live *one)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

    printf("shim: queue pair %d is put into error: %d\n", one->number, real_modify_qp(one->qp, &attr, IBV_QP_STATE));
    fflush(stdout);
}

static void *kill_later(void *arg)
{
    struct kill *kill = arg;

    usleep(kill->us);
    pthread_mutex_lock(&live_mutex);
    for (int i = 0; i < LIVE_MAX; i++)
        if (live[i].qp == kill->qp && live[i].number == kill->number)
            put_into_error(&live[i]);
    pthread_mutex_unlock(&live_mutex);
    free(kill);
    return NULL;
}

static void *kill_every(void *arg)
{
    int turn = 0;

    (void)arg;
    for (;;) {
        usleep((useconds_t)number_of("SHIM_KILL_EVERY") * 1000);
        pthread_mutex_lock(&live_mutex);
        for (int i = 0; i < LIVE_MAX; i++) {
            const struct live *one = &live[(turn + i) % LIVE_MAX];

            if (one->qp == NULL || one->since_ms == 0 || now_ms() - one->since_ms < KILL_AGE_MS)
                continue;
            put_into_error(one);
            turn = (turn + i + 1) % LIVE_MAX;
            break;
        }
        pthread_mutex_unlock(&live_mutex);
    }
    return NULL;
}

struct doom {
    struct live them[LIVE_MAX];
    unsigned us;
};

static void *fail_them(void *arg)
{
    struct doom *doom = arg;

    usleep(doom->us);
    pthread_mutex_lock(&live_mutex);
    for (int i = 0; i < LIVE_MAX; i++)
        if (live[i].qp != NULL && live[i].qp == doom->them[i].qp && live[i].number == doom->them[i].number)
            put_into_error(&live[i]);
    pthread_mutex_unlock(&live_mutex);
    free(doom);
    return NULL;
}

/* For the program itself: how many were made so far. */
int shim_made(void);
int shim_made(void)
{
    return atomic_load(&qps);
}

/* Those that are there now and have numbers from `first` up to `end` are put into error so many microseconds from now; 0: before this returns. */
void shim_fail(unsigned us, int first, int end);
void shim_fail(unsigned us, int first, int end)
{
    struct doom *doom = calloc(1, sizeof *doom);
    pthread_t thread;

    if (doom == NULL)
        abort();
    pthread_mutex_lock(&live_mutex);
    for (int i = 0; i < LIVE_MAX; i++)
        if (live[i].qp != NULL && live[i].number >= first && live[i].number < end)
            doom->them[i] = live[i];
    pthread_mutex_unlock(&live_mutex);
    doom->us = us;
    if (us == 0)
        (void)fail_them(doom);
    else if (pthread_create(&thread, NULL, fail_them, doom) == 0)
        pthread_detach(thread);
    else
        abort();
}

void shim_fail_all(unsigned us);
void shim_fail_all(unsigned us)
{
    shim_fail(us, 0, INT_MAX);
}

static void start_killing(void)
{
    pthread_t thread;

    if (number_of("SHIM_KILL_EVERY") > 0 && pthread_create(&thread, NULL, kill_every, NULL) == 0)
        pthread_detach(thread);
}

static void plan_death(struct ibv_qp *qp, int number)
{
    const char *at = getenv("SHIM_KILL_QP");

    while (at != NULL && *at != '\0') {
        char *end;
        long ms = strtol(at, &end, 10), which = *end == ':' ? strtol(end + 1, &end, 10) : -1;
        struct kill *kill = which == number ? malloc(sizeof *kill) : NULL;
        pthread_t thread;

        if (kill != NULL) {
            *kill = (struct kill){ .qp = qp, .number = number, .us = (useconds_t)ms * 1000 };
            if (pthread_create(&thread, NULL, kill_later, kill) == 0)
                pthread_detach(thread);
        }
        at = *end == ',' ? end + 1 : NULL;
    }
}

static void enlist(struct ibv_qp *qp, int number)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int i = 0;

    pthread_once(&once, start_killing);
    pthread_mutex_lock(&live_mutex);
    while (i < LIVE_MAX && live[i].qp != NULL)
        i++;
    if (i < LIVE_MAX)
        live[i] = (struct live){ .qp = qp, .number = number };
    pthread_mutex_unlock(&live_mutex);
    plan_death(qp, number);
}

static int (*real_post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
static int lost_first, lost_end;

/* For the program itself: what is posted from now on to those that have numbers from `first` up to `end` is neither done nor fails. */
void shim_lose(int first, int end);
void shim_lose(int first, int end)
{
    pthread_mutex_lock(&live_mutex);
    lost_first = first;
    lost_end = end;
    pthread_mutex_unlock(&live_mutex);
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    bool is_lost = false;

    pthread_mutex_lock(&live_mutex);
    for (int i = 0; i < LIVE_MAX; i++)
        is_lost |= live[i].qp == qp && live[i].number >= lost_first && live[i].number < lost_end;
    pthread_mutex_unlock(&live_mutex);
    return is_lost ? 0 : real_post_send(qp, wr, bad);
}

/* ibv_post_send is an inline function that goes through the device's own table. */
static void stand_between(struct ibv_context *context)
{
    pthread_mutex_lock(&live_mutex);
    if (context->ops.post_send != post_send) {
        real_post_send = context->ops.post_send;
        context->ops.post_send = post_send;
    }
    pthread_mutex_unlock(&live_mutex);
}

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    struct ibv_qp *qp;

    if (number_of("SHIM_NO_INLINE") != 0 && attr->cap.max_inline_data > 0) {
        errno = EINVAL;
        return NULL;
    }
    stand_between(pd->context);
    qp = real_create_qp(pd, attr);
    if (qp != NULL)
        enlist(qp, atomic_fetch_add(&qps, 1));
    return qp;
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    int error = real_modify_qp(qp, attr, mask);

    pthread_mutex_lock(&live_mutex);
    for (int i = 0; i < LIVE_MAX && error == 0; i++)
        if (live[i].qp == qp && (mask & IBV_QP_STATE) != 0 && attr->qp_state == IBV_QPS_RTS)
            live[i].since_ms = now_ms();
    pthread_mutex_unlock(&live_mutex);
    return error;
}

static int destroy_qp(struct ibv_qp *qp)
{
    pthread_mutex_lock(&live_mutex);
    for (int i = 0; i < LIVE_MAX; i++)
        if (live[i].qp == qp)
            live[i].qp = NULL;
    pthread_mutex_unlock(&live_mutex);
    return real_destroy_qp(qp);
}

static int query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    int error = real_query_device(context, attr);

    if (error == 0 && number_of("SHIM_MAX_MR_BYTES") > 0)
        attr->max_mr_size = (uint64_t)number_of("SHIM_MAX_MR_BYTES");
    return error;
}

static struct ibv_mr *reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t bytes, uint64_t iova, unsigned int access)
{
    long most = number_of("SHIM_MAX_MRS"), longest = number_of("SHIM_MAX_MR_BYTES");
    struct ibv_mr *mr = NULL;

    /* a control channel's rings are shorter than any device's limit */
    if (longest > 0 && bytes > (size_t)longest && bytes > 1 << 20)
        errno = EINVAL;
    else if (most > 0 && atomic_load(&mrs) >= most)
        errno = ENOMEM;
    else
        mr = real_reg_mr_iova2(pd, addr, bytes, iova, access);
    if (mr != NULL)
        atomic_fetch_add(&mrs, 1);
    return mr;
}

static struct ibv_mr *reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
    struct ibv_mr *mr;
    void *map;

    if (number_of("SHIM_DMABUF") == 0) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    map = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
    if (map == MAP_FAILED)
        return NULL;
    mr = reg_mr_iova2(pd, map, length, iova, (unsigned)access);
    munmap(map, length); /* the registration holds the pages */
    if (mr != NULL)
        atomic_fetch_add(&dmabufs, 1);
    return mr;
}

static __attribute__((destructor)) void say_dmabufs(void)
{
    if (atomic_load(&dmabufs) > 0)
        printf("shim: %d dma-bufs were registered\n", atomic_load(&dmabufs));
}

static int dereg_mr(struct ibv_mr *mr)
{
    atomic_fetch_sub(&mrs, 1);
    return real_dereg_mr(mr);
}

typedef void (*function)(void);

static const struct {
    const char *name;
    void *real; /* the variable */
    function instead;
} functions[] = {
    { "ibv_create_qp", &real_create_qp, (function)create_qp },
    { "ibv_destroy_qp", &real_destroy_qp, (function)destroy_qp },
    { "ibv_modify_qp", &real_modify_qp, (function)modify_qp },
    { "ibv_query_device", &real_query_device, (function)query_device },
    { "ibv_reg_mr_iova2", &real_reg_mr_iova2, (function)reg_mr_iova2 },
    { "ibv_reg_dmabuf_mr", &real_reg_dmabuf_mr, (function)reg_dmabuf_mr },
    { "ibv_dereg_mr", &real_dereg_mr, (function)dereg_mr },
};

/* By memcpy, because C has no conversion between functions' and objects' addresses. */
static void find_real_dlsym(void)
{
    void *found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");

    if (found == NULL)
        found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (found == NULL)
        abort();
    memcpy(&real_dlsym, &found, sizeof found);
}

void *dlsym(void *restrict handle, const char *restrict name)
{
    void *found;

    if (real_dlsym == NULL)
        find_real_dlsym();
    found = real_dlsym(handle, name);
    for (size_t i = 0; i < sizeof functions / sizeof functions[0] && found != NULL; i++)
        if (strcmp(functions[i].name, name) == 0) {
            memcpy(functions[i].real, &found, sizeof found);
            if (functions[i].instead != NULL)
                memcpy(&found, &functions[i].instead, sizeof found);
            return found;
        }
    return found;
}
