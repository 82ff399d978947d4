/* SPDX-License-Identifier: Apache-2.0 */
/* What the parent and the two workers share: the memory between them, and the commands. */
#ifndef CHANNELS_SHARED_H
#define CHANNELS_SHARED_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* What goes into a stream. CHAIN: a wait that is satisfied, a push, a word. PUSHW, PULLW: a copy and a word. */
enum kind { NONE, PUSH, PULL, H2D, D2H, D2D, KERN, WRITE, CHAIN, PUSHW, PULLW, KINDS };
enum wait_type { BY_VALUE, BY_KERNEL };
enum form { MANY_STREAMS, ONE_STREAM };
enum mover { CE_PUSH, CE_PULL, K_PUSH, K_PULL, NO_COPY }; /* by a copy engine, by a kernel */
enum holder { H_NOTHING, H_LOAD_V, H_LOAD_K, H_FREE_V, H_FREE_K, H_SYNC_V, H_LAZY_V, H_LAZY_K, HOLDERS };

enum command {
    C_NONE,
    C_SETUP,
    C_WAITQ,
    C_PROBE,
    C_BUSY,
    C_SYNC,
    C_VERIFY,
    C_QUEUE,
    C_IDLE,
    C_BENCH,
    C_LOAD,
    C_FIRST,
    C_SECOND,
    C_LOCK,
    C_QUEUED,
    C_STARVE,
    C_ORDER,
    COMMANDS
};

enum {
    WAITERS = 16,      /* streams (or copies in one stream) that can wait */
    PROBES = 8,        /* streams that a kind of probe goes into */
    SRC_BLOCKS = 16,   /* blocks of random data to copy from */
    PUSH_BLOCKS = 48,  /* where the peer pushes to */
    LOCAL_BLOCKS = 48, /* where pulls, H2D and local copies go */
    HOST_BLOCKS = 40,
    WORDS = 1024,
    W_WAIT = 0,     /* + 32 * worker + i: words that streams wait for */
    W_MARK = 64,    /* + 128 * worker + i: words that kernels and value writes mark */
    W_TRUE = 320,   /* a word that is always there */
    W_BENCH = 330,  /* + 4 * worker: ready, done */
    W_CHAIN = 350,  /* ready, done */
    W_RANDOM = 400, /* words of random programs and sequences */
    W_LOCK = 500    /* words beside a thread that is inside the driver, and of `turns`: */
};

enum {
    L_HELD = W_LOCK,       /* what the holder's stream waits for */
    L_CALL = W_LOCK + 1,   /* marked by the calls */
    L_LAZY = W_LOCK + 8,   /* marked by the kernel of the holder */
    L_READY = W_LOCK + 10, /* of a chain that was queued before */
    L_DONE = W_LOCK + 11,
    L_BESIDE = W_LOCK + 12, /* of a copy beside pushes without end */
    L_BESIDE_DONE = W_LOCK + 13,
    L_ANY = W_LOCK + 14 /* nobody looks at it */
};

struct word {
    _Atomic uint32_t v;
    char pad[60];
};

struct cmd {
    int op;
    long a[12];
};

struct reply {
    int rc;
    long r[12];
    double d[8];
    char msg[120];
};

struct box {
    _Atomic uint32_t req, ack;
    struct cmd c;
    struct reply r;
};

struct shared {
    struct word word[WORDS];
    struct box box[2];
    _Atomic uint64_t load_bytes[2];
    _Atomic uint32_t ready[2], posted;
    char handle[2][64], extra[2][64]; /* legacy IPC handles: the buffer, a second small one */
};

int worker_main(int me, int memfd, int sock, const char *mode, long block, int dev, const char *cubin);

/* clock.c */
double now(void); /* ms */
void relax(void);
void spin_us(double us);

#endif
