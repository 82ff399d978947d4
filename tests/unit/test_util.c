/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines and error records, environment variables, sockets, element types. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "measure.h"
#include "pickle/base.h"
#include "util/clock.h"
#include "util/dtype.h"
#include "util/env.h"
#include "util/log.h"
#include "util/netif.h"
#include "util/socket.h"

/* ---- log ---- */

struct seen {
    int lines, level;
    char line[1200];
};

static void keep_line(void *arg, int level, const char *line)
{
    struct seen *seen = arg;

    seen->lines++;
    seen->level = level;
    snprintf(seen->line, sizeof seen->line, "%s", line);
}

Test(log, line_and_record)
{
    const struct pki_where where = { .rank = 3, .peer = 5, .op = "allreduce", .op_number = 118 };
    struct seen seen = { 0 };
    pk_error_info_t info = { .struct_size = sizeof info };

    unsetenv("PK_LOG");
    pki_log_set_callback(keep_line, &seen);
    errno = ENOENT;
    cr_expect_eq(pki_fail(PK_ERR_PEER, &where, "after %d of 64 chunks", 41), PK_ERR_PEER);
    cr_expect_eq(errno, ENOENT);
    cr_expect_eq(seen.lines, 1);
    cr_expect_eq(seen.level, PKI_LOG_ERROR);
    cr_expect_str_eq(seen.line, "pickle: rank 3: peer 5: allreduce 118: after 41 of 64 chunks");
    cr_expect_eq(pk_last_error(&info), PK_OK);
    cr_expect_eq(info.code, PK_ERR_PEER);
    cr_expect_eq(info.sys_errno, 0);
    cr_expect_eq(info.rank, 3);
    cr_expect_eq(info.peer, 5);
    cr_expect_eq(info.op_number, 118u);
    cr_expect_str_eq(info.op, "allreduce");
    cr_expect_str_eq(info.text, "rank 3: peer 5: allreduce 118: after 41 of 64 chunks");
    errno = ECONNRESET;
    cr_expect_eq(pki_fail_errno(PK_ERR_SYSTEM, NULL, "read"), PK_ERR_SYSTEM);
    cr_expect_eq(errno, ECONNRESET);
    cr_expect_str_eq(seen.line, "pickle: read: Connection reset by peer");
    cr_expect_eq(pki_error_get()->sys_errno, ECONNRESET);
    cr_expect_eq(pki_error_get()->rank, -1);
}

Test(log, levels)
{
    struct seen seen = { 0 };

    setenv("PK_LOG", "info", 1);
    pki_log_set_callback(keep_line, &seen);
    pki_log(PKI_LOG_INFO, NULL, "shown");
    pki_log(PKI_LOG_DEBUG, NULL, "hidden");
    cr_expect_eq(seen.lines, 1);
    cr_expect(pki_log_enabled(PKI_LOG_INFO) && !pki_log_enabled(PKI_LOG_DEBUG));
}

Test(log, silence_still_records)
{
    struct seen seen = { 0 };

    setenv("PK_LOG", "none", 1);
    pki_log_set_callback(keep_line, &seen);
    pki_fail(PK_ERR_MEMORY, NULL, "quiet");
    cr_expect_eq(seen.lines, 0);
    cr_expect_eq(pki_error_get()->code, PK_ERR_MEMORY);
}

Test(log, what_is_declined_is_recorded_and_no_error_in_the_log)
{
    struct seen seen = { 0 };

    unsetenv("PK_LOG"); /* the default level */
    pki_log_set_callback(keep_line, &seen);
    cr_expect_eq(pki_decline(PK_ERR_UNSUPPORTED, "no %s found", "launcher"), PK_ERR_UNSUPPORTED);
    cr_expect_eq(seen.lines, 0);
    cr_expect_eq(pki_error_get()->code, PK_ERR_UNSUPPORTED);
    cr_expect_str_eq(pki_error_get()->text, "no launcher found");
}

