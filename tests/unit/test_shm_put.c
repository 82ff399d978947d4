/* SPDX-License-Identifier: Apache-2.0 */
/* Moves of the shm transport, and its two ends in two processes: this program, run again with --peer, is the other one. */
#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "shm_pair.h"
#include "util/clock.h"
#include "util/socket.h"

static const struct pki_where nowhere = { .rank = -1, .peer = -1 };

static struct pki_wait timeout(void)
{
    return (struct pki_wait){ .deadline_ns = pki_deadline_ns(10000) };
}

static pk_result_t move(struct pki_ep *ep, const void *src, void *dst, size_t bytes, _Atomic uint32_t *word)
{
    struct pki_put put = { .ep = ep, .src = src, .remote = (uintptr_t)dst, .bytes = bytes, .result = PK_IN_PROGRESS };
    pk_result_t result;

    put.done_remote = (struct pki_signal){ .word = word, .value = 9 };
    result = shm()->put(&put);
    if (result != PK_OK) {
        cr_assert(pki_list_empty(&ep->iface->events));
        return result;
    }
    cr_assert(pki_list_pop(&ep->iface->events) == &put.event.node && pki_list_empty(&ep->iface->events));
    return put.result;
}

static pk_result_t fetch(struct pki_ep *ep, const void *from, void *to, size_t bytes)
{
    struct pki_put get = {
        .ep = ep, .src = to, .remote = (uintptr_t)from, .bytes = bytes, .is_get = true, .result = PK_IN_PROGRESS
    };
    pk_result_t result = shm()->put(&get);

    if (result != PK_OK)
        return result;
    cr_assert(pki_list_pop(&ep->iface->events) == &get.event.node && pki_list_empty(&ep->iface->events));
    return get.result;
}

/* ---- In this process ---- */

static void moves(bool same_process)
{
    static const size_t sizes[] = { 0, 1, 63, 64, 2047, 2048, 2049, 65537, 3u << 20 };
    struct pair pair = pair_new(same_process);
    size_t most = 3u << 20;
    unsigned char *src = malloc(most), *dst = malloc(most + 1);

    cr_assert(pair.ep[0]->can_put && pair.ep[1]->can_put);
    for (size_t i = 0; i < most; i++)
        src[i] = (unsigned char)(i * 31 + i / 255);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        _Atomic uint32_t word = 0;

        memset(dst, 0xaa, most + 1);
        cr_assert(move(pair.ep[i & 1], src, dst, sizes[i], i % 3 == 0 ? NULL : &word) == PK_OK);
        cr_assert(memcmp(src, dst, sizes[i]) == 0 && dst[sizes[i]] == 0xaa, "%zu bytes", sizes[i]);
        cr_assert(word == (i % 3 == 0 ? 0 : 9));
        memset(dst, 0xbb, most + 1);
        cr_assert(fetch(pair.ep[i & 1], src, dst, sizes[i]) == PK_OK);
        cr_assert(memcmp(src, dst, sizes[i]) == 0 && dst[sizes[i]] == 0xbb, "%zu bytes fetched", sizes[i]);
    }
    free(src);
    free(dst);
    pair_free(&pair);
}

Test(shm_put, same_process)
{
    moves(true);
}

Test(shm_put, cross_memory_attach)
{
    moves(false);
}

Test(shm_put, regions_are_addresses)
{
    struct pair pair = pair_new(true);
    struct pki_mem host = { .kind = PKI_MEM_HOST, .base = 0x1000, .bytes = 64 }, device = { .kind = PKI_MEM_DEVICE };
    struct pki_export exported, ipc = { .kind = PKI_EXPORT_IPC };
    uint64_t remote = 0;

    cr_assert(shm()->reg(pair.iface[0], &device, &exported) == PK_ERR_UNSUPPORTED);
    cr_assert(shm()->reg(pair.iface[0], &host, &exported) == PK_OK && exported.kind == PKI_EXPORT_ADDRESS);
    cr_assert(exported.fds == NULL && exported.pieces == 0 && exported.bytes == 64);
    cr_assert(shm()->map(pair.ep[1], &exported, &remote) == PK_OK && remote == 0x1000);
    cr_assert(shm()->map(pair.ep[1], &ipc, &remote) == PK_ERR_UNSUPPORTED);
    shm()->unmap(pair.ep[1], &exported, remote);
    pair_free(&pair);
}

