/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PKI_SWITCHML_INTERNAL_H
#define PKI_SWITCHML_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "switchml/datagrams.h"
#include "switchml/settings.h"
#include "switchml/switchml.h"
#include "switchml/worker.h"

#define PKI_SWITCHML_NAME_MAX 320

struct pki_switchml_job {
    const char *in;
    char *out;
    size_t units; /* packets' worth of elements, those of the first slice first */
    bool floats;
    uint32_t operation; /* marks.h */
    int8_t *exponents;  /* [units] the largest of all ranks; floats */
    bool *summed;       /* [units] the sums are in `out` */
    size_t room;
};

enum pki_switchml_state {
    PKI_SWITCHML_RESTS, /* the thread touches nothing but its state; all else of the slice is the engine's */
    PKI_SWITCHML_WORKS, /* the slice is the thread's until it rests: with all sums, or an error that the engine has to tell */
    PKI_SWITCHML_STOPS, /* likewise, and the thread is to rest as soon as it can */
    PKI_SWITCHML_ENDS   /* the thread is to end */
};

/* What one thread does of each job, and has for it. The first one's is done by whoever polls. */
struct pki_switchml_slice {
    struct pki_switchml *session;
    struct pki_datagrams datagrams;
    struct pki_switchml_worker worker;
    size_t first, count; /* elements of the job */
    size_t unit, units;  /* its units among those of the job */
    size_t unfit;
    uint32_t mixed;     /* replies to it in the job in which another rank's mark was beside this one's */
    uint64_t strangers; /* packets of others than the aggregator */
    uint64_t now;
    _Atomic uint64_t heard; /* when a packet came last, or the job began */
    atomic_int error;       /* errno that the socket has told, and that is its end; */
    atomic_int passing;     /* one that is not, since the engine looked last */
    atomic_bool disagree;   /* some rank's sig is another one */
    _Atomic uint32_t state; /* enum pki_switchml_state; of all but the first */
    pthread_t thread;
};

/* What a session of several threads has beside them. */
struct pki_switchml_threads {
    uint32_t started; /* the first slice's included, which is no thread */
    uint32_t resting; /* whose ring has been heard in this job, or that had nothing to do in it */
    int stop, ended;  /* eventfd: readable while threads are to rest; each rings once a job, when it has come to rest */
    int both;         /* epoll: the first slice's socket, and `ended` */
    unsigned stamp;   /* of the process that has the threads */
};

struct pki_switchml {
    char name[PKI_SWITCHML_NAME_MAX];
    char standing[PKI_SWITCHML_NAME_MAX + 100]; /* the name, and which error has passed last */
    struct sockaddr_storage peer;               /* where its packets come from */
    uint64_t failing_since;                     /* the first error of those since the last packet came; 0: none */
    unsigned char id[PKI_SWITCHML_ID_BYTES];
    int size;
    uint32_t elements, window; /* window: of all slices */
    int connection;            /* TCP; negative: this rank has left */
    unsigned looks;
    bool busy;
    struct pki_switchml_job job;
    struct pki_switchml_threads threads;
    uint32_t nslices;
    struct pki_switchml_slice slices[PKI_SWITCHML_THREADS_MAX];
};

/* join.c: to one of these addresses, whichever answers first in their order. Errors are recorded. */
pk_result_t pki_switchml_connect(struct pki_switchml *s, const struct sockaddr_storage *addresses, int count,
                                 const struct pki_wait *wait);

/* slice.c */
/* The slice has its part of the session's job, which is described, and its first packets go. */
void pki_switchml_slice_begin(struct pki_switchml_slice *slice, uint64_t now);
/* Take what has come and send what is to be sent. Returns how many packets have come. */
int pki_switchml_slice_step(struct pki_switchml_slice *slice);
/* A datagram of `from`: a reply of the job, or none. */
void pki_switchml_slice_take(void *slice, const unsigned char *data, size_t bytes, const struct sockaddr_storage *from);
/* There is nothing more to do, or an error of which others have to speak. */
bool pki_switchml_slice_over(const struct pki_switchml_slice *slice);

/* How many elements unit `u` of the slice has; and where it is. */
uint32_t pki_switchml_unit_length(const struct pki_switchml_slice *slice, size_t u);
size_t pki_switchml_unit_at(const struct pki_switchml_slice *slice, size_t u);
bool pki_switchml_unit_fits(const struct pki_switchml_slice *slice, size_t u);

/* threads.c; of a session of one slice nothing happens. */
pk_result_t pki_switchml_threads_start(struct pki_switchml *s);
void pki_switchml_threads_end(struct pki_switchml *s);
/* All slices but the first have their part of the job: go on with it. */
void pki_switchml_threads_go(struct pki_switchml *s);
/* How many of them rest. Where it is fewer than all, `both` is readable as soon as one more does. */
uint32_t pki_switchml_threads_resting(struct pki_switchml *s);
/* All of them rest. Waits for what each is at, which never waits itself. */
void pki_switchml_threads_stop(struct pki_switchml *s);

#endif
