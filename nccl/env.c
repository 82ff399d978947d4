/* SPDX-License-Identifier: Apache-2.0 */
#include "env.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "abi.h"
#include "hca.h"
#include "ifname.h"
#include "table.h"
#include "words.h"

#define QPS_MAX 16
#define SOCKETS_MAX 16
#define MULTIPROCESSORS_MAX 1024
#define SOCKET_THREADS_MAX 8
#define HANDED_ON "PICKLE_NCCL_SET" /* "NAME=VALUE\n...": what a process has set; those that it starts read NCCL_* again */

extern char **environ;

static const char *value_of(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && *value != '\0' ? value : NULL;
}

/* ---- configuration files: NAME=VALUE lines; what is set already stays ---- */

static void take_line(char *line)
{
    char *equals = strchr(line, '=');

    line[strcspn(line, "\r\n")] = '\0';
    if (line[0] == '#' || equals == NULL || equals == line)
        return;
    *equals = '\0';
    (void)setenv(line, equals + 1, 0);
}

static void read_file(const char *name)
{
    FILE *file = fopen(name, "re");
    char line[PKN_VALUE_BYTES];

    if (file == NULL)
        return;
    while (fgets(line, sizeof line, file) != NULL)
        take_line(line);
    fclose(file);
}

static void read_files(void)
{
    const char *given = value_of("NCCL_CONF_FILE"), *home = value_of("HOME");
    char name[PATH_MAX];

    if (given != NULL) {
        read_file(given);
    } else if (home != NULL) {
        snprintf(name, sizeof name, "%s/.nccl.conf", home);
        read_file(name);
    }
    read_file("/etc/nccl.conf");
}

/* ---- one variable ---- */

static bool copy(const char *value, char *out)
{
    snprintf(out, PKN_VALUE_BYTES, "%s", value);
    return true;
}

static bool log_level(const char *value, char *out)
{
    static const struct {
        const char *nccl, *pickle;
    } levels[] = { { "NONE", "none" }, { "WARN", "warn" }, { "INFO", "info" }, { "TRACE", "debug" }, { "ABORT", "warn" } };

    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++)
        if (strcasecmp(value, levels[i].nccl) == 0)
            return copy(levels[i].pickle, out);
    return false; /* VERSION: no other line than that */
}

/* A word, or a number as older versions had it. */
static bool p2p_level(const char *value, char *out)
{
    static const char *const numbers[] = { "LOC", "PIX", "PXB", "PHB", "PHB", "SYS" };
    char *end;
    long number = strtol(value, &end, 10);

    if (*end != '\0')
        return copy(value, out);
    if (number < 0)
        return false;
    return copy(numbers[number < 5 ? number : 5], out);
}

static bool p2p_disable(const char *value, char *out)
{
    return atoi(value) != 0 && copy("LOC", out);
}

static bool rdma_disable(const char *value, char *out)
{
    return atoi(value) != 0 && copy("none", out);
}

static bool gid_index(const char *value, char *out)
{
    return atoi(value) >= 0 && copy(value, out); /* -1: found by itself, in NCCL too */
}

static int within(int value, int most)
{
    return value < 1 ? 1 : value > most ? most : value;
}

static bool queue_pairs(const char *value, char *out)
{
    snprintf(out, PKN_VALUE_BYTES, "%d", within(atoi(value), QPS_MAX));
    return true;
}

static bool multiprocessors(const char *value, char *out)
{
    snprintf(out, PKN_VALUE_BYTES, "%d", within(atoi(value), MULTIPROCESSORS_MAX));
    return atoi(value) > 0;
}

static const struct {
    const char *nccl, *pickle;
    bool (*convert)(const char *value, char *out); /* false: libpickle's default is what is meant */
} translations[] = {
    { "NCCL_DEBUG", "PK_LOG", log_level },
    { "NCCL_SOCKET_IFNAME", "PK_IFNAME", pkn_ifname },
    { "NCCL_P2P_DISABLE", "PK_P2P_LEVEL", p2p_disable },
    { "NCCL_P2P_LEVEL", "PK_P2P_LEVEL", p2p_level },
    { "NCCL_IB_DISABLE", "PK_RDMA_DEVICES", rdma_disable },
    { "NCCL_IB_HCA", "PK_RDMA_DEVICES", pkn_hca },
    { "NCCL_IB_GID_INDEX", "PK_GID_INDEX", gid_index },
    { "NCCL_IB_QPS_PER_CONNECTION", "PK_QPS", queue_pairs },
    { "NCCL_HOSTID", "PK_HOST_ID", copy },
    { "NCCL_MAX_CTAS", "PK_SM_POLICY", multiprocessors },
};

/* Used, though not by handing them on one by one. */
static const char *const used[] = { "NCCL_CONF_FILE", "NCCL_DEBUG_FILE",      "NCCL_COMM_BLOCKING",   "NCCL_COMM_ID",
                                    "NCCL_VERSION",   "NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD" };

/* Names of at most NAME_MAX bytes. */
static void take_back_one(const char *line, size_t length)
{
    char name[NAME_MAX + 1];
    size_t bytes = strcspn(line, "=");
    const char *now;

    if (bytes >= length || bytes > NAME_MAX || strncmp(line, "PK_", 3) != 0)
        return;
    memcpy(name, line, bytes);
    name[bytes] = '\0';
    now = getenv(name);
    if (now != NULL && strlen(now) == length - bytes - 1 && strncmp(now, line + bytes + 1, length - bytes - 1) == 0)
        (void)unsetenv(name);
}

/* What a process that started this one has set from its NCCL_*, unless the program has set it otherwise since. */
static void take_back(void)
{
    for (const char *line = getenv(HANDED_ON), *next; line != NULL && *line != '\0'; line = next) {
        size_t length = strcspn(line, "\n");

        next = line + length + (line[length] == '\n');
        take_back_one(line, length);
    }
}