Test(log, long_text_is_cut)
{
    static char text[5000];
    struct seen seen = { 0 };
    pk_error_info_t info = { .struct_size = sizeof info };

    unsetenv("PK_LOG");
    memset(text, 'x', sizeof text - 1);
    pki_log_set_callback(keep_line, &seen);
    pki_fail(PK_ERR_ARG, NULL, "%s", text);
    errno = EPERM;
    pki_fail_errno(PK_ERR_ARG, NULL, "%s", text);
    cr_expect_eq(pk_last_error(&info), PK_OK);
    cr_expect_eq(strlen(info.text), sizeof info.text - 1);
    cr_expect_gt(strlen(seen.line), 512u);
    cr_expect_lt(strlen(seen.line), 1024u);
}

Test(log, standard_error_gets_one_line_a_write)
{
    int ends[2];
    char text[256] = "";

    unsetenv("PK_LOG");
    cr_assert_eq(pipe2(ends, O_DIRECT | O_CLOEXEC), 0); /* packet mode: a read returns what one write wrote */
    dup2(ends[1], STDERR_FILENO);
    pki_log(PKI_LOG_ERROR, &(struct pki_where){ .rank = 0, .peer = -1, .op = "init" }, "first");
    pki_log(PKI_LOG_ERROR, NULL, "second");
    cr_assert_gt(read(ends[0], text, sizeof text - 1), 0);
    cr_expect_str_eq(text, "pickle: rank 0: init: first\n");
}

static void *other_thread(void *arg)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    (void)arg;
    cr_expect_eq(pk_last_error(&info), PK_OK);
    cr_expect_eq(info.code, PK_OK);
    cr_expect_eq(info.rank, -1);
    pki_fail(PK_ERR_AUTH, NULL, "elsewhere");
    return NULL;
}

Test(log, records_belong_to_threads)
{
    pthread_t thread;
    pk_error_info_t mine;

    setenv("PK_LOG", "none", 1);
    pki_fail(PK_ERR_MEMORY, NULL, "here");
    mine = *pki_error_get();
    cr_assert_eq(pthread_create(&thread, NULL, other_thread, NULL), 0);
    pthread_join(thread, NULL);
    cr_expect_eq(pki_error_get()->code, PK_ERR_MEMORY);
    pki_fail(PK_ERR_ARG, NULL, "later");
    pki_error_set(&mine);
    cr_expect_eq(pki_error_get()->code, PK_ERR_MEMORY);
}

Test(base, last_error_respects_the_callers_size)
{
    struct {
        pk_error_info_t info;
        unsigned char guard[16];
    } small;

    setenv("PK_LOG", "none", 1);
    pki_fail(PK_ERR_ARG, &(struct pki_where){ .rank = 7, .peer = -1 }, "text");
    memset(&small, 0xee, sizeof small);
    small.info.struct_size = offsetof(pk_error_info_t, peer);
    cr_expect_eq(pk_last_error(&small.info), PK_OK);
    cr_expect_eq(small.info.rank, 7);
    cr_expect_eq(small.info.struct_size, offsetof(pk_error_info_t, peer));
    cr_expect_eq(((unsigned char *)&small.info.peer)[0], 0xee);
    small.info.struct_size = sizeof small; /* a later header's, with more fields */
    cr_expect_eq(pk_last_error(&small.info), PK_OK);
    cr_expect_eq(small.guard[0], 0xee);
    small.info.struct_size = sizeof(size_t);
    cr_expect_eq(pk_last_error(&small.info), PK_ERR_ARG);
    cr_expect_eq(pk_last_error(NULL), PK_ERR_ARG);
}

