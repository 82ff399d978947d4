/* SPDX-License-Identifier: Apache-2.0 */
/* Lines on standard error, which is the program's: nobody may read it any more, or nobody may read it now. */
#ifndef PKI_STDERR_H
#define PKI_STDERR_H

#include <stddef.h>

#define PKI_STDERR_LINE 1024 /* bytes of a line, at most */

/* Write a line that ends with a newline, by one write(2), without waiting for a reader and without raising SIGPIPE. Where it
 * cannot be written it is lost, and the next one that can be says how many were. By one thread at a time. */
void pki_stderr_line(const char *line, size_t bytes);

#endif
