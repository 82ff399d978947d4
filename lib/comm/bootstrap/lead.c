/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ids whose rank 0 may be in any process. The process that made the id has a thread that listens: rank 0 tells it where it
 * listens itself, and the thread tells that to every other rank, those that came before included. Nothing secret is sent.
 */
#include "comm/bootstrap/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/bootstrap/accept.h"
#include "util/auth.h"
#include "util/clock.h"
#include "util/fork.h"
#include "util/thread.h"

#define ANSWER_NS (10 * PKI_NS_PER_S) /* of the thread, which does nothing else */

/* A rank that has proved itself and waits to hear where rank 0 is. */
struct unproven {
    int fd;
    uint32_t rank;
};

struct lead {
    struct pki_list link; /* of `leads`, until somebody drops it */
    pk_unique_id_t id;
    struct pki_secret secret;
    int listener_count, listeners[PKI_MEETING_LISTENERS];
    struct pki_call_off stop;
    struct pki_acceptor *acceptor;
    struct pki_conn root; /* rank 0's, until it has said where it is */
    unsigned char where[PK_UNIQUE_ID_BYTES];
    bool known; /* `where` and `size` are */
    uint32_t size;
    unsigned char *led; /* by rank; NULL until known */
    uint32_t led_count;
    struct unproven *unproven_list;
    size_t unproven_count, unproven_room;
};

static struct {
    pthread_mutex_t lock;
    struct pki_list leads;
} table = { .lock = PTHREAD_MUTEX_INITIALIZER, .leads = { &table.leads, &table.leads } };

/* The threads are the parent's; what they had is closed already. */
static void start_over(void)
{
    pthread_mutex_init(&table.lock, NULL);
    pki_list_init(&table.leads);
}

/* ---- the thread ---- */

