/* SPDX-License-Identifier: Apache-2.0 */
/* Operations in CUDA and host streams, and in graphs. Locked, unless it says otherwise. */
#ifndef PKI_ENGINE_STREAM_H
#define PKI_ENGINE_STREAM_H

#include "engine/fused/fused.h"

/* join.c: tasks in the caller's CUDA stream, three phases so that a group's do not block one another */
pk_result_t pki_stream_admit(struct pki_task *task); /* before anything is posted: may it wait in this stream, how */
void pki_stream_begin(struct pki_task *task);        /* posted and, where the peer has been as fast, matched */
void pki_stream_open(struct pki_task *task);         /* "ready" and "my buffer is free": from the last task to the first */
void pki_stream_launch(struct pki_task *task);       /* a fused collective's kernel */
void pki_stream_end(struct pki_task *task, struct pki_list *made); /* waits, for all of `made` in the same stream at once */
/* What the stream of this task waits for at the end of the call: two kernels in a row that wait would hold a queue. */
void pki_stream_wait_for_all(struct pki_task *any, struct pki_list *made);
void pki_stream_copies(struct pki_task *task); /* copies of callers' streams must not stand before its own */
void pki_stream_left(struct pki_task *task);   /* the task has ended: its wait is over */
void pki_stream_look_for_cts(struct pki_xfer *xfer);
/* The copy of a transfer whose signal the stream has waited for, and the word behind it. */
pk_result_t pki_stream_put(struct pki_task *task, struct pki_xfer *xfer, bool joined);

/* signals.c */
void pki_stream_arrive(const struct pki_task *task, struct pki_signal signal); /* open it when the stream comes here */
void pki_stream_wait(const struct pki_task *task, struct pki_signal signal);
void pki_stream_before_wait(const struct pki_task *task); /* which a copy will follow: what peers need for it to end goes first */
void pki_stream_before_last_wait(const struct pki_task *task); /* with which the call ends */
/* joined: whoever waits for the last copy before this one waits for this one too. */
void pki_stream_before_copy(const struct pki_task *task, bool joined);
void pki_stream_copied(const struct pki_task *task, struct pki_signal done, size_t bytes);
void pki_stream_worked(const struct pki_task *task); /* something was put into the stream without these functions */
void pki_stream_flush(struct pki_engine *engine);
void pki_stream_restart(struct pki_engine *engine); /* flushed, and nothing is known of any stream */

/* ll_row.c: low-latency messages of a call, for one launch; in the stream they come behind the words of the batch. To be launched
 * before anything that waits. */
void pki_ll_row_add(struct pki_task *task, const struct pki_ll_op *op);
void pki_ll_row_launch(struct pki_engine *engine);

/* collective.c: the phases of a collective */
bool pki_stream_plan_begin(struct pki_task *task);
void pki_stream_plan_open(struct pki_task *task);
void pki_stream_plan_move(struct pki_task *task);
void pki_stream_plan_end(const struct pki_task *task); /* waits */
void pki_stream_plan_close(struct pki_task *task);     /* and behind them */

/* capture.c */
/* Nothing has happened when this refuses; the others follow as engine.h says. */
pk_result_t pki_capture_check(struct pki_engine *engine, const struct pki_request *requests, int n, struct pki_capture **out);
pk_result_t pki_capture_post(struct pki_engine *engine, struct pki_capture *capture);
pk_result_t pki_capture_record(struct pki_engine *engine, struct pki_capture *capture);
void pki_capture_drop(struct pki_engine *engine, struct pki_capture *capture);
/* Is one of them in a stream that is being captured? *error: they cannot be told, or are mixed. */
bool pki_capture_wanted(struct pki_engine *engine, const struct pki_request *requests, int n, pk_result_t *error);

/* capture_fused.c */
size_t pki_capture_fused_bytes(const struct pki_engine *engine); /* of GPU memory, for such collectives in graphs */

/* host_stream.c */
void pki_host_stream_append(struct pki_host_stream *stream, struct pki_task *task);
void pki_host_stream_ended(struct pki_host_stream *stream, struct pki_task *task);

#endif
