/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stop the threads that the library has made in this process, so that a test sees what goes on without them. They are known by the signals that
 * they block: all but those of faults. One of these, SIGSYS, stops them; each is stopped where it sleeps, and so holds no lock.
 */
#ifndef OWN_THREADS_H
#define OWN_THREADS_H

/* Those that are not stopped yet; returns how many are, or -1: one was never asleep within some seconds. Needs /proc. */
int own_threads_stop(void);
void own_threads_go(void);

#endif
