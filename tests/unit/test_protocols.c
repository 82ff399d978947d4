/* SPDX-License-Identifier: Apache-2.0 */
/* Which protocol begins a transfer: by the kind of memory, the length, and what the pair can do. */
#include <criterion/criterion.h>
#include <string.h>

#include "engine/life.h"

#define EAGER 8192
#define PUT 65536

/* Rank 0 of two, with a GPU whose kernels may be used, and rank 1, which each other reaches in all ways. */
struct bed {
    struct pki_device gpu;
    struct pki_engine engine;
    struct pki_peer peer;
    struct pki_ep ctrl, path;
    struct pki_protocol_query query;
};

static void bed_make(struct bed *bed, enum pki_mem_kind kind, size_t bytes)
{
    memset(bed, 0, sizeof *bed);
    bed->engine.config.size = 2;
    bed->engine.config.gpus = PKI_GPUS_KERNELS;
    bed->engine.config.unpack_kernel = true;
    bed->engine.gpu = &bed->gpu;
    bed->peer.rank = 1;
    bed->peer.ctrl = bed->peer.path[PKI_MEM_HOST][PKI_MEM_HOST] = &bed->ctrl;
    bed->peer.path[PKI_MEM_DEVICE][PKI_MEM_DEVICE] = &bed->path;
    bed->peer.eager_put.max = PUT;
    bed->peer.ll.remote = (char *)bed; /* not read */
    bed->query = (struct pki_protocol_query){
        .engine = &bed->engine, .peer = &bed->peer, .kind = kind, .bytes = bytes, .eager_max = EAGER
    };
}

static const char *name(const struct bed *bed)
{
    return pki_protocol_choose(&bed->query)->name;
}

Test(protocols, of_host_memory_by_length)
{
    static const struct {
        size_t bytes;
        const char *name;
    } cases[] = { { 0, "eager" },       { 1, "eager" },           { EAGER, "eager" }, { EAGER + 1, "eager put" },
                  { PUT, "eager put" }, { PUT + 1, "rendezvous" } };
    struct bed bed;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bed_make(&bed, PKI_MEM_HOST, cases[i].bytes);
        cr_expect_str_eq(name(&bed), cases[i].name, "%zu bytes: %s", cases[i].bytes, name(&bed));
    }
}

Test(protocols, no_eager_put_of_what_is_captured_or_has_another_path)
{
    struct bed bed;

    bed_make(&bed, PKI_MEM_HOST, EAGER + 1);
    bed.query.captured = true;
    cr_expect_str_eq(name(&bed), "rendezvous");
    bed_make(&bed, PKI_MEM_HOST, EAGER + 1);
    bed.peer.path[PKI_MEM_HOST][PKI_MEM_HOST] = &bed.path;
    cr_expect_str_eq(name(&bed), "rendezvous");
}

Test(protocols, of_device_memory_by_length)
{
    static const struct {
        size_t bytes;
        const char *name;
    } cases[] = { { 0, "eager" }, { 1, "ll kernel" }, { PKI_LL_MAX_BYTES, "ll kernel" }, { PKI_LL_MAX_BYTES + 1, "rendezvous" } };
    struct bed bed;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bed_make(&bed, PKI_MEM_DEVICE, cases[i].bytes);
        cr_expect_str_eq(name(&bed), cases[i].name, "%zu bytes: %s", cases[i].bytes, name(&bed));
    }
}

Test(protocols, of_device_memory_without_kernels)
{
    struct bed bed;

    bed_make(&bed, PKI_MEM_DEVICE, 1);
    bed.engine.config.gpus = PKI_GPUS_SOME;
    cr_expect_str_eq(name(&bed), "rendezvous");
}

/* The receiver's kernel fetches what has come into slots; the sender needs none. */
Test(protocols, through_slots_where_no_transport_reaches_the_gpu)
{
    const struct pki_protocol *protocol;
    struct bed bed;

    bed_make(&bed, PKI_MEM_DEVICE, 1);
    bed.peer.path[PKI_MEM_DEVICE][PKI_MEM_DEVICE] = NULL;
    bed.peer.ll.remote = NULL;
    bed.gpu.max_ctas = 3;
    protocol = pki_protocol_choose(&bed.query);
    cr_expect_str_eq(protocol->name, "bounce buffers");
    cr_expect_eq(protocol->ctas(&bed.query, true), 0);
    cr_expect_eq(protocol->ctas(&bed.query, false), 3);
    bed.engine.config.sm_policy = PK_SM_NONE;
    cr_expect_eq(protocol->ctas(&bed.query, false), 0);
}

Test(protocols, a_message_to_the_own_rank_is_a_local_copy)
{
    struct bed bed;

    bed_make(&bed, PKI_MEM_HOST, 1);
    bed.peer.rank = 0;
    cr_expect_str_eq(name(&bed), "local copy");
}

/* Whoever begins a transfer by a line of the table has what begins it; a rank's own are begun otherwise. */
Test(protocols, each_begins_sends_and_receives)
{
    static const size_t bytes[] = { 0, 1, EAGER, EAGER + 1, PUT + 1, PKI_LL_MAX_BYTES + 1 };
    struct bed bed;

    for (int kind = PKI_MEM_HOST; kind <= PKI_MEM_DEVICE; kind++)
        for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
            bed_make(&bed, (enum pki_mem_kind)kind, bytes[i]);
            cr_expect_not_null(pki_protocol_choose(&bed.query)->send);
            cr_expect_not_null(pki_protocol_choose(&bed.query)->recv);
        }
}
