/* SPDX-License-Identifier: Apache-2.0 */
#include "group.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "error.h"
#include "names.h"
#include "reduction.h"

#define POLL_NS 200000
/* Collectives of a communicator in one group of libpickle, which takes 512; and a stream's launch queue has some 1,000
 * places, which may not be filled before those of the other communicators have begun. */
#define ROUND_MOST 256

static _Thread_local struct {
    int depth;
    pkn_result_t refused; /* the first error of a call inside */
    struct pkn_job *first, *last;
} group;

bool pkn_group_is_open(void)
{
    return group.depth > 0;
}

void pkn_group_enter(void)
{
    group.depth++;
}

pkn_result_t pkn_group_refuse(pkn_result_t result)
{
    if (group.depth > 0 && group.refused == PKN_SUCCESS && result != PKN_SUCCESS && result != PKN_IN_PROGRESS)
        group.refused = result;
    return result;
}

/* ---- the end of a job ---- */

/* Its references go; a job in the queue is freed. */
static void drop(const struct pkn_job *job)
{
    if (job->phase == PKN_PHASE_OPERATION)
        pkn_reduction_release(job->comm, job->operation.kept);
    if (job->phase == PKN_PHASE_MAKE && job->make.own_id && job->make.rank == 0 && job->progress == PKN_JOB_WAITS)
        (void)pkn_pk()->pk_unique_id_release(&job->make.id);
    if (job->phase == PKN_PHASE_MAKE)
        pkn_shrink_forget(job->make.shrink);
    if (job->phase == PKN_PHASE_MAKE && job->make.parent != NULL)
        pkn_comm_release(job->make.parent);
    if (job->comm != NULL)
        pkn_comm_release(job->comm);
}

static void free_jobs(struct pkn_job *jobs)
{
    while (jobs != NULL) {
        struct pkn_job *next = jobs->next;

        drop(jobs);
        free(jobs);
        jobs = next;
    }
}

/* The program gets none of the communicators that were to be made. */
static void unmake(const struct pkn_job *jobs)
{
    for (const struct pkn_job *job = jobs; job != NULL; job = job->next) {
        if (job->phase != PKN_PHASE_MAKE || job->make.out == NULL)
            continue;
        pkn_comm_stop(job->comm);
        *job->make.out = NULL;
        pkn_comm_disown(job->comm);
    }
}

/* ---- making communicators ---- */

/* Whose state says how far the job is: a rank that gets no communicator only takes part in its parent's split. */
static struct pkn_comm *watched(const struct pkn_job *job)
{
    return job->comm != NULL ? job->comm : job->make.parent;
}

/* What the parent does in the background comes first: all ranks split it in the same order. */
static bool may_begin(const struct pkn_job *job)
{
    return job->make.parent == NULL || atomic_load(&job->make.parent->background) != PKN_IN_PROGRESS;
}

/* PKN_IN_PROGRESS: ask again. */
static pkn_result_t step(struct pkn_job *job)
{
    pkn_result_t result = PKN_SUCCESS;

    if (job->progress == PKN_JOB_DONE)
        return PKN_SUCCESS;
    if (job->progress == PKN_JOB_WAITS && !may_begin(job))
        return PKN_IN_PROGRESS;
    if (job->progress == PKN_JOB_WAITS) {
        job->progress = PKN_JOB_BEGUN;
        result = job->run(job);
    }
    if (result == PKN_SUCCESS && watched(job)->blocking)
        result = pkn_comm_state(watched(job));
    if (result == PKN_SUCCESS)
        job->progress = PKN_JOB_DONE;
    return result;
}

static pkn_result_t make_all(struct pkn_job *jobs)
{
    pkn_result_t result;
    bool going_on;

    do {
        going_on = false;
        result = PKN_SUCCESS;
        for (struct pkn_job *job = jobs; job != NULL && result == PKN_SUCCESS; job = job->next) {
            result = job->phase == PKN_PHASE_MAKE ? step(job) : PKN_SUCCESS;
            if (result == PKN_IN_PROGRESS) {
                going_on = true;
                result = PKN_SUCCESS;
            }
        }
        if (result == PKN_SUCCESS && going_on)
            nanosleep(&(struct timespec){ .tv_nsec = POLL_NS }, NULL);
    } while (result == PKN_SUCCESS && going_on);
    return result;
}

/* ---- operations ---- */

/* Collectives may start in several groups of libpickle, for all ranks call them in the same order; sends and receives may
 * not, since either may wait for the other. */
static bool may_be_cut(const struct pkn_job *jobs)
{
    for (; jobs != NULL; jobs = jobs->next)
        if (jobs->phase == PKN_PHASE_OPERATION && jobs->operation.call <= PKN_CALL_RECV)
            return false;
    return true;
}

/* Each of a communicator's jobs gets its round. Returns how many rounds there are. */
static int deal_rounds(struct pkn_job *jobs, bool cut)
{
    int rounds = 1;

    for (struct pkn_job *job = jobs; job != NULL; job = job->next)
        if (job->phase == PKN_PHASE_OPERATION)
            job->comm->operations = 0;
    for (struct pkn_job *job = jobs; job != NULL; job = job->next) {
        if (job->phase != PKN_PHASE_OPERATION)
            continue;
        job->round = cut ? job->comm->operations++ / ROUND_MOST : 0;
        if (job->round >= rounds)
            rounds = job->round + 1;
    }
    return rounds;
}

