/* SPDX-License-Identifier: Apache-2.0 */
/* Two processes share memory by both ways and talk through words in it. The exporter is on device 0, the importer on device 1. */
#include "selftest.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define WORDS 1024
#define GRANULARITY ((size_t)2 << 20)

static void send_bytes(int socket, const void *data, size_t bytes, int fd)
{
    char control[CMSG_SPACE(sizeof fd)] = { 0 };
    struct iovec io = { .iov_base = (void *)(uintptr_t)data, .iov_len = bytes };
    struct msghdr message = { .msg_iov = &io, .msg_iovlen = 1 };

    if (fd >= 0) {
        struct cmsghdr *header;

        message.msg_control = control;
        message.msg_controllen = sizeof control;
        header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    CHECK(sendmsg(socket, &message, 0) == (ssize_t)bytes);
}

static void recv_bytes(int socket, void *data, size_t bytes, int *fd)
{
    char control[CMSG_SPACE(sizeof *fd)] = { 0 };
    struct iovec io = { .iov_base = data, .iov_len = bytes };
    struct msghdr message = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };

    CHECK(recvmsg(socket, &message, 0) == (ssize_t)bytes);
    if (fd != NULL) {
        CHECK(CMSG_FIRSTHDR(&message) != NULL);
        memcpy(fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof *fd);
    }
}

/* Word 0 goes there, word 1 comes back; between them the other side adds one to the rest. */
static void play(CUdeviceptr memory, int rounds, bool first)
{
    CUdeviceptr mine = st_alloc(WORDS * 4);
    CUstream s = st_stream();
    uint32_t last;

    for (int i = 1; i <= rounds; i++) {
        if (first) {
            OK(cuMemsetD32Async(mine, (unsigned)i, WORDS, s));
            OK(cuMemcpyAsync(memory + 4096, mine, WORDS * 4, s));
            OK(cuStreamWriteValue32(s, memory, (unsigned)i, 0));
            OK(cuStreamWaitValue32(s, memory + 64, (unsigned)i, CU_STREAM_WAIT_VALUE_GEQ));
        } else {
            OK(cuStreamWaitValue32(s, memory, (unsigned)i, CU_STREAM_WAIT_VALUE_GEQ));
            OK(cuMemcpyAsync(mine, memory + 4096, WORDS * 4, s));
            OK(cuMemcpyAsync(memory + 8192, mine, WORDS * 4, s));
            OK(cuStreamWriteValue32(s, memory + 64, (unsigned)i, 0));
        }
    }
    OK(cuStreamSynchronize(s));
    OK(cuMemcpyDtoH(&last, memory + 8192 + WORDS * 4 - 4, 4));
    CHECK(last == (uint32_t)rounds);
    OK(cuMemcpyDtoH(&last, mine + WORDS * 4 - 4, 4));
    CHECK(last == (uint32_t)rounds);
    OK(cuStreamDestroy(s));
    OK(cuMemFree(mine));
}

static void finish_round(int socket)
{
    char byte = 0;

    send_bytes(socket, &byte, 1, -1);
    recv_bytes(socket, &byte, 1, NULL);
}

static CUdeviceptr vmm_map(CUmemGenericAllocationHandle handle, size_t bytes, int device)
{
    CUmemAccessDesc access = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device },
                               .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    CUdeviceptr pointer;
    CUstream s = st_stream();

    OK(cuMemAddressReserve(&pointer, 2 * bytes, 0, 0, 0));
    EXPECT(cuMemMap(pointer, 4096, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemMap(pointer, bytes, 0, handle, 0));
    EXPECT(cuMemMap(pointer, bytes, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemsetD32Async(pointer, 0, 1, s), CUDA_ERROR_INVALID_VALUE); /* no access yet */
    OK(cuMemSetAccess(pointer, bytes, &access, 1));
    OK(cuStreamDestroy(s));
    return pointer;
}

static void vmm_unmap(CUdeviceptr pointer, size_t bytes)
{
    EXPECT(cuMemUnmap(pointer, bytes / 2), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemAddressFree(pointer, 2 * bytes), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemUnmap(pointer, bytes));
    OK(cuMemAddressFree(pointer, 2 * bytes));
}

void st_ipc_exporter(int socket)
{
    CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                 .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 } };
    CUdeviceptr memory = st_alloc(4 * WORDS * 4), other;
    CUmemGenericAllocationHandle handle, again;
    CUipcMemHandle ipc;
    unsigned char capable = 1;
    int fd;

    /* Legacy. */
    OK(cuMemsetD8(memory, 0, 4 * WORDS * 4));
    OK(cuCtxSynchronize());
    OK(cuIpcGetMemHandle(&ipc, memory + 100)); /* of the whole allocation */
    EXPECT(cuIpcOpenMemHandle(&other, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_CONTEXT);
    send_bytes(socket, &ipc, sizeof ipc, -1);
    play(memory, 100, true);
    finish_round(socket);
    OK(cuMemFree(memory));
    other = st_alloc(4 * WORDS * 4); /* very likely under the same descriptor */
    finish_round(socket);
    OK(cuMemFree(other));

    /* VMM. */
    EXPECT(cuMemCreate(&handle, GRANULARITY + 1, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemCreate(&handle, GRANULARITY, &prop, 0));
    memory = vmm_map(handle, GRANULARITY, 0);
    OK(cuMemRelease(handle)); /* the mapping keeps it */
    EXPECT(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(memory + 4))); // NOLINT
    OK(cuMemExportToShareableHandle(&fd, again, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemRelease(again));
    EXPECT(cuIpcGetMemHandle(&ipc, memory), CUDA_ERROR_INVALID_VALUE);
    OK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, memory));
    CHECK(capable == 0);
    OK(cuMemsetD8(memory, 0, 65536));
    OK(cuCtxSynchronize());
    send_bytes(socket, "v", 1, fd);
    close(fd);
    play(memory, 100, true);
    finish_round(socket);
    vmm_unmap(memory, GRANULARITY);
}

void st_ipc_importer(int socket)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop;
    CUdeviceptr memory, again;
    CUipcMemHandle ipc;
    char byte;
    int fd;

    recv_bytes(socket, &ipc, sizeof ipc, NULL);
    OK(cuIpcOpenMemHandle(&memory, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuIpcOpenMemHandle(&again, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CHECK(again == memory);
    play(memory, 100, false);
    OK(cuIpcCloseMemHandle(memory));
    EXPECT(cuMemFree(memory), CUDA_ERROR_INVALID_VALUE);
    OK(cuIpcCloseMemHandle(memory));
    EXPECT(cuIpcCloseMemHandle(memory), CUDA_ERROR_INVALID_VALUE);
    CHECK(st_stat("peer_copies") == 200 && st_stat("local_copies") == 0);
    finish_round(socket);
    /* The exporter has freed it, and has something else there by now. */
    finish_round(socket);
    EXPECT(cuIpcOpenMemHandle(&again, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_VALUE);

    recv_bytes(socket, &byte, 1, &fd);
    EXPECT(cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
           CUDA_ERROR_INVALID_VALUE);
    OK(cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)); // NOLINT
    close(fd);
    OK(cuMemGetAllocationPropertiesFromHandle(&prop, handle));
    CHECK(prop.location.id == 0);
    memory = vmm_map(handle, GRANULARITY, 1);
    OK(cuMemRelease(handle));
    play(memory, 100, false);
    vmm_unmap(memory, GRANULARITY);
    finish_round(socket);
}