Test(base, types_and_texts)
{
    static const size_t bytes[PK_DTYPE_COUNT] = { 1, 1, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1 };

    for (int t = 0; t < PK_DTYPE_COUNT; t++) {
        cr_expect_eq(pk_dtype_size((pk_dtype_t)t), bytes[t]);
        cr_expect_eq(pki_dtype_bytes((pk_dtype_t)t), bytes[t]);
    }
    cr_expect_eq(pk_dtype_size((pk_dtype_t)PK_DTYPE_COUNT), 0u);
    cr_expect_eq(pk_dtype_size((pk_dtype_t)-1), 0u);
    cr_expect_str_eq(pk_dtype_name(PK_BF16), "bf16");
    cr_expect_str_eq(pk_dtype_name(PK_UINT64), "uint64");
    cr_expect_str_eq(pk_dtype_name(PK_F8E5M2), "f8e5m2");
    cr_expect_str_eq(pk_dtype_name((pk_dtype_t)99), "?");
    for (int r = 0; r <= PK_ERR_INTERNAL; r++)
        for (int s = 0; s < r; s++)
            cr_expect_str_neq(pk_strerror((pk_result_t)r), pk_strerror((pk_result_t)s));
    cr_expect_not_null(pk_strerror((pk_result_t)1000));
    cr_expect_eq(pk_version(), PK_VERSION_MAJOR * 10000 + PK_VERSION_MINOR * 100 + PK_VERSION_PATCH);
}

/* ---- env ---- */

static pk_result_t int_of(const char *text, int64_t *value)
{
    setenv("PK_TEST", text, 1);
    return pki_env_int("PK_TEST", -5, 100, 42, value);
}

Test(env, integers)
{
    static const char *const wrong[] = { "x", "1x", " 1", "+1", "1 ", "0x10", "101", "-6", "99999999999999999999", "-", "1.5" };
    int64_t value = 7;

    setenv("PK_LOG", "none", 1);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        cr_expect_eq(int_of(wrong[i], &value), PK_ERR_ARG, "%s", wrong[i]);
        cr_expect_eq(value, 7);
    }
    cr_expect(strstr(pki_error_get()->text, "PK_TEST=1.5 is not an integer from -5 to 100") != NULL);
    cr_expect(int_of("100", &value) == PK_OK && value == 100);
    cr_expect(int_of("-5", &value) == PK_OK && value == -5);
    cr_expect(int_of("", &value) == PK_OK && value == 42);
    unsetenv("PK_TEST");
    cr_expect(pki_env_int("PK_TEST", 0, 1, 9, &value) == PK_OK && value == 9);
}

Test(env, words_and_truths)
{
    static const char *const words[] = { "auto", "value", "kernel", NULL };
    int index = -1;
    bool truth = false;

    setenv("PK_LOG", "none", 1);
    unsetenv("PK_TEST");
    cr_expect(pki_env_word("PK_TEST", words, 2, &index) == PK_OK && index == 2);
    cr_expect(pki_env_bool("PK_TEST", true, &truth) == PK_OK && truth);
    setenv("PK_TEST", "value", 1);
    cr_expect(pki_env_word("PK_TEST", words, 2, &index) == PK_OK && index == 1);
    setenv("PK_TEST", "Value", 1);
    cr_expect_eq(pki_env_word("PK_TEST", words, 2, &index), PK_ERR_ARG);
    cr_expect(strstr(pki_error_get()->text, "PK_TEST=Value is not one of auto, value, kernel") != NULL);
    cr_expect_eq(pki_env_bool("PK_TEST", true, &truth), PK_ERR_ARG);
    setenv("PK_TEST", "off", 1);
    cr_expect(pki_env_bool("PK_TEST", true, &truth) == PK_OK && !truth);
    setenv("PK_TEST", "1", 1);
    cr_expect(pki_env_bool("PK_TEST", false, &truth) == PK_OK && truth);
}

/* ---- sockets ---- */

static void pair(int ends[2])
{
    setenv("PK_LOG", "none", 1);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
}

#define BULK_BYTES (4u << 20)

static void *bulk_sender(void *arg)
{
    const struct pki_wait wait = { .deadline_ns = pki_deadline_ns(5000) };
    unsigned char *data = malloc(BULK_BYTES);

    for (size_t i = 0; i < BULK_BYTES; i++)
        data[i] = (unsigned char)(i * 7 >> 3);
    cr_expect_eq(pki_send_all(*(int *)arg, data, BULK_BYTES, &wait, NULL), PK_OK);
    free(data);
    close(*(int *)arg);
    return NULL;
}

