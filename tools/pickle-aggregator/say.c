/* SPDX-License-Identifier: Apache-2.0 */
/* Lines on standard output. Who reads them may be slow, or gone: then they are lost, and jobs go on. */
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "server.h"

#define LINE_BYTES 1024 /* less than PIPE_BUF: a pipe that polls as writable takes it at once */

static void say(const char *format, va_list args)
{
    struct pollfd out = { .fd = STDOUT_FILENO, .events = POLLOUT };
    char line[LINE_BYTES];
    int n = vsnprintf(line, sizeof line, format, args);

    if (n < 0)
        return;
    n = n < LINE_BYTES ? n : LINE_BYTES - 1;
    line[n++] = '\n';
    if (poll(&out, 1, 0) == 1 && out.revents == POLLOUT && write(STDOUT_FILENO, line, (size_t)n) < 0)
        return; /* lost */
}

void server_print(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    say(format, args);
    va_end(args);
}

void server_say(const struct server *s, const char *format, ...)
{
    va_list args;

    if (s->quiet)
        return;
    va_start(args, format);
    say(format, args);
    va_end(args);
}
