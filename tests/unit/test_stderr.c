/* SPDX-License-Identifier: Apache-2.0 */
/* Lines on a standard error that nobody reads any more, or nobody reads now: they are lost, the next one says so, and nobody waits. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "util/log.h"

#define LOST 3
#define NOTE "pickle: lines lost before this one because standard error was full: 3\n"
#define NOBODY 65534

/* What has become descriptor 2, and its other end. */
static int ours, theirs;

static void make_pipe(void)
{
    int ends[2];

    cr_assert_eq(pipe(ends), 0);
    ours = ends[1];
    theirs = ends[0];
}

static void make_sockets(void)
{
    int ends[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    ours = ends[1];
    theirs = ends[0];
}

static void make_terminal(void)
{
    struct termios raw;

    theirs = posix_openpt(O_RDWR | O_NOCTTY);
    cr_assert(theirs >= 0 && grantpt(theirs) == 0 && unlockpt(theirs) == 0);
    ours = open(ptsname(theirs), O_RDWR | O_NOCTTY);
    cr_assert_geq(ours, 0);
    tcgetattr(ours, &raw);
    cfmakeraw(&raw); /* newlines stay newlines */
    tcsetattr(ours, TCSANOW, &raw);
}

static void become_stderr(void)
{
    unsetenv("PK_LOG");
    cr_assert_eq(dup2(ours, STDERR_FILENO), STDERR_FILENO);
}

/* Did any of it go in? */
static bool put_zeros(void)
{
    static char zeros[4096];
    bool any = false;

    for (size_t bytes = sizeof zeros; bytes > 0; bytes /= 2)
        while (write(ours, zeros, bytes) > 0)
            any = true;
    return any;
}

/* Until nothing more goes in, a byte at a time at the end. The kernel moves what a terminal has taken on to its other end by and by, and makes room. */
static void fill(void)
{
    int flags = fcntl(ours, F_GETFL);

    fcntl(ours, F_SETFL, flags | O_NONBLOCK);
    for (int still = 0; still < 20; still++) {
        if (put_zeros())
            still = 0;
        usleep(5000);
    }
    fcntl(ours, F_SETFL, flags);
}

/* The last of what is there to read, without the filling's zeros. Returns how many bytes it was with them. */
static size_t drain(char *text, size_t room)
{
    char piece[4096];
    size_t used = 0, all = 0;
    ssize_t n;

    fcntl(theirs, F_SETFL, O_NONBLOCK);
    while ((n = read(theirs, piece, sizeof piece)) > 0) {
        all += (size_t)n;
        for (ssize_t i = 0; i < n; i++)
            if (piece[i] != '\0' && used < room - 1)
                text[used++] = piece[i];
    }
    text[used] = '\0';
    return all;
}

/* A terminal, for good. */
static void empty(void)
{
    char text[1024];

    for (int still = 0; still < 20; still++) {
        if (drain(text, sizeof text) > 0)
            still = 0;
        usleep(5000);
    }
}

/* What has come by the time that `last` has. */
static void await(char *text, size_t room, const char *last)
{
    size_t used = 0;

    do {
        drain(text + used, room - used);
        used += strlen(text + used);
    } while (strstr(text, last) == NULL && used < room - 1 && usleep(1000) == 0);
}

static void log_and_lose(void)
{
    for (int i = 0; i < LOST; i++)
        pki_log(PKI_LOG_WARN, NULL, "nobody reads this");
    cr_expect_eq(fcntl(STDERR_FILENO, F_GETFL) & O_NONBLOCK, 0, "others share this open file");
}

static void expect_note_and_line(void)
{
    char text[1024];

    drain(text, sizeof text);
    cr_expect_str_eq(text, "");
    pki_log(PKI_LOG_WARN, NULL, "there is room again");
    pki_log(PKI_LOG_WARN, NULL, "and still");
    drain(text, sizeof text);
    cr_expect_str_eq(text, NOTE "pickle: there is room again\npickle: and still\n");
}

Test(stderr, the_reader_of_a_pipe_is_gone, .timeout = 20)
{
    make_pipe();
    become_stderr();
    close(theirs);
    log_and_lose();
    make_pipe();
    cr_assert_eq(dup2(ours, STDERR_FILENO), STDERR_FILENO);
    expect_note_and_line();
}

Test(stderr, the_reader_of_a_socket_is_gone, .timeout = 20)
{
    make_sockets();
    become_stderr();
    close(theirs);
    log_and_lose();
}

Test(stderr, the_terminal_is_gone, .timeout = 20)
{
    make_terminal();
    become_stderr();
    close(theirs);
    log_and_lose();
}

Test(stderr, a_pipe_is_full, .timeout = 20)
{
    make_pipe();
    become_stderr();
    fill();
    log_and_lose();
    expect_note_and_line();
}

Test(stderr, a_socket_is_full, .timeout = 20)
{
    make_sockets();
    become_stderr();
    fill();
    log_and_lose();
    expect_note_and_line();
}

Test(stderr, a_terminal_is_full, .timeout = 20)
{
    char text[1024];

    make_terminal();
    become_stderr();
    fill();
    for (int i = 0; i < LOST; i++)
        pki_log(PKI_LOG_WARN, NULL, "nobody reads this");
    empty();
    pki_log(PKI_LOG_WARN, NULL, "there is room again");
    await(text, sizeof text, "there is room again\n");
    cr_expect(strstr(text, NOTE "pickle: there is room again\n") != NULL, "%s", text);
}

Test(stderr, a_terminal_is_stopped, .timeout = 20)
{
    char text[1024];

    make_terminal();
    become_stderr();
    cr_assert_eq(tcflow(ours, TCOOFF), 0); /* as Ctrl-S does */
    log_and_lose();
    cr_assert_eq(tcflow(ours, TCOON), 0);
    pki_log(PKI_LOG_WARN, NULL, "it goes on");
    await(text, sizeof text, "it goes on\n");
    cr_expect_str_eq(text, NOTE "pickle: it goes on\n");
}

/* A pipe that cannot be opened once more: the program gave up its privileges. */
Test(stderr, another_users_pipe, .timeout = 20)
{
    make_pipe();
    become_stderr();
    if (geteuid() != 0)
        cr_skip_test("only root has privileges to give up");
    cr_assert_eq(seteuid(NOBODY), 0);
    pki_log(PKI_LOG_WARN, NULL, "before");
    fill();
    log_and_lose();
    {
        char text[1024];

        drain(text, sizeof text);
        cr_expect_str_eq(text, "pickle: before\n");
    }
    expect_note_and_line();
    cr_assert_eq(close(theirs), 0);
    log_and_lose();
    cr_assert_eq(seteuid(0), 0);
}

/* ulimit -f: SIGXFSZ would end the process. */
Test(stderr, a_file_is_as_long_as_it_may_be, .timeout = 20)
{
    const struct rlimit limit = { .rlim_cur = 8, .rlim_max = RLIM_INFINITY };
    char path[] = "/tmp/pickle-stderr-XXXXXX", text[64];

    ours = mkstemp(path);
    cr_assert_geq(ours, 0);
    unlink(path);
    become_stderr();
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    log_and_lose();
    cr_expect_eq(pread(ours, text, sizeof text, 0), 8);
}

Test(stderr, it_is_closed, .timeout = 20)
{
    make_pipe();
    unsetenv("PK_LOG");
    close(STDERR_FILENO);
    for (int i = 0; i < LOST; i++)
        pki_log(PKI_LOG_WARN, NULL, "nobody reads this");
    cr_assert_eq(dup2(ours, STDERR_FILENO), STDERR_FILENO);
    expect_note_and_line();
}

/* The text about PK_LOG itself goes the same way. */
Test(stderr, an_unknown_level, .timeout = 20)
{
    make_pipe();
    become_stderr();
    fill();
    setenv("PK_LOG", "loud", 1);
    cr_expect(pki_log_enabled(PKI_LOG_WARN));
}
