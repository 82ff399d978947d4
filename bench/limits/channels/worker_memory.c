/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

CUresult driver_check(CUresult r, const char *what, const char *file, int line)
{
    const char *name = "?";

    if (r == CUDA_SUCCESS)
        return r;
    cuGetErrorName(r, &name);
    fprintf(stderr, "worker %d: %s:%d: %s: %s\n", worker.me, file, line, what, name);
    exit(3);
}

static size_t buffer_bytes(void)
{
    return (2u << 20) + (size_t)worker.block * (SRC_BLOCKS + PUSH_BLOCKS + LOCAL_BLOCKS);
}

static void lay_out(CUdeviceptr base, CUdeviceptr *words, CUdeviceptr *src, CUdeviceptr *push)
{
    *words = base;
    *src = base + (2u << 20);
    *push = *src + (CUdeviceptr)worker.block * SRC_BLOCKS;
}

static void send_fd(int sock, int fd)
{
    char byte = 'x', ctl[CMSG_SPACE(sizeof(int))] = { 0 };
    struct iovec io = { &byte, 1 };
    struct msghdr m = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = ctl, .msg_controllen = sizeof ctl };
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    if (sendmsg(sock, &m, 0) != 1) {
        perror("sendmsg");
        exit(3);
    }
}

static int recv_fd(int sock)
{
    char byte, ctl[CMSG_SPACE(sizeof(int))] = { 0 };
    struct iovec io = { &byte, 1 };
    struct msghdr m = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = ctl, .msg_controllen = sizeof ctl };
    int fd;

    if (recvmsg(sock, &m, 0) != 1) {
        perror("recvmsg");
        exit(3);
    }
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    return fd;
}

CUmemAllocationProp prop_of(void)
{
    return (CUmemAllocationProp){ .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                  .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = worker.dev } };
}

CUdeviceptr map_vmm(CUmemGenericAllocationHandle h, size_t bytes)
{
    CUdeviceptr p;
    CUmemAccessDesc a = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = worker.dev },
                          .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };

    CK(cuMemAddressReserve(&p, bytes, 0, 0, 0));
    CK(cuMemMap(p, bytes, 0, h, 0));
    CK(cuMemSetAccess(p, bytes, &a, 1));
    return p;
}

void meet(uint32_t n)
{
    atomic_store(&worker.sh->ready[worker.me], n);
    while (atomic_load(&worker.sh->ready[1 - worker.me]) < n)
        relax();
}

static void exchange_vmm(int sock, CUdeviceptr *own, CUdeviceptr *peer)
{
    CUmemAllocationProp prop = prop_of();
    CUmemGenericAllocationHandle h, ph;
    size_t bytes = (buffer_bytes() + (2u << 20) - 1) & ~(size_t)((2u << 20) - 1);
    int fd;

    CK(cuMemCreate(&h, bytes, &prop, 0));
    *own = map_vmm(h, bytes);
    CK(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    send_fd(sock, fd);
    fd = recv_fd(sock);
    CK(cuMemImportFromShareableHandle(&ph, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    *peer = map_vmm(ph, bytes);
}

static void exchange_ipc(CUdeviceptr *own, CUdeviceptr *peer)
{
    CUipcMemHandle h;

    CK(cuMemAlloc(own, buffer_bytes()));
    CK(cuIpcGetMemHandle(&h, *own));
    memcpy(worker.sh->handle[worker.me], &h, sizeof h);
    meet(1);
    memcpy(&h, worker.sh->handle[1 - worker.me], sizeof h);
    CK(cuIpcOpenMemHandle(peer, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}

void make_buffers(int sock)
{
    CUdeviceptr own, peer;
    CUipcMemHandle h;

    if (worker.vmm)
        exchange_vmm(sock, &own, &peer);
    else
        exchange_ipc(&own, &peer);
    lay_out(own, &worker.b.words, &worker.b.src, &worker.b.push);
    lay_out(peer, &worker.b.peer_words, &worker.b.peer_src, &worker.b.peer_push);
    worker.b.local = worker.b.push + (CUdeviceptr)worker.block * PUSH_BLOCKS;
    CK(cuMemsetD32(worker.b.words, 0, (2u << 20) / 4));
    CK(cuMemAlloc(&worker.b.extra, 4u << 20));
    CK(cuIpcGetMemHandle(&h, worker.b.extra));
    memcpy(worker.sh->extra[worker.me], &h, sizeof h);
    CK(cuMemAlloc(&worker.b.count, 4096));
    CK(cuMemsetD32(worker.b.count, 0, 1024));
    worker.b.errs = worker.b.count + 2048;
    CK(cuMemHostAlloc((void **)&worker.b.hs, (size_t)worker.block * 4, 0));
    CK(cuMemHostAlloc((void **)&worker.b.hd, (size_t)worker.block * HOST_BLOCKS, 0));
    CK(cuCtxSynchronize());
}

void make_streams(int priority)
{
    for (int i = 0; i < WAITERS; i++)
        CK(cuStreamCreateWithPriority(&worker.w[i], CU_STREAM_NON_BLOCKING, priority));
    for (int k = PUSH; k <= CHAIN; k++)
        for (int j = 0; j < PROBES; j++)
            CK(cuStreamCreate(&worker.p[k][j], CU_STREAM_NON_BLOCKING));
}

void drop_streams(void)
{
    for (int i = 0; i < WAITERS; i++)
        CK(cuStreamDestroy(worker.w[i]));
    for (int k = PUSH; k <= CHAIN; k++)
        for (int j = 0; j < PROBES; j++)
            CK(cuStreamDestroy(worker.p[k][j]));
}

void load_module(const char *path)
{
    FILE *f = fopen(path, "rb");
    struct {
        CUfunction *f;
        const char *name;
    } fn[] = { { &worker.fill, "k_fill" },
               { &worker.check, "k_check" },
               { &worker.wait, "k_wait" },
               { &worker.mark, "k_mark" },
               { &worker.move, "k_move" } };

    if (!f || !(worker.cubin = calloc(1, 1 << 20)) || fread(worker.cubin, 1, 1 << 20, f) < 8) {
        perror(path);
        exit(3);
    }
    fclose(f);
    CK(cuModuleLoadData(&worker.mod, worker.cubin));
    for (size_t i = 0; i < sizeof fn / sizeof *fn; i++) {
        CK(cuModuleGetFunction(fn[i].f, worker.mod, fn[i].name));
        CK(cuFuncLoad(*fn[i].f));
    }
}