static pk_result_t call_round(const struct pkn_job *jobs, int round)
{
    const struct pkn_table *pk = pkn_pk();
    pk_result_t result = pk->pk_group_start(), ended;

    for (const struct pkn_job *job = jobs; job != NULL && result == PK_OK; job = job->next)
        if (job->phase == PKN_PHASE_OPERATION && job->round == round)
            result = pkn_operation_call(job);
    ended = pk->pk_group_end(); /* after an error it returns that, and starts nothing */
    return result != PK_OK ? result : ended;
}

static pk_result_t call_all(struct pkn_job *jobs)
{
    const int rounds = deal_rounds(jobs, may_be_cut(jobs));
    pk_result_t result = PK_OK;

    for (int round = 0; round < rounds && result == PK_OK; round++)
        result = call_round(jobs, round);
    return result;
}

/* ---- the end of a group ---- */

static pkn_result_t run_phase(struct pkn_job *jobs, enum pkn_phase phase)
{
    pkn_result_t first = PKN_SUCCESS;

    for (struct pkn_job *job = jobs; job != NULL; job = job->next) {
        pkn_result_t result = job->phase == phase ? job->run(job) : PKN_SUCCESS;

        if (first == PKN_SUCCESS || (first == PKN_IN_PROGRESS && result != PKN_SUCCESS))
            first = result;
    }
    return first;
}

static bool has(const struct pkn_job *jobs, enum pkn_phase phase)
{
    while (jobs != NULL && jobs->phase != phase)
        jobs = jobs->next;
    return jobs != NULL;
}

/* Something of a non-blocking communicator goes on. */
static bool is_left_open(const struct pkn_job *jobs)
{
    for (; jobs != NULL; jobs = jobs->next)
        if (jobs->phase == PKN_PHASE_MAKE && !watched(jobs)->blocking)
            return true;
    return false;
}

static pkn_result_t run(struct pkn_job *jobs)
{
    pkn_result_t result = make_all(jobs), after;

    if (result != PKN_SUCCESS)
        unmake(jobs);
    if (result == PKN_SUCCESS)
        result = run_phase(jobs, PKN_PHASE_BEFORE);
    if (result == PKN_SUCCESS && has(jobs, PKN_PHASE_OPERATION))
        result = pkn_from_pk(call_all(jobs));
    after = run_phase(jobs, PKN_PHASE_AFTER); /* a handle that is given up is gone, whatever else has failed */
    if (result == PKN_SUCCESS)
        result = after;
    return result == PKN_SUCCESS && is_left_open(jobs) ? PKN_IN_PROGRESS : result;
}

pkn_result_t pkn_group_submit(const struct pkn_job *job)
{
    struct pkn_job *copy = malloc(sizeof *copy);
    pkn_result_t result;

    if (copy == NULL) {
        unmake(job);
        drop(job);
        return pkn_group_refuse(pkn_fail(PKN_SYSTEM_ERROR, "no memory for a job"));
    }
    *copy = *job;
    copy->next = NULL;
    if (group.depth > 0) {
        *(group.first == NULL ? &group.first : &group.last->next) = copy;
        group.last = copy;
        return PKN_SUCCESS;
    }
    result = run(copy);
    free_jobs(copy);
    return result;
}

static struct pkn_job *take_jobs(void)
{
    struct pkn_job *jobs = group.first;

    group.first = group.last = NULL;
    return jobs;
}

/* Also after a refused call: what gives up a handle is carried out. */
static pkn_result_t end_outermost(void)
{
    struct pkn_job *jobs = take_jobs();
    pkn_result_t result = group.refused;

    group.refused = PKN_SUCCESS;
    if (result == PKN_SUCCESS) {
        result = run(jobs);
    } else {
        unmake(jobs);
        (void)run_phase(jobs, PKN_PHASE_AFTER);
    }
    free_jobs(jobs);
    return result;
}

pkn_result_t pkn_group_leave(void)
{
    return --group.depth > 0 ? PKN_SUCCESS : end_outermost();
}

pkn_result_t pncclGroupStart(void)
{
    pkn_group_enter();
    return PKN_SUCCESS;
}
PKN_TWIN(GroupStart);

pkn_result_t pncclGroupEnd(void)
{
    if (group.depth == 0)
        return pkn_fail(PKN_INVALID_USAGE, "ncclGroupEnd: no group is open in this thread");
    return pkn_group_leave();
}
PKN_TWIN(GroupEnd);

/* Nothing is carried out, and nothing is known of the time that it would take. */
pkn_result_t pncclGroupSimulateEnd(pkn_simulation_t *simulation)
{
    const pkn_simulation_t unknown = {
        .size = sizeof unknown, .magic = PKN_SIMULATION_MAGIC, .version = PKN_VERSION, .estimated_time = -1.0F
    };
    pkn_result_t result = PKN_SUCCESS;
    struct pkn_job *jobs;
    size_t size;

    if (group.depth == 0)
        return pkn_fail(PKN_INVALID_USAGE, "ncclGroupSimulateEnd: no group is open in this thread");
    if (simulation != NULL && simulation->magic != PKN_SIMULATION_MAGIC)
        result = pkn_fail(PKN_INVALID_ARGUMENT, "simInfo was not made by NCCL_SIM_INFO_INITIALIZER: its magic is 0x%x",
                          simulation->magic);
    if (simulation != NULL && result == PKN_SUCCESS) {
        size = simulation->size < sizeof unknown ? simulation->size : sizeof unknown;
        memcpy(simulation, &unknown, size);
        simulation->size = size;
    }
    if (--group.depth > 0)
        return result;
    if (result == PKN_SUCCESS)
        result = group.refused;
    group.refused = PKN_SUCCESS;
    jobs = take_jobs();
    unmake(jobs);
    free_jobs(jobs);
    return result;
}
PKN_TWIN(GroupSimulateEnd);