Test(shm_put, memory_that_is_gone)
{
    struct pair pair = pair_new(false);
    char *two_pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    static char src[8192];
    char text[80];
    _Atomic uint32_t word = 0;

    munmap(two_pages + 4096, 4096);
    snprintf(text, sizeof text, "8192 bytes of rank 1's buffer, at %p, cannot be written from byte 4096 on", (void *)two_pages);
    cr_assert(move(pair.ep[0], src, two_pages, 8192, &word) == PK_ERR_SYSTEM && word == 0);
    cr_assert(pki_error_get()->sys_errno == EFAULT && pki_error_get()->peer == 1 && strstr(pki_error_get()->text, text) != NULL,
              "%s", pki_error_get()->text);
    cr_assert(pair.ep[0]->cause.sys_errno == EFAULT && strstr(pair.ep[0]->cause.text, text) != NULL, "%s",
              pair.ep[0]->cause.text);
    cr_assert(fetch(pair.ep[0], two_pages, src, 8192) == PK_ERR_SYSTEM && fetch(pair.ep[0], two_pages, src, 4096) == PK_OK);
    cr_assert(pair.ep[0]->state != PKI_EP_DEAD && move(pair.ep[0], src, two_pages, 4096, &word) == PK_OK && word == 9);
    pair.ep[0]->peer_pid = INT32_MAX; /* nobody's */
    cr_assert(move(pair.ep[0], src, two_pages, 1, NULL) == PK_ERR_UNSUPPORTED && !pair.ep[0]->can_put && !pair.ep[0]->can_get);
    cr_assert(move(pair.ep[0], src, two_pages, 1, NULL) == PK_ERR_UNSUPPORTED && pair.ep[0]->state != PKI_EP_DEAD);
    pair_free(&pair);
}

/* Whose memory it is that cannot be read or written. */
static void expect_fault(const char *text)
{
    cr_assert(pki_error_get()->code == PK_ERR_SYSTEM && pki_error_get()->sys_errno == EFAULT, "%s", pki_error_get()->text);
    cr_assert(strstr(pki_error_get()->text, text) != NULL, "%s", pki_error_get()->text);
}

Test(shm_put, whose_memory_is_bad)
{
    struct pair pair = pair_new(false);
    char *bad = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    static char good[8192];

    cr_assert(move(pair.ep[0], good, bad, 8192, NULL) == PK_ERR_SYSTEM);
    expect_fault("8192 bytes of rank 1's buffer, at 0x");
    expect_fault("cannot be written from byte 0 on");
    cr_assert(fetch(pair.ep[0], good, bad, 8192) == PK_ERR_SYSTEM);
    expect_fault("8192 bytes of rank 0's buffer, at 0x");
    expect_fault("cannot be written from byte 0 on");
    cr_assert(mprotect(bad + 4096, 4096, PROT_NONE) == 0);
    cr_assert(move(pair.ep[0], bad, good, 8192, NULL) == PK_ERR_SYSTEM);
    expect_fault("8192 bytes of rank 0's buffer, at 0x");
    expect_fault("cannot be read from byte 4096 on");
    cr_assert(fetch(pair.ep[0], bad, good, 8192) == PK_ERR_SYSTEM);
    expect_fault("8192 bytes of rank 1's buffer, at 0x");
    cr_assert(pair.ep[0]->state != PKI_EP_DEAD && pair.ep[1]->state != PKI_EP_DEAD);
    munmap(bad, 8192);
    pair_free(&pair);
}

