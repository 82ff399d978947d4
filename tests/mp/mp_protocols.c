/* SPDX-License-Identifier: Apache-2.0 */
/* PK_LOG=info: when a communicator is up the log says which protocol and which algorithm goes from which size to which, as pk_explain does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define SIZE 4
#define LINES 64

static char lines[LINES][512];
static int n;

static void keep(void *arg, int level, const char *line)
{
    (void)arg;
    (void)level;
    if (n < LINES)
        snprintf(lines[n++], sizeof lines[0], "%s", line);
}

/* The line that contains `what`, from behind it on; NULL: there is none, or there are several. */
static const char *said(const char *what)
{
    const char *found = NULL;
    int times = 0;

    for (int i = 0; i < n; i++)
        if (strstr(lines[i], what) != NULL) {
            found = strstr(lines[i], what) + strlen(what);
            times++;
        }
    return times == 1 ? found : NULL;
}

static void expect(const char *what, const char *text)
{
    const char *line = said(what);

    report(line != NULL && strcmp(line, text) == 0, "%s: rank %d: '%s%s' instead of '%s'", ranks_role(), ranks_rank(), what,
           line != NULL ? line : " (not there, or twice)", text);
}

/* What pk_explain says of both sides of a border. */
static void expect_border(pk_comm_t *comm, pk_op_kind_t op, size_t bytes, const char *below, const char *above)
{
    pk_explanation_t how = { .struct_size = sizeof how };
    int peer = (ranks_rank() + 1) % SIZE;

    for (int i = 0; i < 2; i++) {
        const char *right = i == 0 ? below : above;
        bool known = pk_explain(comm, op, bytes / 4 + (size_t)i, PK_F32, PK_MEM_HOST, 0, peer, &how) == PK_OK;

        report(known && strcmp(how.algorithm, right) == 0, "%s: rank %d: %zu bytes go by '%s' instead of '%s'", ranks_role(),
               ranks_rank(), bytes + 4 * (size_t)i, how.algorithm, right);
    }
}

/* Neighbours in one line, without this rank. */
static void expect_messages(const char *text)
{
    static const char *const peers[SIZE][2] = {
        { "ranks 1 to 3", NULL }, { "rank 0", "ranks 2 to 3" }, { "ranks 0 to 1", "rank 3" }, { "ranks 0 to 2", NULL }
    };

    for (int i = 0; i < 2 && peers[ranks_rank()][i] != NULL; i++) {
        char what[80];

        snprintf(what, sizeof what, "messages of host memory with %s ", peers[ranks_rank()][i]);
        expect(what, text);
    }
}

static int rank_main(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_path_t path = { .struct_size = sizeof path };
    pk_comm_t *comm = NULL;
    char text[200];

    pk_log_set_callback(keep, NULL);
    config.device = PK_DEVICE_HOST;
    if (!report(pk_comm_init(&comm, &config) == PK_OK, "%s: rank %d: init", ranks_role(), ranks_rank()))
        return report_end();
    if (strcmp(ranks_role(), "at warn") == 0) {
        report(said("messages of") == NULL && said("allreduce of") == NULL, "at warn: rank %d: nothing is said", ranks_rank());
    } else {
        pk_comm_path(comm, (ranks_rank() + 1) % SIZE, PK_MEM_HOST, PK_MEM_HOST, &path);
        if (strcmp(ranks_role(), "on one host") == 0)
            snprintf(text, sizeof text, "over shm (%s): eager up to 5000 bytes, then rendezvous", path.device);
        else
            snprintf(text, sizeof text,
                     "over tcp (%s): eager up to 5000 bytes, then eager put up to 1048576 bytes, then rendezvous", path.device);
        expect_messages(text);
        expect("broadcast of host memory, by its count: ", "tree");
        expect_border(comm, PK_OP_SEND, 5000, "eager", strcmp(ranks_role(), "on one host") == 0 ? "rendezvous" : "eager put");
    }
    if (strcmp(ranks_role(), "on one host") == 0) {
        expect("allreduce of host memory, by its count: ", "flat up to 404 bytes, then direct");
        expect_border(comm, PK_OP_ALLREDUCE, 404, "flat", "direct");
    }
    report(pk_comm_destroy(comm) == PK_OK, "%s: rank %d: destroy", ranks_role(), ranks_rank());
    return report_end();
}

int main(void)
{
    if (ranks_role() != NULL)
        return rank_main();
    unsetenv("PICKLE_TEST_HOSTS");
    setenv("PICKLE_TEST_TUNING",
           "pair.eager_shm_bytes=5000,pair.eager_bytes=5000,tcp.eager_bytes=5000,coll.one_shot_max_bytes=1212", 1);
    setenv("PK_ALGORITHM", "broadcast=tree", 1);
    setenv("PK_LOG", "info", 1);
    ranks_drive(&(struct ranks_turn){ .role = "on one host", .size = SIZE }, "on one host");
    setenv("PICKLE_TEST_HOSTS", "4", 1);
    ranks_drive(&(struct ranks_turn){ .role = "on four hosts", .size = SIZE }, "on four hosts");
    setenv("PK_LOG", "warn", 1);
    ranks_drive(&(struct ranks_turn){ .role = "at warn", .size = SIZE }, "at warn");
    return report_end();
}
