/* SPDX-License-Identifier: Apache-2.0 */
/* What the rdma transport decides without a device. What it does with one: tests/rdma. */
#include <criterion/criterion.h>
#include <string.h>

#include "transport/rdma/rdma.h"

static struct ibv_gid_entry entry(uint32_t type, const uint8_t *prefix, size_t bytes)
{
    struct ibv_gid_entry e = { .gid_type = type };

    memcpy(e.gid.raw, prefix, bytes);
    e.gid.raw[15] = bytes > 0 ? 1 : 0;
    return e;
}

Test(rdma, order_of_addresses)
{
    static const uint8_t ipv4[12] = { [10] = 0xff, [11] = 0xff }, global[2] = { 0x20, 0x01 }, local[2] = { 0xfe, 0x80 };
    struct ibv_gid_entry e = entry(IBV_GID_TYPE_ROCE_V2, ipv4, 12);

    cr_expect_eq(pki_rdma_gid_order(&e), 0);
    e = entry(IBV_GID_TYPE_ROCE_V2, global, 2);
    cr_expect_eq(pki_rdma_gid_order(&e), 1);
    e = entry(IBV_GID_TYPE_ROCE_V2, local, 2);
    cr_expect_eq(pki_rdma_gid_order(&e), 2);
    e = entry(IBV_GID_TYPE_ROCE_V1, ipv4, 12);
    cr_expect_eq(pki_rdma_gid_order(&e), -1);
    e = entry(IBV_GID_TYPE_ROCE_V2, ipv4, 0);
    cr_expect_eq(pki_rdma_gid_order(&e), -1);
}

Test(rdma, listed_devices)
{
    cr_expect(pki_rdma_is_listed("mlx5_0", "mlx5_0", 1));
    cr_expect(pki_rdma_is_listed("mlx5_0,mlx5_10", "mlx5_10", 2));
    cr_expect(!pki_rdma_is_listed("mlx5_10", "mlx5_1", 1));
    cr_expect(!pki_rdma_is_listed("mlx5_1", "mlx5_10", 1));
    cr_expect(!pki_rdma_is_listed("none", "mlx5_0", 0));
    cr_expect(!pki_rdma_is_listed("", "mlx5_0", 0));
    cr_expect(pki_rdma_is_listed("mlx5_1:2,mlx5_0", "mlx5_1", 2));
    cr_expect(!pki_rdma_is_listed("mlx5_1:2,mlx5_0", "mlx5_1", 1));
    cr_expect(pki_rdma_is_listed("mlx5_1:2", "mlx5_1", 0));
    cr_expect(!pki_rdma_is_listed("mlx5_1:", "mlx5_1", 0));
    cr_expect(!pki_rdma_is_listed("mlx5_1:2x", "mlx5_1", 2));
}

static void good_hello(struct pki_rdma_hello *hello, struct pki_blob *blob)
{
    memset(hello, 0, sizeof *hello);
    hello->magic = PKI_RDMA_MAGIC;
    hello->version = PKI_RDMA_VERSION;
    hello->nqps = 2;
    hello->nrails = 1;
    hello->piece_shift = PKI_RDMA_PIECE_SHIFT;
    hello->rails[0].mtu = IBV_MTU_1024;
    hello->rails[0].ethernet = 1;
    blob->len = sizeof *hello;
    blob->fd = -1;
}

Test(rdma, greetings)
{
    struct pki_rdma_hello hello, parsed;
    struct pki_blob blob;

    good_hello(&hello, &blob);
    memcpy(blob.bytes, &hello, sizeof hello);
    cr_expect_null(pki_rdma_hello_parse(&blob, &parsed));
    cr_expect_eq(memcmp(&hello, &parsed, sizeof hello), 0);
    for (int wrong = 0; wrong < 12; wrong++) {
        good_hello(&hello, &blob);
        hello.magic += wrong == 0;
        hello.version += wrong == 1;
        hello.nqps = wrong == 2 ? 0 : wrong == 3 ? PKI_RDMA_QPS_MAX + 1 : 2;
        hello.nrails = wrong == 4 ? 0 : wrong == 5 ? PKI_RDMA_RAILS_MAX + 1 : 1;
        hello.rails[0].mtu = wrong == 6 ? 0 : IBV_MTU_1024;
        hello.piece_shift = wrong == 8 ? PKI_RDMA_PIECE_SHIFT_MIN - 1 : wrong == 9 ? PKI_RDMA_PIECE_SHIFT + 1 : 20;
        hello.immediate = wrong == 10 ? 2 : 1;
        hello.qp_rails[2] = wrong == 11; /* of the second queue pair for data; there is rail 0 alone */
        blob.len -= wrong == 7;
        memcpy(blob.bytes, &hello, sizeof hello);
        cr_expect_not_null(pki_rdma_hello_parse(&blob, &parsed), "case %d", wrong);
    }
}

