/* SPDX-License-Identifier: Apache-2.0 */
/* Ports for tests that have to name one before anybody listens there. */
#ifndef PORTS_H
#define PORTS_H

/* A port on which nobody listens, nor on any of those `offsets` [n] further on. It is below the range from which the kernel takes ports for
 * whoever asks for any, so that nobody gets it by chance before its user does; other processes begin their search elsewhere. Ends the
 * process when there is none. */
int free_port(const int *offsets, int n);

#endif
