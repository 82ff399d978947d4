/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups: what a thread calls between the outermost ncclGroupStart and ncclGroupEnd are jobs that the end carries out, over
 * communicators and devices. Outside of a group a job is carried out at once. The order: communicators are made, all begun
 * before any is waited for; windows; the operations, as one group of libpickle; finalize, destroy and abort.
 */
#ifndef PKN_GROUP_H
#define PKN_GROUP_H

#include "comm.h"

enum pkn_phase { PKN_PHASE_MAKE, PKN_PHASE_BEFORE, PKN_PHASE_OPERATION, PKN_PHASE_AFTER };

enum pkn_progress { PKN_JOB_WAITS, PKN_JOB_BEGUN, PKN_JOB_DONE };

enum pkn_call {
    PKN_CALL_SEND,
    PKN_CALL_RECV, /* these two move something even where it is nothing; the rest are collectives */
    PKN_CALL_BROADCAST,
    PKN_CALL_REDUCE,
    PKN_CALL_ALLREDUCE,
    PKN_CALL_REDUCE_SCATTER,
    PKN_CALL_ALLGATHER,
    PKN_CALL_ALLTOALL,
    PKN_CALL_GATHER,
    PKN_CALL_SCATTER
};

struct pkn_operation {
    enum pkn_call call;
    const void *in;
    void *out;
    size_t count;
    pk_dtype_t dtype;
    pk_op_t op;
    struct pkn_reduction *kept; /* the program's operator, or NULL */
    int other;                  /* root or peer */
    pkn_stream_t stream;
};

struct shrink;

struct pkn_job {
    enum pkn_phase phase;
    struct pkn_comm *comm; /* held; of MAKE the new one */
    pkn_result_t (*run)(struct pkn_job *job);
    enum pkn_progress progress;
    int round; /* of OPERATION: which of libpickle's groups it is in */
    union {
        struct {
            struct pkn_comm *parent; /* out of which it is made, held; else NULL */
            struct pkn_comm **out;   /* the program's; NULL: it gets none */
            int ranks, rank, color, key;
            /* of pkn_job_make */
            pk_result_t (*call)(const struct pkn_job *job, pk_comm_t **made, const pk_comm_config_t *config);
            struct shrink *shrink; /* shrink.c's, until it has begun */
            pk_unique_id_t id;
            bool own_id; /* made for these jobs, and given back where they are not begun */
        } make;
        struct {
            void *buffer;
            size_t bytes;
            struct pkn_registration **made;
            bool symmetric;
        } window;
        struct pkn_operation operation;
    };
    struct pkn_job *next;
};

/* Is a group open in this thread? */
bool pkn_group_is_open(void);

/* Carry a copy of the job out, or queue it. Its references are the group's from then on, whatever is returned. */
pkn_result_t pkn_group_submit(const struct pkn_job *job);

/* A call in the group was refused: the end returns that and carries nothing out. Returns `result`. */
pkn_result_t pkn_group_refuse(pkn_result_t result);

void pkn_group_enter(void);
pkn_result_t pkn_group_leave(void);

/* make.c: what a job of MAKE runs: its `call` begins the communicator, which is the handle's then. */
pkn_result_t pkn_job_make(struct pkn_job *job);

/* shrink.c: of a job that does not begin; NULL is legal. */
void pkn_shrink_forget(struct shrink *shrink);

/* ops.c: call it in libpickle, with the communicator of the job. */
pk_result_t pkn_operation_call(const struct pkn_job *job);

#endif