Test(socket, all_of_it_or_an_error, .timeout = 20)
{
    const struct pki_wait wait = { .deadline_ns = pki_deadline_ns(5000) };
    unsigned char *data = malloc(BULK_BYTES);
    struct pollfd p = { .events = POLLIN };
    size_t got = 0, wrong = 0;
    pthread_t thread;
    int ends[2];

    pair(ends);
    p.fd = ends[1];
    cr_assert_eq(pthread_create(&thread, NULL, bulk_sender, &ends[0]), 0);
    while (got < BULK_BYTES && pki_poll(&p, 1, &wait) == PK_OK) {
        ssize_t n = recv(ends[1], data + got, BULK_BYTES - got, 0);

        cr_assert_gt(n, 0);
        got += (size_t)n;
    }
    cr_expect_eq(got, BULK_BYTES);
    for (size_t i = 0; i < BULK_BYTES; i++)
        wrong += data[i] != (unsigned char)(i * 7 >> 3);
    cr_expect_eq(wrong, 0u);
    pthread_join(thread, NULL);
    cr_expect_eq(pki_send_all(ends[1], data, 1, &wait, NULL), PK_ERR_PEER); /* and no SIGPIPE */
    free(data);
}

Test(socket, deadline_and_cancel, .timeout = 20)
{
    static struct pki_call_off cancel;
    struct pki_wait wait = { .deadline_ns = pki_deadline_ns(60), .cancel = &cancel };
    uint64_t began = pki_now_ns();
    char *data = calloc(1, BULK_BYTES); /* more than fits */
    int ends[2];

    pair(ends);
    cr_expect_eq(pki_send_all(ends[0], data, BULK_BYTES, &wait, NULL), PK_ERR_TIMEOUT);
    cr_expect_geq(pki_now_ns() - began, 60 * PKI_NS_PER_MS);
    cr_expect_leq(pki_now_ns() - began, 5 * PKI_NS_PER_S);
    atomic_store(&cancel.state, PKI_CALLED_OFF);
    wait.deadline_ns = PKI_NO_DEADLINE;
    cr_expect_eq(pki_send_all(ends[0], data, 1, &wait, NULL), PK_ERR_ABORTED);
    free(data);
    cr_expect_eq(pki_poll(NULL, 0, &wait), PK_ERR_ABORTED);
}

static pk_result_t hear_third(void *count)
{
    return ++*(int *)count < 3 ? PK_OK : PK_ERR_ABORTED;
}

/* What the listener says ends the wait, as it is and without another record. */
Test(socket, waits_that_listen, .timeout = 20)
{
    int ends[2], heard = 0;
    char byte;
    struct pki_wait wait = { .deadline_ns = pki_deadline_ns(10000), .listen = hear_third, .arg = &heard };
    struct pki_frame_in in = { .data = &byte, .capacity = 1 };

    pair(ends);
    pki_error_set(&(pk_error_info_t){ .code = PK_OK });
    cr_expect_eq(pki_fd_recv_wait(ends[1], &in, &wait, NULL), PK_ERR_ABORTED);
    cr_expect(heard == 3 && pki_error_get()->code == PK_OK);
    heard = 0;
    cr_expect_eq(pki_fd_send(ends[0], "x", 1, NULL, 0, NULL), PK_OK);
    cr_expect_eq(pki_fd_recv_wait(ends[1], &in, &wait, NULL), PK_OK);
    cr_expect(heard == 0 && byte == 'x');
    wait.deadline_ns = pki_deadline_ns(30);
    cr_expect_eq(pki_fd_recv_wait(ends[1], &in, &wait, NULL), PK_ERR_TIMEOUT);
}

