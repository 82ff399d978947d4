/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines and error records. The first function that sees an error calls one of pki_fail*, once; callers pass the code on. */
#ifndef PKI_LOG_H
#define PKI_LOG_H

#include <stdarg.h>
#include <stdbool.h>

#include "pickle/base.h"

enum pki_log_level { PKI_LOG_NONE, PKI_LOG_ERROR, PKI_LOG_WARN, PKI_LOG_INFO, PKI_LOG_DEBUG };

/* Who speaks: goes before the text of a line and into the error record. A zeroed one with rank and peer -1 says nothing. */
struct pki_where {
    int rank;
    int peer;
    const char *op; /* static string or NULL */
    uint64_t op_number;
};

#define PKI_NOWHERE ((struct pki_where){ .rank = -1, .peer = -1 })

#if defined(__GNUC__)
#define PKI_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define PKI_PRINTF(fmt, args)
#endif

/* Called with every line at or below the current level; replaces standard error. Set through pk_log_set_callback. */
typedef void (*pki_log_fn)(void *arg, int level, const char *line);
void pki_log_set_callback(pki_log_fn fn, void *arg);

/* Level from PK_LOG (none, error, warn, info, debug; default warn), read once. */
bool pki_log_enabled(enum pki_log_level level);

/* One line, no newline in fmt. errno is preserved. */
void pki_log(enum pki_log_level level, const struct pki_where *where, const char *fmt, ...) PKI_PRINTF(3, 4);

/* Record an error for the calling thread, log it, return `code`. pki_fail_errno appends ": strerror(errno)" and keeps errno in
 * the record. `where` may be NULL. */
pk_result_t pki_fail(pk_result_t code, const struct pki_where *where, const char *fmt, ...) PKI_PRINTF(3, 4);
pk_result_t pki_fail_errno(pk_result_t code, const struct pki_where *where, const char *fmt, ...) PKI_PRINTF(3, 4);

/* As pki_fail, for an error that has been logged where it was seen, with the errno of then: what it means to an operation. A
 * line of level info. */
pk_result_t pki_fail_again(pk_result_t code, int sys_errno, const struct pki_where *where, const char *fmt, ...) PKI_PRINTF(4, 5);

/* As pki_fail, but a line of level info: what callers ask for and do without where there is none. */
pk_result_t pki_decline(pk_result_t code, const char *fmt, ...) PKI_PRINTF(2, 3);

/* The errors of this thread, until it says false, are of an attempt on which nothing depends: lines of level info. */
void pki_log_attempt(bool attempt);

/* The calling thread's record; pki_error_set stores one that another thread made (a poisoned communicator's first error)
 * without logging it again. */
const pk_error_info_t *pki_error_get(void);
void pki_error_set(const pk_error_info_t *info);

#endif