static void say_where(struct lead *l, const struct unproven *unproven)
{
    unsigned char bytes[PKI_FRAME_HEADER_BYTES + PK_UNIQUE_ID_BYTES];
    const struct pki_frame frame = { .type = PKI_FRAME_WHERE, .bytes = PK_UNIQUE_ID_BYTES };

    pki_wire_put_frame(bytes, &frame);
    memcpy(bytes + PKI_FRAME_HEADER_BYTES, l->where, sizeof l->where);
    if (send(unproven->fd, bytes, sizeof bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof bytes &&
        unproven->rank < l->size && l->led[unproven->rank] == 0) {
        l->led[unproven->rank] = 1;
        l->led_count++;
    }
    close(unproven->fd);
}

static void take_unproven(struct lead *l, const struct unproven *unproven)
{
    size_t room = l->unproven_room == 0 ? 16 : 2 * l->unproven_room;
    struct unproven *grown;

    if (l->known) {
        say_where(l, unproven);
        return;
    }
    if (l->unproven_count == l->unproven_room) {
        grown = realloc(l->unproven_list, room * sizeof *grown);
        if (grown == NULL) { /* it comes again */
            close(unproven->fd);
            return;
        }
        l->unproven_list = grown;
        l->unproven_room = room;
    }
    l->unproven_list[l->unproven_count++] = *unproven;
}

static void answer_root(struct lead *l)
{
    const struct pki_frame shutdown = { .type = PKI_FRAME_SHUTDOWN };
    unsigned char bytes[PKI_FRAME_HEADER_BYTES];

    pki_wire_put_frame(bytes, &shutdown);
    (void)send(l->root.fd, bytes, sizeof bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    pki_conn_close(&l->root);
}

/* Which of the two is meant nobody knows: the first one that has said where it is stays. */
static void refuse_root(struct lead *l)
{
    struct pki_notice notice = { .code = PK_ERR_MISMATCH, .peer = 0 };

    snprintf(notice.text, sizeof notice.text, "two processes call themselves rank 0 of %u", l->size);
    pki_conn_tell(l->root.fd, 0, &notice);
    pki_conn_close(&l->root);
}

/* Rank 0 says where it is; from then on everybody can be told. */
static void hear_root(struct lead *l)
{
    pk_result_t result = l->root.fd >= 0 ? pki_conn_read(&l->root, 0, 0) : PK_IN_PROGRESS;

    if (result == PK_IN_PROGRESS)
        return;
    if (result != PK_OK || l->root.frame.type != PKI_FRAME_WHERE || l->size < 1 || l->size > PKI_RANKS_MAX) {
        pki_conn_close(&l->root);
        return;
    }
    if (l->known && memcmp(l->where, l->root.payload, sizeof l->where) != 0) {
        refuse_root(l);
        return;
    }
    if (l->led == NULL)
        l->led = calloc(l->size, 1);
    if (l->led == NULL)
        return;
    memcpy(l->where, l->root.payload, sizeof l->where);
    l->known = true;
    answer_root(l);
    for (size_t i = 0; i < l->unproven_count; i++)
        say_where(l, &l->unproven_list[i]);
    l->unproven_count = 0;
}

static void admit(struct lead *l)
{
    struct pki_hello hello;
    int fd;

    while (pki_acceptor_take(l->acceptor, &fd, &hello)) {
        if (hello.from != 0) {
            take_unproven(l, &(struct unproven){ .fd = fd, .rank = hello.from });
            continue;
        }
        hear_root(l); /* what one who came before has said counts */
        if (l->root.fd >= 0)
            refuse_root(l);
        l->root.fd = fd;
        if (!l->known)
            l->size = hello.size;
    }
}

static bool is_done(const struct lead *l)
{
    return l->known && l->led_count + 1 >= l->size;
}

static void lead_all(struct lead *l)
{
    struct pollfd polls[PKI_ACCEPT_POLLS + 1];
    pk_result_t result = PK_OK;

    while (result == PK_OK && !is_done(l)) {
        size_t count = pki_acceptor_polls(l->acceptor, polls);
        const struct pki_wait wait = { .deadline_ns = pki_acceptor_due_ns(l->acceptor), .cancel = &l->stop };

        polls[count] = (struct pollfd){ .fd = l->root.fd, .events = POLLIN };
        result = pki_poll(polls, count + 1, &wait);
        if (result == PK_OK || result == PK_IN_PROGRESS)
            result = pki_acceptor_step(l->acceptor, polls);
        admit(l);
        hear_root(l);
    }
}

static void free_lead(struct lead *l)
{
    for (size_t i = 0; i < l->unproven_count; i++)
        close(l->unproven_list[i].fd);
    for (int i = 0; i < l->listener_count; i++) {
        pki_fork_let_go(l->listeners[i]);
        close(l->listeners[i]);
    }
    pki_conn_close(&l->root);
    pki_acceptor_close(l->acceptor);
    free(l->unproven_list);
    free(l->led);
    pki_auth_wipe(l, sizeof *l);
    free(l);
}

static void *thread_main(void *arg)
{
    struct lead *l = arg;

    lead_all(l);
    pthread_mutex_lock(&table.lock);
    if (!atomic_load(&l->stop.state)) /* else whoever stopped it has taken it out */
        pki_list_remove(&l->link);
    pthread_mutex_unlock(&table.lock);
    free_lead(l);
    return NULL;
}

/* ---- the process that makes the id ---- */

/* *id is there already; its listeners become the thread's. */
static pk_result_t start(struct lead *l, const struct pki_id *made)
{
    pthread_t thread;

    l->secret = made->secret;
    l->root.fd = -1;
    l->listener_count = pki_listener_take(&l->id, l->listeners);
    l->acceptor = pki_acceptor_open(&l->secret, PKI_HELLO_CONTROL, 0, l->listeners, l->listener_count);
    if (l->acceptor == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory to lead ranks to rank 0");
    pki_fork_at_child(start_over);
    pthread_mutex_lock(&table.lock);
    pki_list_push(&table.leads, &l->link);
    pthread_mutex_unlock(&table.lock);
    if (pki_thread_start(&thread, thread_main, l) == 0) {
        pthread_detach(thread);
        return PK_OK;
    }
    pthread_mutex_lock(&table.lock);
    pki_list_remove(&l->link);
    pthread_mutex_unlock(&table.lock);
    return pki_fail_errno(PK_ERR_SYSTEM, NULL, "pthread_create of the thread that leads ranks to rank 0");
}

pk_result_t pki_bootstrap_id_anywhere(pk_unique_id_t *id)
{
    struct pki_id made = { .listened = true, .led = true };
    struct lead *l = calloc(1, sizeof *l);
    pk_unique_id_t out;
    pk_result_t result;

    if (l == NULL)
        return pki_fail(PK_ERR_MEMORY, NULL, "no memory for an id");
    pki_fork_look(); /* before there is a descriptor that is this process's */
    result = pki_auth_random(&made.secret, sizeof made.secret);
    if (result == PK_OK)
        result = pki_id_addresses(false, NULL, &made);
    if (result == PK_OK)
        result = pki_listener_make(&made, &l->id);
    out = l->id; /* the thread may be over, and have freed it, when it has begun */
    if (result == PK_OK)
        result = start(l, &made);
    else
        l->root.fd = -1;
    if (result == PK_OK)
        *id = out;
    else
        free_lead(l);
    pki_auth_wipe(&made.secret, sizeof made.secret);
    pki_auth_wipe(&out, sizeof out);
    return result;
}

bool pki_lead_drop(const pk_unique_id_t *id)
{
    bool found = false;

    pthread_mutex_lock(&table.lock);
    for (struct pki_list *at = table.leads.next; at != &table.leads && !found; at = at->next) {
        struct lead *l = pki_container_of(at, struct lead, link);

        found = memcmp(&l->id, id, sizeof *id) == 0;
        if (found) {
            pki_list_remove(&l->link);
            atomic_store(&l->stop.state, PKI_CALLED_OFF);
        }
    }
    pthread_mutex_unlock(&table.lock);
    return found;
}

/* ---- the ranks ---- */

/* Listen with the id's secret; *where says at which addresses. */
static pk_result_t listen_here(struct pki_meeting *meeting, unsigned char where[PK_UNIQUE_ID_BYTES])
{
    struct pki_id made = { .secret = meeting->secret, .listened = true };
    pk_unique_id_t id, told;
    pk_result_t result = pki_id_addresses(false, NULL, &made);

    if (result == PK_OK)
        result = pki_listener_make(&made, &id);
    if (result == PK_OK) {
        meeting->listener_count = pki_listener_take(&id, meeting->listeners);
        pki_auth_wipe(&made.secret, sizeof made.secret);
        pki_wire_put_id(&told, &made);
        memcpy(where, told.bytes, sizeof told.bytes);
    }
    pki_auth_wipe(&made.secret, sizeof made.secret);
    return result;
}

/* It takes rank 0 to be here, or says why not. */
static pk_result_t hear_maker(struct pki_bootstrap *b, uint64_t deadline_ns)
{
    const struct pki_wait wait = { .deadline_ns = deadline_ns, .cancel = b->cancel };
    struct pki_conn *c = &b->conns[0];
    struct pollfd p = { .fd = c->fd, .events = POLLIN };
    struct pki_notice notice;
    pk_result_t result = pki_poll(&p, 1, &wait);

    if (result == PK_OK)
        result = pki_conn_read(c, 0, 0);
    if (result == PK_ERR_ABORTED)
        return pki_bootstrap_fail(b, PK_ERR_ABORTED, -1, "aborted");
    if (result == PK_OK && c->frame.type == PKI_FRAME_SHUTDOWN)
        return PK_OK;
    if (result == PK_OK && c->frame.type == PKI_FRAME_NOTICE && pki_wire_get_notice(c->payload, c->frame.bytes, &notice))
        return pki_bootstrap_fail(b, notice.code, -1, "%s", notice.text);
    return pki_bootstrap_fail(b, PK_ERR_PEER, -1, "the process that made the id refused the address of rank 0");
}

static pk_result_t tell_where(struct pki_bootstrap *b, const unsigned char where[PK_UNIQUE_ID_BYTES], uint64_t deadline_ns)
{
    const uint64_t soon = pki_now_ns() + ANSWER_NS;
    pk_result_t result = pki_bootstrap_send(b, 0, PKI_FRAME_WHERE, where, PK_UNIQUE_ID_BYTES, deadline_ns);

    return result == PK_OK ? hear_maker(b, soon < deadline_ns ? soon : deadline_ns) : result;
}

pk_result_t pki_bootstrap_come_forward(struct pki_bootstrap *b, struct pki_meeting *meeting, uint64_t deadline_ns)
{
    struct pki_seek *seek = pki_seek_open(b, meeting);
    unsigned char where[PK_UNIQUE_ID_BYTES];
    char text[PKI_NOTICE_TEXT];
    pk_result_t result =
        seek != NULL ? listen_here(meeting, where) : pki_fail(PK_ERR_MEMORY, NULL, "no memory to look for the id's maker");

    if (result == PK_OK)
        result = pki_seek_next(seek, deadline_ns, &b->conns[0].fd);
    if (result == PK_ERR_ABORTED)
        result = pki_bootstrap_fail(b, PK_ERR_ABORTED, -1, "aborted");
    else if (result == PK_IN_PROGRESS || result == PK_ERR_AUTH || result == PK_ERR_PEER) {
        result = result == PK_IN_PROGRESS ? PK_ERR_TIMEOUT : result;
        pki_seek_explain(seek, result, text, sizeof text);
        result = pki_bootstrap_fail(b, result, -1, "%s", text);
    } else if (result == PK_OK) {
        result = tell_where(b, where, deadline_ns);
    }
    pki_conn_close(&b->conns[0]);
    pki_seek_close(seek);
    return result;
}

pk_result_t pki_bootstrap_follow(struct pki_bootstrap *b, const struct pki_meeting *meeting, struct pki_meeting *there)
{
    struct pki_conn *c = &b->conns[0];
    pk_unique_id_t where;
    struct pki_id id;

    memcpy(where.bytes, c->payload, sizeof where.bytes);
    pki_conn_close(c);
    if (!pki_wire_get_id(&where, &id) || id.address_count == 0)
        return pki_bootstrap_fail(b, PK_ERR_PEER, -1, "the process that made the id named no address of rank 0");
    *there = (struct pki_meeting){
        .secret = meeting->secret, .guard = meeting->guard, .listened = true, .address_count = id.address_count
    };
    memcpy(there->address, id.address, sizeof id.address);
    return PK_OK;
}