Test(socket, frames_keep_their_borders_and_descriptors)
{
    int ends[2], null = open("/dev/null", O_RDWR | O_CLOEXEC), zero = open("/dev/zero", O_RDWR | O_CLOEXEC), got[2] = { -1, -1 };
    char data[PKI_FRAME_MAX], in_data[PKI_FRAME_MAX];
    struct pki_frame_in in = { .data = in_data, .capacity = sizeof in_data, .fds = got, .fd_capacity = 2 };
    char byte = 1;

    pair(ends);
    memset(data, 'a', sizeof data);
    cr_expect_eq(pki_fd_recv(ends[1], &in, NULL), PK_IN_PROGRESS);
    cr_expect_eq(pki_fd_send(ends[0], data, 5, NULL, 0, NULL), PK_OK);
    cr_expect_eq(pki_fd_send(ends[0], data, sizeof data, (int[]){ null, zero }, 2, NULL), PK_OK);
    cr_expect_eq(pki_fd_send(ends[0], NULL, 0, &zero, 1, NULL), PK_OK);
    cr_expect_eq(pki_fd_recv(ends[1], &in, NULL), PK_OK);
    cr_expect(in.bytes == 5 && in.fd_count == 0);
    cr_expect_eq(pki_fd_recv(ends[1], &in, NULL), PK_OK);
    cr_expect(in.bytes == sizeof data && in.fd_count == 2 && memcmp(data, in_data, sizeof data) == 0);
    cr_expect_eq(read(got[0], &byte, 1), 0); /* null */
    cr_expect(read(got[1], &byte, 1) == 1 && byte == 0);
    cr_expect_neq(fcntl(got[0], F_GETFD) & FD_CLOEXEC, 0);
    cr_expect_eq(pki_fd_recv(ends[1], &in, NULL), PK_OK);
    cr_expect(in.bytes == 0 && in.fd_count == 1);
    cr_expect_eq(pki_fd_recv(ends[1], &in, NULL), PK_IN_PROGRESS);
    close(ends[0]);
    cr_expect_eq(pki_fd_recv(ends[1], &in, NULL), PK_ERR_PEER);
}

Test(socket, frames_are_whole_or_not_at_all)
{
    char data[PKI_FRAME_MAX] = { 0 };
    struct pki_frame_in in = { .data = data, .capacity = sizeof data };
    int ends[2], sent = 0, received = 0;
    pk_result_t result;

    pair(ends);
    while ((result = pki_fd_send(ends[0], data, 1 + (size_t)(sent * 997) % (PKI_FRAME_MAX - 1), NULL, 0, NULL)) == PK_OK)
        sent++;
    cr_expect_eq(result, PK_IN_PROGRESS);
    cr_expect_gt(sent, 10);
    while (pki_fd_recv(ends[1], &in, NULL) == PK_OK) {
        cr_expect_eq(in.bytes, 1 + (size_t)(received * 997) % (PKI_FRAME_MAX - 1));
        received++;
    }
    cr_expect_eq(received, sent);
    cr_expect_eq(pki_fd_send(ends[0], data, PKI_FRAME_MAX + 1, NULL, 0, NULL), PK_ERR_ARG);
}

Test(socket, many_descriptors)
{
    int ends[2], out[PKI_FRAME_FDS], got[PKI_FRAME_FDS], before;
    struct pki_frame_in in = { .fds = got, .fd_capacity = PKI_FRAME_FDS };

    pair(ends);
    for (int i = 0; i < PKI_FRAME_FDS; i++)
        out[i] = ends[0];
    before = open_files();
    cr_assert_eq(pki_fd_send(ends[0], NULL, 0, out, PKI_FRAME_FDS, NULL), PK_OK);
    cr_assert_eq(pki_fd_recv(ends[1], &in, NULL), PK_OK);
    cr_expect_eq(in.fd_count, PKI_FRAME_FDS);
    cr_expect_eq(open_files(), before + PKI_FRAME_FDS);
    cr_expect_eq(pki_fd_send(ends[0], NULL, 0, out, PKI_FRAME_FDS + 1, NULL), PK_ERR_ARG);
}

