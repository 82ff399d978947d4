/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory in other processes and on other GPUs: legacy IPC and virtual memory, exported here and mapped by a second process
 * that this program starts (itself, with --import), and the nvlink transport. With a second GPU also by a process that cannot see
 * the first, and by the second GPU in this process. Exit code 1 when a check failed, 77 when there is no GPU. Arguments name the
 * checks to run; none means all.
 *
 * Uses the library's inside: link with the static library.
 */
#include <spawn.h>
#include <sys/wait.h>

#include "device_bed.h"
#include "transport/transport.h"

#define PROGRAM "/proc/self/exe"
#define CHILD_PIPE_FD 20
#define CHILD_FIRST_FD 21

extern char **environ;
extern const struct pki_transport pki_transport_nvlink;

/* ---- Sharing ---- */

/* The child's side: what the parent wrote is there, and what is written here arrives. Twice, since communicators share mappings. */
static int import_child(void)
{
    struct pki_export in;
    void *first = NULL, *again = NULL;
    int fds[64];

    running = "import in another process";
    if (read(CHILD_PIPE_FD, &in, sizeof in) != (ssize_t)sizeof in)
        return 2;
    for (uint32_t i = 0; i < in.pieces && i < 64; i++)
        fds[i] = CHILD_FIRST_FD + (int)i;
    in.fds = fds;
    if (!CHECK(ops->import(device, &in, false, &first) == PK_OK) || !CHECK(ops->import(device, &in, false, &again) == PK_OK))
        return 1;
    CHECK(device_has(first, in.bytes, 11));
    ops->unimport(device, &in, false, again);
    CHECK(device_fill(first, in.bytes, 12));
    ops->unimport(device, &in, false, first);
    in.bytes += 4 * MIB; /* a lie about the size must not pass */
    CHECK(ops->import(device, &in, false, &first) != PK_OK);
    return failures != 0;
}

/* `visible`: the only GPU that the child sees, or NULL: as here. */
static bool child_ok(const struct pki_export *out, const char *visible)
{
    posix_spawn_file_actions_t actions;
    char *argv[] = { (char *)(uintptr_t)PROGRAM, (char *)(uintptr_t) "--import", NULL };
    int ends[2], status = -1;
    pid_t pid;
    bool ok = pipe(ends) == 0 && write(ends[1], out, sizeof *out) == (ssize_t)sizeof *out;

    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[0], CHILD_PIPE_FD);
    for (uint32_t i = 0; i < out->pieces; i++)
        posix_spawn_file_actions_adddup2(&actions, out->fds[i], CHILD_FIRST_FD + (int)i);
    fflush(stdout);
    if (visible != NULL)
        setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    ok = ok && posix_spawn(&pid, PROGRAM, &actions, NULL, argv, environ) == 0 && waitpid(pid, &status, 0) == pid;
    if (visible != NULL)
        unsetenv("CUDA_VISIBLE_DEVICES");
    posix_spawn_file_actions_destroy(&actions);
    close(ends[0]);
    close(ends[1]);
    return ok && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* With a second GPU: memory of this one, by a process that cannot see this one, and by the other GPU within this process. */
static void share_peer(const struct pki_export *out)
{
    struct pki_queue theirs;
    void *own = NULL, *back = NULL;

    CHECK(device_fill((void *)(uintptr_t)out->base, out->bytes, 11));
    CHECK(child_ok(out, "1"));
    CHECK(device_has((void *)(uintptr_t)out->base, out->bytes, 12));
    CHECK(ops->import(other, out, true, &own) == PK_OK && own == (void *)(uintptr_t)out->base);
    CHECK(ops->import(other, out, true, &own) == PK_OK); /* peers already */
    CHECK(ops->alloc(other, out->bytes, &back) == PK_OK && ops->queue_open(other, &theirs) == PK_OK);
    CHECK(ops->copy(&theirs, own, back, out->bytes) == PK_OK && drained(&theirs));
    CHECK(ops->copy(&theirs, back, own, out->bytes) == PK_OK && drained(&theirs));
    CHECK(device_fill(back, out->bytes, 13) && ops->copy(&theirs, own, back, out->bytes) == PK_OK && drained(&theirs));
    CHECK(device_has(own, out->bytes, 13));
    ops->queue_close(&theirs);
    ops->free(other, back);
}

