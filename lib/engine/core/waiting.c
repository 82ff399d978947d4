/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The streams of the process that may wait for peers, whatever by: value waits, which hold hardware queues, and kernels, which
 * hold multiprocessors. What is in one stream runs one behind another, so a stream counts once, with the most that any of its
 * operations takes.
 *
 * A kernel that found no multiprocessor would wait for those that have one, whose peers may wait for it. So there is always one
 * for each: the process shares those of a GPU out, in places. Messages take theirs as they come. Fused collectives cannot, since
 * all ranks need the same grid: a communicator has its places from init to destroy, later ones fewer than the first
 * (docs/design/0009).
 */
#include <pthread.h>

#include "engine/core/internal.h"

#define STREAMS_MAX 256
#define DEVICES_MAX 64

struct waiting_stream {
    int device;
    void *stream;
    int ops;    /* that have not ended */
    int holds;  /* value waits */
    int copies; /* operations that have copies to or from peers in it */
    int ctas;   /* of the largest kernel since `ops` was 0 */
    int grids;  /* kernels of it that may wait on the GPU at a time */
};

static struct {
    pthread_mutex_t lock;
    struct waiting_stream streams[STREAMS_MAX];
    int n;
    int holding, most;      /* streams with value waits, now and at most */
    int fused[DEVICES_MAX]; /* places that communicators have for fused collectives */
} waiting = { .lock = PTHREAD_MUTEX_INITIALIZER };

static atomic_int operations;
static atomic_int streams_waiting[DEVICES_MAX];
static atomic_int copying[DEVICES_MAX]; /* operations whose copies the library's own queues have yet to do */

const atomic_int *pki_waiting_streams(int device)
{
    return device < DEVICES_MAX ? &streams_waiting[device] : NULL;
}

static void count_stream(int device, int by)
{
    if (device < DEVICES_MAX)
        atomic_fetch_add(&streams_waiting[device], by);
}

/* NULL: none, or no room for it. */
static struct waiting_stream *find(int device, void *stream, bool make)
{
    for (int i = 0; i < waiting.n; i++)
        if (waiting.streams[i].stream == stream && waiting.streams[i].device == device)
            return &waiting.streams[i];
    if (!make || waiting.n == STREAMS_MAX)
        return NULL;
    waiting.streams[waiting.n] = (struct waiting_stream){ .device = device, .stream = stream };
    return &waiting.streams[waiting.n++];
}

bool pki_waiting_enter(int device, void *stream)
{
    struct waiting_stream *s;

    pthread_mutex_lock(&waiting.lock);
    atomic_fetch_add(&operations, 1);
    s = find(device, stream, true);
    if (s != NULL && s->ops++ == 0)
        count_stream(device, 1);
    pthread_mutex_unlock(&waiting.lock);
    return s != NULL;
}

void pki_waiting_leave(int device, void *stream, bool listed)
{
    struct waiting_stream *s;

    if (!listed) {
        atomic_fetch_sub(&operations, 1);
        return;
    }
    pthread_mutex_lock(&waiting.lock);
    /* not before: who saw none would keep this thread here, which has yet to let the stream go */
    atomic_fetch_sub(&operations, 1);
    s = find(device, stream, false);
    if (s != NULL && --s->ops == 0) {
        count_stream(device, -1);
        *s = waiting.streams[--waiting.n];
    }
    pthread_mutex_unlock(&waiting.lock);
}

bool pki_waiting_hold(int device, void *stream, int limit)
{
    struct waiting_stream *s;
    bool held;

    pthread_mutex_lock(&waiting.lock);
    s = find(device, stream, false);
    held = s != NULL && (s->holds > 0 || waiting.holding < limit);
    if (held && s->holds++ == 0)
        waiting.holding++;
    if (waiting.holding > waiting.most)
        waiting.most = waiting.holding;
    pthread_mutex_unlock(&waiting.lock);
    return held;
}

void pki_waiting_drop(int device, void *stream)
{
    struct waiting_stream *s;

    pthread_mutex_lock(&waiting.lock);
    s = find(device, stream, false);
    if (s != NULL && --s->holds == 0)
        waiting.holding--;
    pthread_mutex_unlock(&waiting.lock);
}

bool pki_waiting_take_channel(int device, void *stream, int limit)
{
    struct waiting_stream *s;
    bool taken;

    pthread_mutex_lock(&waiting.lock);
    s = find(device, stream, false);
    for (int i = 0; i < waiting.n; i++)
        limit -= waiting.streams[i].device == device && waiting.streams[i].copies > 0;
    taken = s != NULL && (s->copies > 0 || limit > 0);
    if (taken)
        s->copies++;
    pthread_mutex_unlock(&waiting.lock);
    return taken;
}

