/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors 0, 1 and 2 are the program's, also while it has them closed: a perror() must not find a connection of the library
 * behind number 2. Every descriptor that the library makes or receives goes through here; the test `style` finds one that does
 * not.
 */
#ifndef PKI_FD_H
#define PKI_FD_H

/* `fd` as it came from the system call that made it, close-on-exec: itself, or moved to 3 or above. Negative, with errno: the
 * call had failed, or there was no number left for it and it is closed. */
int pki_fd_keep(int fd);

#endif
