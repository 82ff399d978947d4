/* SPDX-License-Identifier: Apache-2.0 */
/* Connections. A stranger has 5 s to prove the secret, gets nothing but a greeting, and is dropped for the first byte that makes
 * no sense. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "server.h"
#include "util/auth.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/netif.h"

#define HELLO_NS (5 * PKI_NS_PER_S)
#define DEAF_NS (200 * PKI_NS_PER_MS)

static void drop(struct server *s, struct visitor *v)
{
    s->nstrangers -= v->job == NULL;
    job_leave(s, v);
    pki_list_remove(&v->node);
    close(v->fd); /* epoll forgets it */
    free(v);
}

/* So short a message fits any socket's buffer. */
static bool tell(const struct visitor *v, const void *data, size_t bytes)
{
    return send(v->fd, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)bytes;
}

static bool greet(struct server *s, struct visitor *v)
{
    unsigned char bytes[PKI_SWITCHML_GREETING_BYTES];
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = v };

    if (pki_auth_random(v->greeting.nonce, sizeof v->greeting.nonce) != PK_OK ||
        epoll_ctl(s->events, EPOLL_CTL_ADD, v->fd, &event) != 0)
        return false;
    pki_switchml_greeting_pack(&v->greeting, bytes);
    return tell(v, bytes, sizeof bytes);
}

/* False: there is none. */
static bool drop_first_stranger(struct server *s)
{
    for (struct pki_list *n = s->visitors.next; n != &s->visitors; n = n->next) {
        struct visitor *v = pki_container_of(n, struct visitor, node);

        if (v->job == NULL) {
            drop(s, v);
            return true;
        }
    }
    return false;
}

static void listen_again(struct server *s)
{
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = &s->listener };

    if (epoll_ctl(s->events, EPOLL_CTL_ADD, s->listener, &event) == 0)
        s->hear_at = 0;
}

/* False: there is nobody to hear. No descriptor or no memory for who knocks: he would be heard of again at once. A stranger has to go for him; where there is none he
 * waits, and the listener is not looked at for a while. */
static bool cannot_accept(struct server *s, int error)
{
    if (error == EAGAIN || error == EINTR || error == ECONNABORTED)
        return error != EAGAIN;
    s->counts.refused++;
    if (!drop_first_stranger(s) && epoll_ctl(s->events, EPOLL_CTL_DEL, s->listener, NULL) == 0)
        s->hear_at = pki_now_ns() + DEAF_NS;
    return false;
}

bool server_accept(struct server *s)
{
    struct sockaddr_storage peer;
    socklen_t length = sizeof peer;
    int fd = pki_fd_keep(accept4(s->listener, (struct sockaddr *)&peer, &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    struct visitor *v;

    if (fd < 0)
        return cannot_accept(s, errno);
    if (s->nstrangers == STRANGERS_MAX)
        (void)drop_first_stranger(s);
    v = calloc(1, sizeof *v);
    if (v == NULL) {
        close(fd);
        return false;
    }
    pki_switchml_keep_alive(fd);
    v->fd = fd;
    v->peer = peer;
    v->deadline_ns = pki_now_ns() + HELLO_NS;
    pki_netif_format(&peer, v->name);
    pki_list_push(&s->visitors, &v->node);
    s->nstrangers++;
    if (!greet(s, v))
        drop(s, v);
    return true;
}

/* The hello is complete. */
static void answer(struct server *s, struct visitor *v)
{
    unsigned char bytes[PKI_SWITCHML_ANSWER_BYTES];
    struct pki_switchml_answer a;
    struct pki_switchml_hello hello;
    bool joined;

    if (!pki_switchml_hello_unpack(v->in, s->key, &v->greeting, &hello)) {
        server_say(s, "%s does not know the secret, or is no worker of this version", v->name);
        drop(s, v);
        return;
    }
    joined = job_join(s, v, &hello, &a);
    s->nstrangers -= joined;
    if (pki_switchml_answer_pack(&a, s->key, &v->greeting, &hello, bytes) != PK_OK || !tell(v, bytes, sizeof bytes) || !joined)
        drop(s, v);
}

void visitor_step(struct server *s, struct visitor *v)
{
    unsigned char more;
    ssize_t n =
        v->job == NULL ? recv(v->fd, v->in + v->have, sizeof v->in - v->have, MSG_DONTWAIT) : recv(v->fd, &more, 1, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0 || v->job != NULL) { /* a worker says nothing more */
        drop(s, v);
        return;
    }
    v->have += (size_t)n;
    if (v->have == sizeof v->in)
        answer(s, v);
}

void server_turn(struct server *s, uint64_t now)
{
    if (s->hear_at != 0 && now >= s->hear_at)
        listen_again(s);
    for (struct pki_list *n = s->visitors.next, *next; n != &s->visitors; n = next) {
        struct visitor *v = pki_container_of(n, struct visitor, node);

        next = n->next;
        if (v->job == NULL && now > v->deadline_ns)
            drop(s, v);
    }
}

void server_close_visitors(struct server *s)
{
    while (!pki_list_empty(&s->visitors))
        drop(s, pki_container_of(s->visitors.next, struct visitor, node));
}
