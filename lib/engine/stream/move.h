/* SPDX-License-Identifier: Apache-2.0 */
/* What a call's streams move themselves: messages, and a row of transfers for the moving kernel. Locked. */
#ifndef PKI_ENGINE_STREAM_MOVE_H
#define PKI_ENGINE_STREAM_MOVE_H

#include "engine/stream/stream.h"

/* Messages and collectives of a call. */
void pki_stream_move_all(struct pki_engine *engine, struct pki_list *made);

/* May the moving kernel be used? */
bool pki_move_by_kernel(const struct pki_engine *engine);
/* Is the peer a rank of this process? A copy would enter that rank's context, where it is blocked while a thread there loads a
 * module, frees memory or makes streams, and waits for this very copy; the launch of a kernel is not blocked. */
bool pki_move_in_process(const struct pki_xfer *xfer);
/* A channel for copies in this task's stream, until the task ends. False: the process has no more than the program needs. */
bool pki_move_take_channel(struct pki_task *task);
/* One transfer more for the kernel, which is launched when something else is put into the stream, or flushed (signals.c): all
 * that peers need of this rank is in front of it. It waits for none of the words that are added below: those come last. */
void pki_move_row_add(struct pki_task *task, struct pki_xfer *xfer);
bool pki_move_row_is_open(const struct pki_engine *engine);
/* A word that the stream waits for behind the transfers: the kernel does. False: it cannot, there is none in this stream, say. */
bool pki_move_row_wait(const struct pki_task *task, struct pki_signal signal);
/* Waits alone, n <= PKI_SIGNALS_A_BATCH. No row is open. */
void pki_move_row_of_waits(struct pki_engine *engine, const struct pki_queue *queue, const struct pki_signal_op *waits, int n);
void pki_move_row_launch(struct pki_engine *engine); /* signals.c alone calls this, behind the words in front of it */

#endif
