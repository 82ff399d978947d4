/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "parent.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* No answer in so long: all words are opened, then the workers are killed, and the run goes on with new ones. */
enum { STANDS_MS = 3000, LOST_MS = 8000, START_MS = 30000 };

static void setting(const char *name, int v)
{
    char s[16];

    snprintf(s, sizeof s, "%d", v);
    if (v)
        setenv(name, s, 1);
    else
        unsetenv(name);
}

static void spawn(int me, int sock)
{
    char a[5][32];

    if ((parent.pid[me] = fork()) != 0)
        return;
    setting("CUDA_DEVICE_MAX_CONNECTIONS", parent.o.connections);
    setting("CUDA_DEVICE_MAX_COPY_CONNECTIONS", parent.o.copy_connections);
    snprintf(a[0], 32, "%d", me);
    snprintf(a[1], 32, "%d", parent.memfd);
    snprintf(a[2], 32, "%d", sock);
    snprintf(a[3], 32, "%ld", parent.o.block);
    snprintf(a[4], 32, "%d", parent.o.dev[me]);
    execl(parent.self, "channels", "worker", a[0], a[1], a[2], parent.o.mode, a[3], a[4], parent.o.cubin, (char *)NULL);
    _exit(9);
}

void kill_pair(void)
{
    for (int i = 0; i < 2; i++) {
        if (parent.pid[i] <= 0)
            continue;
        kill(parent.pid[i], SIGKILL);
        waitpid(parent.pid[i], NULL, 0);
        parent.pid[i] = 0;
    }
    parent.dead = 1;
}

void open_words(void)
{
    for (int i = 0; i < WORDS; i++) {
        if (i < W_MARK || (i >= W_RANDOM && i < W_RANDOM + 64))
            atomic_store(&parent.sh->word[i].v, parent.epoch);
        if (i >= W_LOCK && i < W_LOCK + 16 && i != L_DONE && i != L_BESIDE_DONE)
            atomic_store(&parent.sh->word[i].v, parent.epoch);
    }
}

static int gone(int w)
{
    int st;

    if (parent.pid[w] > 0 && waitpid(parent.pid[w], &st, WNOHANG) == parent.pid[w]) {
        printf("worker %d ended, status %x\n", w, st);
        parent.pid[w] = 0;
        kill_pair();
    }
    return parent.dead;
}

int start_pair(void)
{
    int sv[2];
    double t0 = now();

    kill_pair();
    memset(parent.sh, 0, sizeof *parent.sh);
    for (int i = 0; i < 2; i++)
        atomic_store(&parent.sh->box[i].req, 1);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sv))
        return -1;
    parent.dead = 0;
    spawn(0, sv[0]);
    spawn(1, sv[1]);
    close(sv[0]);
    close(sv[1]);
    for (int i = 0; i < 2; i++) {
        while (!atomic_load(&parent.sh->box[i].ack)) {
            if (gone(i) || now() - t0 > START_MS) {
                kill_pair();
                return -1;
            }
            usleep(500);
        }
    }
    printf("# %s %s connections %d copy connections %d: %s, start %.0f ms, at %.1f s\n", parent.experiment, parent.o.mode,
           parent.o.connections, parent.o.copy_connections, parent.sh->box[0].r.msg, now() - t0, (now() - parent.start) * 1e-3);
    fflush(stdout);
    return 0;
}

void post(int w, int op, int n, const long *a)
{
    struct box *b = &parent.sh->box[w];

    if (parent.dead)
        return;
    b->c.op = op;
    memcpy(b->c.a, a, (size_t)n * sizeof *a);
    atomic_fetch_add(&b->req, 1);
}

struct reply *answer(int w)
{
    struct box *b = &parent.sh->box[w];
    double t0 = now();

    parent.blocked = 0;
    for (unsigned n = 1; !parent.dead && atomic_load(&b->ack) != atomic_load(&b->req); n++) {
        relax();
        if (now() - t0 > STANDS_MS && !parent.blocked) {
            parent.blocked = 1;
            open_words();
            printf("worker %d: command %d stands, words opened\n", w, b->c.op);
        }
        if (now() - t0 > LOST_MS) {
            printf("worker %d: command %d never ended, killed\n", w, b->c.op);
            kill_pair();
        }
        if (parent.blocked || !(n & 4095))
            gone(w);
    }
    return parent.dead ? NULL : &b->r;
}

int both(int op, long a, long b)
{
    struct reply *r, *q;

    POST(0, op, a, b);
    POST(1, op, a, b);
    r = answer(0);
    q = answer(1);
    return r && q ? 0 : -1;
}

int late(void)
{
    return now() - parent.start > parent.o.limit * 1e3;
}

int finish(const char *what)
{
    long bad = 0, idle = 1, moves = 0;

    for (int w = 0; w < 2; w++) {
        struct reply *r = ASK(w, C_SYNC, 2000l);

        if (!r)
            return -1;
        idle &= r->r[0];
    }
    if (!idle) {
        printf("NOT IDLE after release: %s\n", what);
        kill_pair();
        return -1;
    }
    for (int w = 0; w < 2; w++) {
        struct reply *r = ASK(w, C_VERIFY, 0l);

        if (!r)
            return -1;
        bad += r->r[0];
        moves += r->r[1];
    }
    parent.unverified += bad != 0;
    if (bad)
        printf("WRONG DATA: %ld words of %ld moves: %s\n", bad, moves, what);
    return 0;
}
