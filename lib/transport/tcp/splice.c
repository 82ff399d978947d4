/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks whose pages themselves go into the connection, their heads' too, without the sender's copy: through a pipe, for the kernel has no other way.
 * No byte of a chunk changes before the peer has acknowledged it, because until then its put has not ended, nor is its slot free; `reported` alone does, in a
 * head that goes once more by a new connection, and what is left of the old one nobody reads then. Where it ends otherwise, in an abort, the connection is
 * reset first: within a machine the peer sees that (incoming.c), on a wire pages could be read later still, so there they are copied. The heads' pages
 * are the kernel's alone once the endpoint is closed (make_slots): what the peer reads there is what was written.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "transport/tcp/tcp.h"
#include "util/fd.h"
#include "util/sigblock.h"

#define PIPE_BYTES (1 << 20)

static struct pki_tcp_slot *next_slot(const struct pki_tcp_link *link)
{
    return &link->slots[link->next % link->ep->params.window];
}

static void copy_instead(struct pki_tcp_link *link, const char *what)
{
    struct pki_where where = pki_tcp_where(link->ep);

    pki_log(PKI_LOG_INFO, &where, "over tcp: connection %u: payload is copied from now on: %s failed (errno %d)", link->index, what,
            errno);
    link->copies = true;
}

static bool pipe_open(struct pki_tcp_link *link)
{
    if (link->pipe[0] >= 0)
        return true;
    if (pki_fd_pipe(link->pipe, O_CLOEXEC | O_NONBLOCK) != 0) {
        copy_instead(link, "pipe2");
        link->pipe[0] = link->pipe[1] = -1;
        return false;
    }
    (void)fcntl(link->pipe[1], F_SETPIPE_SZ, PIPE_BYTES); /* fewer do too */
    return true;
}

bool pki_tcp_goes_spliced(struct pki_tcp_link *link)
{
    return link->piped > 0 || (!link->copies && !next_slot(link)->copied && link->ep->iface->one_machine && next_slot(link)->bytes >= PKI_TCP_SPLICE_MIN && pipe_open(link));
}

void pki_tcp_pipe_close(struct pki_tcp_link *link)
{
    if (link->index == 0 || link->pipe[0] < 0)
        return;
    close(link->pipe[0]);
    close(link->pipe[1]);
    link->pipe[0] = link->pipe[1] = -1;
    link->piped = 0;
}

/*
 * A splice that finds the connection broken raises SIGPIPE, and no flag keeps it from that. It goes through the pipe in several steps, so
 * that the signal may come with success: of the bytes that went before the break.
 */
static ssize_t splice_quietly(struct pki_tcp_link *link)
{
    struct pki_sigblock hold;
    ssize_t n;

    pki_sigblock(&hold, SIGPIPE);
    n = splice(link->pipe[0], NULL, link->source.fd, NULL, link->piped, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
    pki_sigblock_release(&hold, n < (ssize_t)link->piped);
    return n;
}

ssize_t pki_tcp_splice(struct pki_tcp_link *link)
{
    struct pki_tcp_slot *slot = next_slot(link);
    ssize_t n;

    if (link->piped == 0) {
        struct iovec parts[2];

        n = vmsplice(link->pipe[1], parts, pki_tcp_chunk_parts(slot, link->written, parts), SPLICE_F_NONBLOCK);
        if (n <= 0) { /* memory of a device, perhaps */
            copy_instead(link, "vmsplice");
            errno = EINTR;
            return -1;
        }
        link->piped = (size_t)n;
    }
    n = splice_quietly(link);
    link->piped -= n > 0 ? (size_t)n : 0;
    return n;
}