static void share(uint8_t *ptr, size_t bytes, int kind)
{
    struct pki_mem mem;
    struct pki_export out;
    void *own = NULL;

    if (!CHECK(ops->classify(device, ptr, bytes, &mem) == PK_OK) || !CHECK(mem.shareable) ||
        !CHECK(ops->export(device, &mem, &out) == PK_OK))
        return;
    CHECK((int)out.kind == kind && out.base == mem.base && out.bytes == mem.bytes);
    CHECK(device_fill((uint8_t *)mem.base, mem.bytes, 11));
    CHECK(ops->import(device, &out, true, &own) == PK_OK && own == (void *)mem.base);
    ops->unimport(device, &out, true, own);
    CHECK(child_ok(&out, NULL));
    CHECK(device_has((uint8_t *)mem.base, mem.bytes, 12));
    if (other != NULL)
        share_peer(&out);
    for (uint32_t i = 0; i < out.pieces; i++)
        close(out.fds[i]);
    free(out.fds);
}

static void check_ipc(void)
{
    uint8_t *ptr = device_alloc(3 * MIB + 100);

    share(ptr + 50, 1000, PKI_EXPORT_IPC);
    ops->free(device, ptr);
}

/* Virtual memory as torch's expandable segments have it: a reservation, some of it mapped piece by piece. */
struct segment {
    CUdeviceptr base;
    size_t reserved, piece;
};

static CUmemAllocationProp vmm_properties(bool shareable)
{
    CUmemAllocationProp p;

    memset(&p, 0, sizeof p);
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.requestedHandleTypes = shareable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
    return p;
}