/* Another process with the peer's number in this namespace, or the peer where it may not be touched. */
Test(shm_put, wrong_process_is_noticed)
{
    struct pki_iface *iface[2];
    struct pki_ep *ep[2];
    struct pki_blob blob[2];
    char byte = 0;

    for (int i = 0; i < 2; i++) {
        ep[i] = ep_new(&iface[i], i, false, i == 0 ? getpid() : INT32_MAX);
        cr_assert(shm()->ep_init(ep[i], &blob[i]) == PK_OK);
        blob[i].fd = fcntl(blob[i].fd, F_DUPFD_CLOEXEC, 0);
    }
    blob[1].bytes[offsetof(struct pki_shm_hello, nonce) + 3] ^= 1;
    for (int i = 0; i < 2; i++) {
        cr_assert(shm()->ep_connect(ep[i], &blob[1 - i]) == PK_OK && !ep[i]->can_put);
        cr_assert(move(ep[i], &byte, &byte, 1, NULL) == PK_ERR_UNSUPPORTED);
        cr_assert(!ep[i]->can_get && fetch(ep[i], &byte, &byte, 1) == PK_ERR_UNSUPPORTED);
    }
    for (int i = 0; i < 2; i++)
        ep_free(iface[i], ep[i]);
}

Test(shm_put, turned_off)
{
    struct pair pair;

    pki_tuning.shm.cma = 0;
    pair = pair_new(false);
    cr_assert(!pair.ep[0]->can_put && !pair.ep[1]->can_put);
    pair_free(&pair);
    pair = pair_new(true);
    cr_assert(pair.ep[0]->can_put && pair.ep[1]->can_put, "nothing to turn off in one process");
    pair_free(&pair);
}

/* ---- Two processes ---- */

static struct pki_ep *meet(int sock, int rank, int64_t peer_pid, struct pki_iface **iface)
{
    struct pki_ep *ep = ep_new(iface, rank, false, peer_pid);
    struct pki_blob mine, theirs = { .fd = -1 };
    struct pki_frame_in in = { .data = &theirs.bytes, .capacity = sizeof theirs.bytes, .fds = &theirs.fd, .fd_capacity = 1 };
    struct pki_wait wait = timeout();

    assert(shm()->ep_init(ep, &mine) == PK_OK);
    assert(pki_fd_send_wait(sock, mine.bytes, mine.len, &mine.fd, 1, &wait, &nowhere) == PK_OK);
    assert(pki_fd_recv_wait(sock, &in, &wait, &nowhere) == PK_OK && in.fd_count == 1);
    theirs.len = (uint32_t)in.bytes;
    assert(shm()->ep_connect(ep, &theirs) == PK_OK);
    return ep;
}

static void wait_message(struct pki_ep *ep, struct pki_msg *msg, const void **payload)
{
    uint64_t deadline = pki_deadline_ns(10000);

    while (!shm()->peek(ep, msg, payload))
        assert(pki_now_ns() < deadline && ep->state != PKI_EP_DEAD);
}

static void send_message(struct pki_ep *ep, const struct pki_msg *msg, const void *payload)
{
    uint64_t deadline = pki_deadline_ns(10000);

    while (shm()->send(ep, msg, payload) != PK_OK)
        assert(pki_now_ns() < deadline && ep->state != PKI_EP_DEAD);
}

/* The child: sends everything back with its bytes complemented; answers a CTS by a put of as many sevens and a FIN; ends with
 * CREDIT, or rather waits to be killed. */