/* The system delivers as many as fit and drops the rest: an error, and nothing stays open behind it. */
Test(socket, lost_descriptors_are_an_error_without_leaks)
{
    int ends[2], out[40], got[40], before;
    struct pki_frame_in in = { .fds = got, .fd_capacity = 40 };
    struct rlimit limit;

    pair(ends);
    for (int i = 0; i < 40; i++)
        out[i] = ends[0];
    before = open_files();
    cr_assert_eq(pki_fd_send(ends[0], NULL, 0, out, 40, NULL), PK_OK);
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = (rlim_t)before + 10;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    cr_expect_eq(pki_fd_recv(ends[1], &in, NULL), PK_ERR_SYSTEM);
    cr_expect_eq(open_files(), before);
}

Test(socket, frames_that_do_not_fit)
{
    int ends[2], before;
    char small[4];
    struct pki_frame_in in = { .data = small, .capacity = sizeof small };

    pair(ends);
    before = open_files();
    cr_assert_eq(pki_fd_send(ends[0], "12345678", 8, ends, 1, NULL), PK_OK);
    cr_expect_eq(pki_fd_recv(ends[1], &in, NULL), PK_ERR_ARG);
    cr_expect_eq(open_files(), before);
    close(ends[0]);
    close(ends[1]);
    pair(ends);
    cr_assert_eq(send(ends[0], "no frame at all", 15, 0), 15);
    cr_expect_eq(pki_fd_recv(ends[1], &in, NULL), PK_ERR_INTERNAL);
}

/* ---- addresses ---- */

static struct sockaddr_storage address_of(int family, uint16_t port)
{
    const struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT, .sin6_scope_id = 7 };
    struct sockaddr_storage address = { 0 };

    if (family == AF_INET6)
        memcpy(&address, &v6, sizeof v6);
    else
        pki_netif_loopback(&address);
    pki_netif_set_port(&address, port);
    return address;
}

Test(util, addresses)
{
    static const struct {
        int family;
        const char *text;
        socklen_t bytes;
    } wanted[] = { { AF_INET, "127.0.0.1:4000", sizeof(struct sockaddr_in) },
                   { AF_INET6, "[::1]:4000", sizeof(struct sockaddr_in6) } };

    for (int i = 0; i < 2; i++) {
        const struct sockaddr_storage address = address_of(wanted[i].family, 4000);
        struct sockaddr_storage back;
        unsigned char wire[PKI_NETIF_WIRE_BYTES];
        char text[PKI_NETIF_TEXT];

        pki_netif_format(&address, text);
        cr_expect_str_eq(text, wanted[i].text);
        cr_expect_eq(pki_netif_bytes(&address), wanted[i].bytes);
        cr_expect(pki_netif_is_loopback(&address));
        pki_netif_put(wire, &address);
        cr_assert(pki_netif_get(wire, &back));
        cr_expect_arr_eq(&back, &address, sizeof back);
    }
}

/* Bytes that no writer makes: another family, no port, anything but zero where IPv4 has nothing. */
Test(util, addresses_refused)
{
    static const struct {
        int family, at;
        unsigned char value;
    } wrong[] = { { AF_INET, 0, 5 }, { AF_INET6, 1, 1 }, { AF_INET, 4, 1 },
                  { AF_INET, 7, 1 }, { AF_INET, 12, 1 }, { AF_INET, 23, 1 } };
    struct sockaddr_storage address = address_of(AF_INET, 0), back;
    unsigned char wire[PKI_NETIF_WIRE_BYTES];

    pki_netif_put(wire, &address);
    cr_expect_not(pki_netif_get(wire, &back), "port 0");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        address = address_of(wrong[i].family, 4000);
        pki_netif_put(wire, &address);
        cr_assert(pki_netif_get(wire, &back));
        wire[wrong[i].at] = wrong[i].value;
        cr_expect_not(pki_netif_get(wire, &back), "byte %d", wrong[i].at);
    }
}