Test(rdma, notes)
{
    struct pki_rdma_note note, parsed;
    struct pki_blob blob;

    memset(&note, 0, sizeof note);
    good_hello(&note.hello, &blob);
    for (uint32_t kind = 0; kind < 6; kind++) {
        note.kind = kind;
        cr_expect_eq(pki_rdma_note_parse(&note, sizeof note, &parsed) == NULL, kind >= 1 && kind <= 4, "kind %u", kind);
        cr_expect_not_null(pki_rdma_note_parse(&note, sizeof note - 1, &parsed));
    }
    note.kind = 1;
    note.ngrants = PKI_RDMA_NUMBERS + 1;
    cr_expect_not_null(pki_rdma_note_parse(&note, sizeof note, &parsed), "more grants than have numbers");
    note.ngrants = PKI_RDMA_NUMBERS;
    note.hello.nrails = 0;
    cr_expect_not_null(pki_rdma_note_parse(&note, sizeof note, &parsed), "its greeting cannot be");
}

static bool parses(struct pki_msg msg, uint32_t count, uint32_t nrails, struct pki_msg *out)
{
    uint8_t bytes[PKI_RDMA_SLOT_BYTES + 8] = { 0 };

    memcpy(bytes, &msg, sizeof msg);
    return pki_rdma_message_parse(bytes, count, nrails, PKI_RDMA_PIECE_SHIFT, out);
}

Test(rdma, messages)
{
    struct pki_msg eager = { .kind = PKI_MSG_EAGER, .op = 7 }, want = { .kind = PKI_MSG_RTS }, data = { .kind = PKI_MSG_DATA };
    struct pki_msg grant = { .kind = PKI_MSG_CTS }, elsewhere = { .kind = PKI_MSG_CTS, .flags = PKI_MSG_FLAG_BOUNCE }, out;

    cr_expect(parses(eager, 16, 1, &out) && out.payload == 0 && out.op == 7);
    cr_expect(parses(eager, 16 + PKI_RDMA_PAYLOAD_MAX, 1, &out) && out.payload == PKI_RDMA_PAYLOAD_MAX);
    cr_expect_not(parses(eager, 16 + PKI_RDMA_PAYLOAD_MAX + 1, 1, &out));
    cr_expect_not(parses(eager, 15, 1, &out));
    cr_expect_not(parses(eager, 0, 1, &out));
    cr_expect(parses(want, 48, 1, &out));
    cr_expect_not(parses(want, 47, 1, &out));
    cr_expect_not(parses(want, 49, 1, &out));
    data.payload = 100;
    cr_expect(parses(data, 148, 1, &out));
    cr_expect_not(parses(data, 147, 1, &out));
    cr_expect(parses(grant, 48 + 8, 2, &out), "keys of two rails");
    cr_expect_not(parses(grant, 48, 2, &out), "no keys");
    cr_expect_not(parses(grant, 48 + 4, 2, &out), "keys of one rail");
    cr_expect(parses(elsewhere, 48, 2, &out), "no host memory, no keys");
    grant.offset = ((uint64_t)3 << PKI_RDMA_PIECE_SHIFT) - 4096;
    grant.bytes = 4096;
    cr_expect(parses(grant, 48 + 8, 2, &out), "it ends where a piece ends");
    grant.bytes = 4097;
    cr_expect(parses(grant, 48 + 16, 2, &out), "two pieces");
    cr_expect_not(parses(grant, 48 + 8, 2, &out), "keys of one piece");
    grant.bytes = UINT64_MAX;
    cr_expect_not(parses(grant, 48 + 8, 2, &out), "no range of memory");
    grant.offset = 0;
    cr_expect_not(parses(grant, 48 + PKI_RDMA_PAYLOAD_MAX, 1, &out), "more keys than a message holds");
    grant.bytes = 0;
    grant.payload = 8;
    cr_expect_not(parses(grant, 48 + 16, 2, &out));
}