static bool segment_map(const struct segment *s, size_t index, bool shareable)
{
    CUmemAllocationProp properties = vmm_properties(shareable);
    CUmemAccessDesc access = { .location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    CUdeviceptr at = s->base + index * s->piece;
    CUmemGenericAllocationHandle handle;
    bool ok;

    if (extra.mem_create(&handle, s->piece, &properties, 0) != CUDA_SUCCESS)
        return false;
    ok = cu->vmm_map(at, s->piece, 0, handle, 0) == CUDA_SUCCESS && cu->vmm_set_access(at, s->piece, &access, 1) == CUDA_SUCCESS;
    cu->vmm_release(handle);
    return ok;
}

static bool segment_open(struct segment *s)
{
    CUmemAllocationProp properties = vmm_properties(true);

    if (cu->vmm_get_granularity(&s->piece, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS)
        return false;
    s->piece *= 2;
    s->reserved = 8 * s->piece;
    return cu->vmm_reserve(&s->base, s->reserved, 0, 0, 0) == CUDA_SUCCESS && segment_map(s, 0, true) &&
           segment_map(s, 1, true) && segment_map(s, 2, true);
}

static void vmm_facts(const struct segment *s)
{
    unsigned long long ids[2] = { 0, 0 };
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr start = 0;
    size_t bytes = 0;

    cu->mem_get_address_range(&start, &bytes, s->base + s->piece + 8);
    cu->pointer_get_attribute(&ids[0], CU_POINTER_ATTRIBUTE_BUFFER_ID, s->base);
    cu->pointer_get_attribute(&ids[1], CU_POINTER_ATTRIBUTE_BUFFER_ID, s->base + s->piece);
    if (cu->vmm_retain(&handle, (void *)(uintptr_t)s->base) == CUDA_SUCCESS)
        cu->vmm_release(handle);
    printf("INFO vmm: pieces of %zu; address range of the second: offset %zu, %zu bytes; buffer ids %llu %llu, handle %#llx\n",
           s->piece, (size_t)(start - s->base), bytes, ids[0], ids[1], (unsigned long long)handle);
}

static void check_vmm(void)
{
    struct segment s;
    struct pki_mem mem, sub, after;
    struct pki_export out;
    uint8_t *ptr;

    ops->enter(device);
    if (!CHECK(segment_open(&s)))
        goto out;
    ptr = (uint8_t *)(uintptr_t)s.base;
    vmm_facts(&s);
    CHECK(ops->classify(device, ptr + s.piece + 5, 100, &sub) == PK_OK && sub.vmm && sub.shareable);
    CHECK(sub.base == s.base + s.piece && sub.bytes == s.piece);
    CHECK(ops->classify(device, ptr + 5, 2 * s.piece, &mem) == PK_OK && mem.base == s.base && mem.bytes == 3 * s.piece);
    CHECK(ops->classify(device, ptr + 5, 3 * s.piece, &after) == PK_ERR_ARG);
    share(ptr + 5, 2 * s.piece, PKI_EXPORT_VMM);
    /* The middle piece goes and another comes to its place. */
    CHECK(cu->vmm_unmap(s.base + s.piece, s.piece) == CUDA_SUCCESS && segment_map(&s, 1, false));
    vmm_facts(&s);
    CHECK(ops->classify(device, ptr + 5, 10, &after) == PK_OK); /* the first piece is as it was */
    CHECK(ops->classify(device, ptr + s.piece + 5, 100, &after) == PK_OK && after.buffer_id != sub.buffer_id && !after.shareable);
    CHECK(ops->export(device, &after, &out) == PK_ERR_UNSUPPORTED);
    CHECK(ops->classify(device, ptr + 5, 2 * s.piece, &after) == PK_OK && after.buffer_id != mem.buffer_id);
    for (size_t i = 0; i < 3; i++)
        cu->vmm_unmap(s.base + i * s.piece, s.piece);
    cu->vmm_unreserve(s.base, s.reserved);
out:
    ops->leave(device);
}

/* ---- The nvlink transport, from this process to itself ---- */

/* False when the transport has no room. */
static bool put_number(struct pki_put *put, struct pki_ep *ep, uint8_t *src, uint64_t remote, int number)
{
    pk_result_t result;

    *put = (struct pki_put){ .ep = ep,
                             .src = src + number,
                             .remote = remote + 512u * (unsigned)number,
                             .bytes = (size_t)number % 500,
                             .done_remote = { &words[0], (uint32_t)number + 1 } };
    result = pki_transport_nvlink.put(put);
    return CHECK(result == PK_OK || result == PK_IN_PROGRESS) && result == PK_OK;
}

static void nvlink_puts(struct pki_iface *iface, struct pki_ep *ep, uint8_t *src, uint64_t remote)
{
    static struct pki_put puts[600];
    int taken = 0, done = 0;
    uint64_t deadline = pki_now_ns() + TIMEOUT_NS;

    while (taken < 600 && put_number(&puts[taken], ep, src, remote, taken))
        taken++;
    CHECK(taken > 100 && taken <= 512); /* without progress nothing ends, and there is a limit */
    while (done < 600 && pki_now_ns() < deadline) {
        if (taken < 600 && put_number(&puts[taken], ep, src, remote, taken))
            taken++;
        pki_transport_nvlink.progress(iface);
        for (struct pki_list *node; (node = pki_list_pop(&iface->events)) != NULL; done++)
            CHECK(node == &puts[done].event.node && puts[done].result == PK_OK);
    }
    CHECK(done == 600 && word_get(0) == 600);
}

static void check_nvlink(void)
{
    struct pki_iface_config config = { .rank = 0, .size = 2, .device = device };
    struct pki_iface *iface = calloc(1, pki_transport_nvlink.iface_bytes);
    struct pki_ep *ep = calloc(1, pki_transport_nvlink.ep_bytes);
    uint8_t *src = device_alloc(2000), *dst = device_alloc(600 * 512), *got = malloc(600 * 512), *data = malloc(2000);
    struct pki_blob blob;
    struct pki_mem mem;
    struct pki_export out;
    uint64_t remote = 0;

    pki_list_init(&iface->events);
    *ep = (struct pki_ep){ .iface = iface, .peer = 1, .same_process = true };
    CHECK(pki_transport_nvlink.open(&config, iface) == PK_OK && pki_transport_nvlink.ep_init(ep, &blob) == PK_OK);
    CHECK(pki_transport_nvlink.ep_connect(ep, &blob) == PK_OK && ep->can_put);
    CHECK(ops->classify(device, dst, 600 * 512, &mem) == PK_OK && pki_transport_nvlink.reg(iface, &mem, &out) == PK_OK);
    CHECK(pki_transport_nvlink.map(ep, &out, &remote) == PK_OK);
    remote += (uintptr_t)dst - mem.base;
    fill(data, 2000, 77);
    CHECK(upload(src, data, 2000));
    word_set(0, 0);
    nvlink_puts(iface, ep, src, remote);
    CHECK(download(got, dst, 600 * 512));
    for (int i = 0; i < 600; i++)
        CHECK(memcmp(got + 512 * i, data + i, (size_t)i % 500) == 0);
    pki_transport_nvlink.unmap(ep, &out, remote);
    pki_transport_nvlink.ep_close(ep);
    pki_transport_nvlink.close(iface);
    ops->free(device, src);
    ops->free(device, dst);
    free(got);
    free(data);
    free(ep);
    free(iface);
}

/* ---- All of it ---- */

static const struct bed_check checks[] = {
    { "ipc", check_ipc },
    { "vmm", check_vmm },
    { "nvlink", check_nvlink },
};

int main(int argc, char **argv)
{
    int result = bed_open();

    if (result != 0)
        return result;
    if (argc > 1 && strcmp(argv[1], "--import") == 0)
        result = import_child();
    else
        result = bed_run(checks, sizeof checks / sizeof checks[0], argc, argv);
    bed_close();
    return result;
}
