/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PKN_MEMORY_H
#define PKN_MEMORY_H

struct pkn_comm;

/* Registrations that the program has left, at the communicator's end. */
void pkn_registrations_free(struct pkn_comm *comm);

#endif
