/* SPDX-License-Identifier: Apache-2.0 */
#include "util/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/cancel.h"
#include "util/fork.h"
#include "util/stderr.h"

#define LINE_BYTES PKI_STDERR_LINE
#define TAG "pickle: "
#define TAG_BYTES (sizeof(TAG) - 1)

static _Thread_local pk_error_info_t last_error = { .rank = -1, .peer = -1 };
static _Thread_local bool is_attempt;

/* Held while the callback runs, so that a callback is never running once its replacement has been set. */
static struct {
    pthread_mutex_t lock;
    pki_log_fn fn;
    void *arg;
} sink = { .lock = PTHREAD_MUTEX_INITIALIZER };

static const char *const level_names[] = { "none", "error", "warn", "info", "debug" };

/* `line` holds `length` bytes, of which TAG is the first, and room for a newline. */
static void emit(enum pki_log_level level, char *line, size_t length);

static enum pki_log_level level_from_environment(void)
{
    const char *word = getenv("PK_LOG");
    char line[128];

    if (word == NULL || word[0] == '\0')
        return PKI_LOG_WARN;
    for (size_t i = 0; i < sizeof level_names / sizeof level_names[0]; i++)
        if (strcmp(word, level_names[i]) == 0)
            return (enum pki_log_level)i;
    emit(PKI_LOG_WARN, line,
         (size_t)snprintf(line, sizeof line - 1, TAG "PK_LOG=%.40s is not one of none, error, warn, info, debug; using warn",
                          word));
    return PKI_LOG_WARN;
}

bool pki_log_enabled(enum pki_log_level level)
{
    /* -1: not read yet. Two threads that race here read the same variable, so relaxed order is enough. */
    static atomic_int current = -1;
    int now = atomic_load_explicit(&current, memory_order_relaxed);

    if (now < 0) {
        now = (int)level_from_environment();
        atomic_store_explicit(&current, now, memory_order_relaxed);
    }
    return (int)level <= now;
}

/* The lock may be that of a thread that only the parent has, inside a callback. */
static void start_over(void)
{
    pthread_mutex_init(&sink.lock, NULL);
}

static void watch_forks(void)
{
    pki_fork_at_child(start_over);
}

static void lock_sink(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&sink.lock);
}

void pki_log_set_callback(pki_log_fn fn, void *arg)
{
    lock_sink();
    sink.fn = fn;
    sink.arg = arg;
    pthread_mutex_unlock(&sink.lock);
}

/* snprintf's result as an offset that never leaves the buffer. */
static size_t advance(size_t at, size_t room, int written)
{
    if (written < 0)
        return at;
    return (size_t)written < room - at ? at + (size_t)written : room - 1;
}

/* "rank 3: peer 5: allreduce 118: text", cut to fit, always terminated. Returns its length. */
static size_t compose(char *out, size_t room, const struct pki_where *where, const char *fmt, va_list args)
{
    size_t at = 0;

    out[0] = '\0';
    if (where != NULL && where->rank >= 0)
        at = advance(at, room, snprintf(out + at, room - at, "rank %d: ", where->rank));
    if (where != NULL && where->peer >= 0)
        at = advance(at, room, snprintf(out + at, room - at, "peer %d: ", where->peer));
    if (where != NULL && where->op != NULL && where->op_number != 0)
        at = advance(at, room, snprintf(out + at, room - at, "%s %llu: ", where->op, (unsigned long long)where->op_number));
    else if (where != NULL && where->op != NULL)
        at = advance(at, room, snprintf(out + at, room - at, "%s: ", where->op));
    return advance(at, room, vsnprintf(out + at, room - at, fmt, args));
}

static void emit(enum pki_log_level level, char *line, size_t length)
{
    const int cancel = pki_cancel_hold();

    lock_sink();
    if (sink.fn != NULL) {
        sink.fn(sink.arg, (int)level, line);
    } else {
        line[length] = '\n';
        pki_stderr_line(line, length + 1);
    }
    pthread_mutex_unlock(&sink.lock);
    pki_cancel_release(cancel);
}

void pki_log(enum pki_log_level level, const struct pki_where *where, const char *fmt, ...)
{
    int saved = errno;
    char line[LINE_BYTES] = TAG;
    size_t length;
    va_list args;

    if (!pki_log_enabled(level))
        return;
    va_start(args, fmt);
    length = compose(line + TAG_BYTES, sizeof line - TAG_BYTES - 1, where, fmt, args);
    va_end(args);
    emit(level, line, TAG_BYTES + length);
    errno = saved;
}

static void record(pk_result_t code, int sys_errno, const struct pki_where *where, const char *text)
{
    const struct pki_where who = where != NULL ? *where : PKI_NOWHERE;
    pk_error_info_t *info = &last_error;

    memset(info, 0, sizeof *info);
    info->struct_size = sizeof *info;
    info->code = code;
    info->sys_errno = sys_errno;
    info->rank = who.rank;
    info->peer = who.peer;
    info->op_number = who.op_number;
    snprintf(info->op, sizeof info->op, "%s", who.op != NULL ? who.op : "");
    memcpy(info->text, text, strnlen(text, sizeof info->text - 1)); /* the rest is zero */
}

void pki_log_attempt(bool attempt)
{
    is_attempt = attempt;
}

static void fail(enum pki_log_level level, pk_result_t code, int sys_errno, const struct pki_where *where, const char *fmt,
                 va_list args)
{
    char line[LINE_BYTES] = TAG;
    char *text = line + TAG_BYTES;
    const size_t room = sizeof line - TAG_BYTES - 1;
    size_t length = compose(text, room, where, fmt, args);
    char reason[128];

    if (sys_errno != 0)
        length =
            advance(length, room, snprintf(text + length, room - length, ": %s", strerror_r(sys_errno, reason, sizeof reason)));
    record(code, sys_errno, where, text);
    if (is_attempt)
        level = PKI_LOG_INFO;
    if (pki_log_enabled(level))
        emit(level, line, TAG_BYTES + length);
}

pk_result_t pki_fail(pk_result_t code, const struct pki_where *where, const char *fmt, ...)
{
    int saved = errno;
    va_list args;

    va_start(args, fmt);
    fail(PKI_LOG_ERROR, code, 0, where, fmt, args);
    va_end(args);
    errno = saved;
    return code;
}

pk_result_t pki_fail_errno(pk_result_t code, const struct pki_where *where, const char *fmt, ...)
{
    int saved = errno;
    va_list args;

    va_start(args, fmt);
    fail(PKI_LOG_ERROR, code, saved, where, fmt, args);
    va_end(args);
    errno = saved;
    return code;
}

pk_result_t pki_fail_again(pk_result_t code, int sys_errno, const struct pki_where *where, const char *fmt, ...)
{
    int saved = errno;
    va_list args;

    va_start(args, fmt);
    fail(PKI_LOG_INFO, code, sys_errno, where, fmt, args);
    va_end(args);
    errno = saved;
    return code;
}

pk_result_t pki_decline(pk_result_t code, const char *fmt, ...)
{
    int saved = errno;
    va_list args;

    va_start(args, fmt);
    fail(PKI_LOG_INFO, code, 0, NULL, fmt, args);
    va_end(args);
    errno = saved;
    return code;
}

const pk_error_info_t *pki_error_get(void)
{
    return &last_error;
}

void pki_error_set(const pk_error_info_t *info)
{
    last_error = *info;
}
