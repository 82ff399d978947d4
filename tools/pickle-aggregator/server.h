/* SPDX-License-Identifier: Apache-2.0 */
/* pickle-aggregator: jobs with their workers, the connections by which these come and go, and the packets. */
#ifndef AGGREGATOR_SERVER_H
#define AGGREGATOR_SERVER_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "switchml/aggregator.h"
#include "switchml/datagrams.h"
#include "switchml/session.h"
#include "util/list.h"

#define JOBS_MAX 64
#define STRANGERS_MAX 256 /* who has proven nothing; then the one that came first has to go */
#define PLACES_MAX 65536  /* of the table of addresses; a power of two, and twice as many as there may be workers' threads */

struct sender { /* a thread of a worker */
    struct sockaddr_storage address;
    struct pki_receivers alone;
};

struct worker {
    bool present;
    struct sender senders[PKI_SWITCHML_THREADS_MAX];
};

struct job {
    struct pki_list node;
    unsigned char id[PKI_SWITCHML_ID_BYTES];
    unsigned number; /* since the start, for messages */
    uint32_t workers, elements, threads;
    uint32_t window; /* of a thread */
    uint32_t here;   /* workers present, */
    uint32_t came;   /* and those that have ever been */
    bool complained; /* of packets that disagree */
    struct worker worker[PKI_SWITCHML_WORKERS_MAX];
    struct pki_receivers all[PKI_SWITCHML_THREADS_MAX]; /* of each thread those that are present */
    struct pki_switchml_aggregator sums;
};

/* Who has connected: before its hello a stranger, then a worker for as long as the connection lasts. */
struct visitor {
    struct pki_list node;
    int fd;
    char name[80];
    struct sockaddr_storage peer;
    uint64_t deadline_ns; /* of the hello */
    struct pki_switchml_greeting greeting;
    unsigned char in[PKI_SWITCHML_HELLO_BYTES];
    size_t have;
    struct job *job;
    uint32_t rank;
};

struct place {       /* of a worker's thread, by the address of its packets */
    struct job *job; /* NULL: free */
    uint32_t rank, thread;
};

struct counts {
    uint64_t packets, replies, verdicts[PKI_SWITCHML_VERDICTS];
    uint64_t strangers; /* packets from addresses of no worker, */
    uint64_t malformed; /* and those that are no packets of the job */
    uint64_t refused;   /* times that there was no descriptor for who connects */
};

struct server {
    unsigned char key[PKI_SWITCHML_KEY_BYTES];
    uint32_t window_most;
    bool quiet;
    int listener, events; /* epoll */
    uint16_t port;        /* of packets */
    struct pki_datagrams datagrams;
    struct pki_list jobs, visitors;
    unsigned njobs, nstrangers, jobs_begun;
    uint64_t hear_at; /* the listener is not looked at until then; 0: it is */
    struct place places[PLACES_MAX];
    struct counts counts;
    /* the packet's sender looked up last */
    struct sockaddr_storage last_from;
    struct place last;
};

/* visitors.c */
/* The listener has something (false: nobody more), or the connection of a visitor. */
bool server_accept(struct server *s);
void visitor_step(struct server *s, struct visitor *v);
/* Now and then: strangers who are late are dropped, and the listener is looked at again. */
void server_turn(struct server *s, uint64_t now);
void server_close_visitors(struct server *s);

/* say.c: a line, and one that --quiet leaves out */
void server_print(const char *format, ...) __attribute__((format(printf, 1, 2)));
void server_say(const struct server *s, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* jobs.c */
/* A place for a worker that has proven the secret. False: `why` says. */
bool job_join(struct server *s, struct visitor *v, const struct pki_switchml_hello *hello, struct pki_switchml_answer *answer);
void job_leave(struct server *s, struct visitor *v);

/* packets.c: take what has come and answer it; how many packets there were, -1: the socket is of no use. */
int server_packets(struct server *s);
void server_forget_last(struct server *s); /* the table of addresses has changed */
struct place *server_place(struct server *s,
                           const struct sockaddr_storage *address); /* the thread's with this address, or a free one */

#endif