static int peer_main(int64_t parent)
{
    static unsigned char back[PKI_SHM_PAYLOAD_MAX], sevens[1u << 20];
    struct pki_iface *iface;
    struct pki_ep *ep;
    struct pki_msg msg = { 0 };
    const void *payload;

    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nothing behind */
    ep = meet(3, 1, parent, &iface);
    memset(sevens, 7, sizeof sevens);
    while (msg.kind != PKI_MSG_CREDIT) {
        wait_message(ep, &msg, &payload);
        for (uint32_t i = 0; i < msg.payload; i++)
            back[i] = (unsigned char)~((const unsigned char *)payload)[i];
        shm()->pop(ep);
        if (msg.kind == PKI_MSG_CTS) {
            assert(msg.bytes <= sizeof sevens);
            assert(move(ep, sevens, (void *)(uintptr_t)msg.offset, msg.bytes, NULL) == PK_OK);
            msg.kind = PKI_MSG_FIN;
        }
        send_message(ep, &msg, back);
    }
    pause();
    return 0;
}

static pid_t peer_start(int *sock)
{
    int pair[2];
    char parent[16], *argv[] = { "peer", "--peer", parent, NULL }, *envp[] = { "PK_LOG=none", NULL };
    posix_spawn_file_actions_t actions;
    pid_t pid;

    snprintf(parent, sizeof parent, "%d", getpid());
    cr_assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pair[1], 3);
    cr_assert(posix_spawn(&pid, "/proc/self/exe", &actions, NULL, argv, envp) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(pair[1]);
    *sock = pair[0];
    return pid;
}

/* One assertion for all: each is a message to the process that counts them. */
static bool all_are(unsigned char value, const void *bytes, size_t count)
{
    size_t same = 0;

    while (same < count && ((const unsigned char *)bytes)[same] == value)
        same++;
    return same == count;
}

static void echoes(struct pki_ep *ep)
{
    static unsigned char out[PKI_SHM_PAYLOAD_MAX];
    const void *payload;
    struct pki_msg got;

    for (uint32_t i = 0; i < 3000; i++) {
        struct pki_msg msg = { .kind = i % 2 ? PKI_MSG_DATA : PKI_MSG_EAGER, .op = i };

        msg.payload = (uint16_t)(i % 100 ? i * 7 % 300 : i * 11 % (PKI_SHM_PAYLOAD_MAX + 1));
        memset(out, (int)i, sizeof out);
        send_message(ep, &msg, out);
        wait_message(ep, &got, &payload);
        cr_assert(memcmp(&got, &msg, sizeof got) == 0);
        cr_assert(all_are((unsigned char)~i, payload, msg.payload));
        shm()->pop(ep);
    }
}

static void granted(struct pki_ep *ep)
{
    unsigned char *landing = calloc(1, (1u << 20) + 1);
    struct pki_msg msg = { .kind = PKI_MSG_CTS, .offset = (uintptr_t)landing, .bytes = 1u << 20 };
    const void *payload;

    send_message(ep, &msg, NULL);
    wait_message(ep, &msg, &payload);
    cr_assert(msg.kind == PKI_MSG_FIN);
    cr_assert(all_are(7, landing, 1u << 20));
    cr_assert(landing[1u << 20] == 0);
    shm()->pop(ep);
    free(landing);
}

Test(shm_put, two_processes)
{
    int sock;
    pid_t pid = peer_start(&sock);
    struct pki_iface *iface;
    struct pki_ep *ep = meet(sock, 0, pid, &iface);
    char byte = 0;

    echoes(ep);
    if (ep->can_put)
        granted(ep);
    else
        cr_log_warn("process_vm_writev is not allowed here: put between processes was not tested");
    kill(pid, SIGKILL);
    cr_assert(waitpid(pid, NULL, 0) == pid);
    if (ep->can_put)
        cr_assert(move(ep, &byte, &byte, 1, NULL) == PK_ERR_UNSUPPORTED && !ep->can_put);
    close(sock);
    ep_free(iface, ep);
}

int main(int argc, char **argv)
{
    struct criterion_test_set *tests;
    int failed = 0;

    if (argc == 3 && strcmp(argv[1], "--peer") == 0)
        return peer_main(atoll(argv[2]));
    tests = criterion_initialize();
    if (criterion_handle_args(argc, argv, true))
        failed = !criterion_run_all_tests(tests);
    criterion_finalize(tests);
    return failed;
}
