/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank may make no threads any more before its first operation in a CUDA stream, which needs the library's: the call is refused with EAGAIN before anything has
 * begun, and blocking operations in the same memory go on.
 */
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>

#include "gpu_rank.h"
#include "seccomp.h"

#define BYTES ((size_t)1 << 20)
#define LIMIT_MS 30000

static bool is_refused(pk_result_t result)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    pk_last_error(&info);
    return report(result == PK_ERR_SYSTEM && info.sys_errno == EAGAIN && strstr(info.text, "pthread_create") != NULL,
                  "rank %d: %d, errno %d: %.200s", ranks_rank(), (int)result, info.sys_errno, info.text);
}

static void broadcast(const struct gpu_rank *self, char *buffer, uint64_t key)
{
    if (self->rank == 0)
        pattern_to_gpu(buffer, BYTES, key);
    must_be_ok(pk_broadcast(buffer, buffer, BYTES, PK_UINT8, 0, self->comm, PK_BLOCKING), "a blocking broadcast");
    report(pattern_wrong_on_gpu(buffer, BYTES, key) == BYTES, "rank %d: blocking broadcast %d", self->rank, (int)key);
}

static int rank_main(void)
{
    struct gpu_rank self;
    char *buffer;

    gpu_rank_open(&self, PK_SM_DEFAULT, LIMIT_MS);
    buffer = gpu_alloc(BYTES);
    broadcast(&self, buffer, 1); /* whatever threads the driver needs for it are there now */
    if (!report(seccomp_deny(SYS_clone3, SECCOMP_ANY, EAGAIN) && seccomp_deny(SYS_clone, SECCOMP_ANY, EAGAIN),
                "rank %d: no more threads", self.rank))
        return report_end();
    is_refused(pk_broadcast(buffer, buffer, BYTES, PK_UINT8, 0, self.comm, self.in_stream));
    is_refused(self.rank == 0 ? pk_send(buffer, BYTES, PK_UINT8, 1, self.comm, self.in_stream)
                              : pk_recv(buffer, BYTES, PK_UINT8, 0, self.comm, self.in_stream));
    broadcast(&self, buffer, 2);
    gpu_rank_close(&self);
    return report_end();
}

int main(void)
{
    if (ranks_role() != NULL)
        return rank_main();
    return gpu_two_ranks(rank_main, "rank", 60000, "operations in streams without a thread");
}