void pki_waiting_give_channel(int device, void *stream)
{
    struct waiting_stream *s;

    pthread_mutex_lock(&waiting.lock);
    s = find(device, stream, false);
    if (s != NULL)
        s->copies--;
    pthread_mutex_unlock(&waiting.lock);
}

/* Locked. */
static int message_limit(int device, int places)
{
    int left = (places - (device < DEVICES_MAX ? waiting.fused[device] : 0)) / 2;

    return left < pki_tuning.gpu.message_ctas ? left : pki_tuning.gpu.message_ctas;
}

/* Kernels of a stream that may be on the GPU at a time: low-latency ones are launched early, behind one that waits. */
static int grids_of(const struct waiting_stream *s)
{
    return s->ctas > 0 && s->ops > 1 ? 2 : 1;
}

/* What the other streams of its GPU have. */
static void count_others(const struct waiting_stream *s, int *ctas, int *grids)
{
    *ctas = *grids = 0;
    for (int i = 0; i < waiting.n; i++) {
        const struct waiting_stream *other = &waiting.streams[i];

        if (other == s || other->device != s->device)
            continue;
        *ctas += other->ctas;
        *grids += other->grids;
    }
}

/* With `ctas` of a low-latency kernel, or 0: by a kernel of one warp. */
static bool admit(struct waiting_stream *s, int ctas, int places)
{
    struct waiting_stream then = *s;
    int others, grids;

    if (then.ctas < ctas)
        then.ctas = ctas;
    if (then.ctas != s->ctas || grids_of(&then) != s->grids) {
        count_others(s, &others, &grids);
        if ((ctas > 0 && others + ctas > message_limit(s->device, places)) || grids + grids_of(&then) > PKI_WAITING_KERNELS)
            return false;
    }
    then.grids = grids_of(&then);
    *s = then;
    return true;
}

bool pki_waiting_occupy(int device, void *stream, int ctas, int places)
{
    struct waiting_stream *s;
    bool fits;

    pthread_mutex_lock(&waiting.lock);
    s = find(device, stream, false);
    fits = s != NULL && admit(s, ctas, places);
    pthread_mutex_unlock(&waiting.lock);
    return fits;
}

/* Of 128 places the first five communicators have 32, 16, 8, 4 and 2, and forty more one each. */
int pki_waiting_reserve(int device, int places, int most)
{
    int all = places - places / PKI_PLACES_KEPT_SHARE, singles = all * PKI_PLACES_SINGLE_EIGHTHS / 8, share = 0;

    if (device >= DEVICES_MAX)
        return 0;
    pthread_mutex_lock(&waiting.lock);
    if (waiting.fused[device] < all)
        share = (all - singles - waiting.fused[device]) / PKI_PLACES_SHARE;
    if (share < 1)
        share = waiting.fused[device] < all;
    if (share > most)
        share = most;
    waiting.fused[device] += share;
    pthread_mutex_unlock(&waiting.lock);
    return share;
}

void pki_waiting_return(int device, int ctas)
{
    if (ctas == 0)
        return;
    pthread_mutex_lock(&waiting.lock);
    waiting.fused[device] -= ctas;
    pthread_mutex_unlock(&waiting.lock);
}

void pki_waiting_copies(int device, int by)
{
    if (device < DEVICES_MAX)
        atomic_fetch_add(&copying[device], by);
}

bool pki_waiting_has_copies(int device)
{
    return device >= DEVICES_MAX || atomic_load(&copying[device]) > 0;
}

bool pki_streams_hold(void)
{
    pthread_mutex_lock(&waiting.lock);
    if (!pki_streams_wait())
        return true;
    pthread_mutex_unlock(&waiting.lock);
    return false;
}

void pki_streams_release(void)
{
    pthread_mutex_unlock(&waiting.lock);
}

bool pki_streams_wait(void)
{
    return atomic_load(&operations) > 0;
}

void pki_stream_waits(uint64_t *pending, uint64_t *most)
{
    pthread_mutex_lock(&waiting.lock);
    *pending = (uint64_t)waiting.holding;
    *most = (uint64_t)waiting.most;
    pthread_mutex_unlock(&waiting.lock);
}

/* How many streams may hold a queue. None where kernels can wait instead: with more streams than queues the driver puts some
 * behind the wait, be it the only one. */
int pki_waiting_limit(const struct pki_engine *e)
{
    if (e->limits.connections <= PKI_FEW_QUEUES || e->config.sm_policy != PK_SM_NONE)
        return 0;
    if (e->limits.channels < 3) /* or none could wait: what the program copies to peers then stands behind it */
        return 1;
    return e->limits.connections / 2 < e->limits.channels ? e->limits.connections / 2 - 1 : e->limits.channels - 1;
}