struct handed_on {
    char text[4 * PKN_VALUE_BYTES];
    size_t bytes;
};

static void hand_on(struct handed_on *all, const char *name, const char *value)
{
    size_t more = strlen(name) + strlen(value) + 2;

    if (getenv(name) != NULL)
        return;
    (void)setenv(name, value, 1);
    if (all->bytes + more >= sizeof all->text)
        return;
    all->bytes += (size_t)snprintf(all->text + all->bytes, sizeof all->text - all->bytes, "%s=%s\n", name, value);
}

/* Connections a pair of ranks has, and threads that serve them: "4/2". */
static void translate_sockets(struct handed_on *all)
{
    const char *threads = value_of("NCCL_SOCKET_NTHREADS"), *each = value_of("NCCL_NSOCKS_PERTHREAD");
    int nthreads = threads != NULL ? within(atoi(threads), SOCKETS_MAX) : 1;
    int neach = each != NULL ? within(atoi(each), SOCKETS_MAX) : 1;
    char text[32];

    if (threads == NULL && each == NULL)
        return;
    snprintf(text, sizeof text, "%d/%d", within(nthreads * neach, SOCKETS_MAX), within(nthreads, SOCKET_THREADS_MAX));
    hand_on(all, "PK_SOCKETS", text);
}

void pkn_env_translate(void)
{
    struct handed_on all = { .bytes = 0 };
    char out[PKN_VALUE_BYTES];

    take_back();
    read_files();
    for (size_t i = 0; i < sizeof translations / sizeof translations[0]; i++) {
        const char *value = value_of(translations[i].nccl);

        if (value != NULL && translations[i].convert(value, out))
            hand_on(&all, translations[i].pickle, out);
    }
    translate_sockets(&all);
    if (all.bytes > 0)
        (void)setenv(HANDED_ON, all.text, 1);
    else
        (void)unsetenv(HANDED_ON);
}

/* ---- what is said of it ---- */

static bool is_used(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof translations / sizeof translations[0]; i++)
        if (strlen(translations[i].nccl) == length && strncmp(translations[i].nccl, name, length) == 0)
            return true;
    for (size_t i = 0; i < sizeof used / sizeof used[0]; i++)
        if (strlen(used[i]) == length && strncmp(used[i], name, length) == 0)
            return true;
    return false;
}

static void list_unused(char *out, size_t room)
{
    size_t at = 0;

    out[0] = '\0';
    for (char **entry = environ; entry != NULL && *entry != NULL && at < room; entry++) {
        size_t length = strcspn(*entry, "=");

        if (strncmp(*entry, "NCCL_", 5) == 0 && !is_used(*entry, length))
            at += (size_t)snprintf(out + at, room - at, "%s%.*s", at > 0 ? ", " : "", (int)length, *entry);
    }
}

static void write_line(void *arg, int level, const char *line)
{
    (void)level;
    fprintf(arg, "%s\n", line);
    fflush(arg);
}

/* NCCL_DEBUG_FILE with the host for %h and the process id for %p. */
static void expand(const char *pattern, char *out, size_t room)
{
    char host[256] = "";
    size_t at = 0;

    (void)gethostname(host, sizeof host - 1);
    for (const char *c = pattern; *c != '\0' && at + 1 < room; c++) {
        if (*c == '%' && (c[1] == 'h' || c[1] == 'p')) {
            c++;
            at += (size_t)(*c == 'h' ? snprintf(out + at, room - at, "%s", host)
                                     : snprintf(out + at, room - at, "%d", (int)getpid()));
        } else {
            out[at++] = *c;
        }
    }
    out[at < room ? at : room - 1] = '\0';
}

static FILE *open_log(const struct pkn_table *pk)
{
    const char *pattern = value_of("NCCL_DEBUG_FILE");
    char name[PATH_MAX];
    FILE *file;

    if (pattern == NULL || value_of("NCCL_DEBUG") == NULL)
        return stderr;
    expand(pattern, name, sizeof name);
    file = fopen(name, "we");
    if (file == NULL) {
        fprintf(stderr, "libnccl.so.2 of libpickle: NCCL_DEBUG_FILE=%s cannot be opened: %s\n", name, strerror(errno));
        return stderr;
    }
    pk->pk_log_set_callback(write_line, file);
    return file;
}

void pkn_env_report(const struct pkn_table *pk)
{
    const char *level = value_of("PK_LOG"), *asked = value_of("NCCL_DEBUG");
    bool info = level != NULL && (strcmp(level, "info") == 0 || strcmp(level, "debug") == 0);
    bool version = asked != NULL && strcasecmp(asked, "VERSION") == 0;
    FILE *log = open_log(pk);
    char unused[PKN_VALUE_BYTES];
    int number = pk->pk_version();

    if (info || version)
        fprintf(log, "libnccl.so.2 of libpickle %d.%d.%d, for programs of NCCL %d.%d.%d: %s\n", number / 10000,
                number / 100 % 100, number % 100, PKN_VERSION / 10000, PKN_VERSION / 100 % 100, PKN_VERSION % 100, pkn_pk_path());
    list_unused(unused, sizeof unused);
    if (info && unused[0] != '\0')
        fprintf(log, "libnccl.so.2 of libpickle: not used: %s\n", unused);
    fflush(log);
}

bool pkn_env_blocking(int *blocking)
{
    const char *value = value_of("NCCL_COMM_BLOCKING");

    if (value == NULL)
        return false;
    *blocking = atoi(value) != 0;
    return true;
}

const char *pkn_env_comm_id(void)
{
    return value_of("NCCL_COMM_ID");
}
