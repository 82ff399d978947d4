/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <string.h>

#include "comm/choose.h"

static struct pki_chooser chooser_of(int size, int hosts, bool gpus, const char *text)
{
    struct pki_chooser c;

    memset(&c, 0, sizeof c);
    c.settings.agreed = pki_agreed;
    c.size = size;
    c.hosts = hosts;
    c.gpus = gpus;
    strcpy(c.settings.algorithm, text);
    cr_assert(pki_chooser_init(&c) == PK_OK, "PK_ALGORITHM %s", text);
    return c;
}

static bool is_named(struct pki_choice choice, const char *name)
{
    return strcmp(choice.algorithm->name, name) == 0;
}

static void check(const struct pki_chooser *c, enum pki_coll coll, size_t bytes)
{
    struct pki_choice choice = pki_choose(c, coll, bytes);
    const char *name;

    cr_assert(choice.algorithm != NULL, "collective %d, %d ranks on %d hosts, %zu bytes", (int)coll, c->size, c->hosts, bytes);
    cr_assert(choice.algorithm->coll == coll && choice.reason[0] != '\0');
    name = choice.algorithm->name;
    /* Everything to everyone is for short ones only. */
    if (strcmp(name, "flat") == 0 && pki_coll_shape(coll)->reduces)
        cr_assert(bytes * (size_t)c->size <= (c->hosts == 2 && c->size == 2 ? (c->gpus ? 8u << 20 : 2u << 20) : 1u << 20),
                  "flat %d of %zu bytes on %d ranks", (int)coll, bytes, c->size);
    /* The bits do not depend on the size: one host, sums in rank order. */
    if (coll == PKI_COLL_ALLREDUCE && c->hosts == 1 && c->size <= 16)
        cr_assert(strcmp(name, "flat") == 0 || strcmp(name, "direct") == 0 || strcmp(name, "staggered") == 0 ||
                      (c->size == 2 && strcmp(name, "ring") == 0),
                  "%s for %d ranks", name, c->size);
}

static void check_all_sizes(const struct pki_chooser *c)
{
    for (unsigned coll = 0; coll < PKI_COLL_END; coll++)
        for (size_t bytes = 0; pki_coll_shape(coll) != NULL && bytes < (size_t)1 << 40; bytes = bytes * 3 + 1)
            check(c, (enum pki_coll)coll, bytes);
}

Test(choose, something_for_everything)
{
    for (int size = 1; size <= 70; size++)
        for (int hosts = 1; hosts <= size && hosts <= 5; hosts++)
            for (int gpus = 0; gpus < 2; gpus++) {
                struct pki_chooser c = chooser_of(size, hosts, gpus == 1, "");

                check_all_sizes(&c);
            }
}

Test(choose, a_root_sums_alone_what_is_soon_summed)
{
    struct pki_chooser few = chooser_of(3, 1, false, ""), more = chooser_of(8, 1, false, ""), gpus = chooser_of(4, 1, true, "");

    cr_assert(is_named(pki_choose(&few, PKI_COLL_REDUCE, 8 << 10), "flat"));
    cr_assert(is_named(pki_choose(&few, PKI_COLL_REDUCE, 32 << 10), "direct"));
    cr_assert(is_named(pki_choose(&more, PKI_COLL_REDUCE, 64), "flat"));
    cr_assert(is_named(pki_choose(&more, PKI_COLL_REDUCE, 2 << 10), "direct"));
    cr_assert(is_named(pki_choose(&gpus, PKI_COLL_REDUCE, 128 << 10), "flat"));
    cr_assert(is_named(pki_choose(&gpus, PKI_COLL_REDUCE, 256 << 10), "direct"));
}

Test(choose, two_hosts)
{
    struct pki_chooser apart = chooser_of(2, 2, false, "");

    cr_assert(is_named(pki_choose(&apart, PKI_COLL_ALLREDUCE, 1 << 20), "flat"));
    cr_assert(is_named(pki_choose(&apart, PKI_COLL_ALLREDUCE, 2 << 20), "ring"));
}

Test(choose, many_hosts)
{
    struct pki_chooser shared = chooser_of(8, 2, false, ""), apart = chooser_of(8, 8, false, "");
    struct pki_chooser many = chooser_of(128, 16, false, "");

    static const enum pki_coll blocks[] = { PKI_COLL_ALLGATHER, PKI_COLL_REDUCE_SCATTER, PKI_COLL_ALLGATHERV };
    static const enum pki_coll whole[] = { PKI_COLL_ALLREDUCE, PKI_COLL_BROADCAST, PKI_COLL_REDUCE };

    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        cr_assert(is_named(pki_choose(&shared, whole[i], 64 << 20), "hier"));
        cr_assert(is_named(pki_choose(&shared, whole[i], 8), "leader"));
    }
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        cr_assert(is_named(pki_choose(&shared, blocks[i], 64 << 20), "hier"));
    cr_assert(is_named(pki_choose(&shared, PKI_COLL_ALLREDUCE, 512 << 10), "leader"));
    cr_assert(is_named(pki_choose(&shared, PKI_COLL_ALLREDUCE, 1 << 20), "hier"));
    cr_assert(is_named(pki_choose(&many, PKI_COLL_ALLREDUCE, 1 << 20), "leader"));
    cr_assert(is_named(pki_choose(&many, PKI_COLL_ALLREDUCE, 4 << 20), "halving"));
    cr_assert(is_named(pki_choose(&many, PKI_COLL_ALLREDUCE, 64 << 20), "hier"));
    cr_assert(is_named(pki_choose(&shared, PKI_COLL_BARRIER, 0), "hier"));
    cr_assert(is_named(pki_choose(&shared, PKI_COLL_ALLTOALL, 64 << 20), "direct"));
    cr_assert(is_named(pki_choose(&apart, PKI_COLL_REDUCE_SCATTER, 64 << 20), "direct"));
    cr_assert(is_named(pki_choose(&apart, PKI_COLL_ALLREDUCE, 64 << 20), "direct"));
    cr_assert(is_named(pki_choose(&apart, PKI_COLL_BROADCAST, 8), "tree"));
}

Test(choose, long_sums_of_gpus_go_in_rounds)
{
    static const int sizes[] = { 3, 4, 8, 16 };
    struct pki_chooser two = chooser_of(2, 1, true, ""), no_gpu = chooser_of(4, 1, false, ""), many = chooser_of(17, 1, true, "");

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct pki_chooser c = chooser_of(sizes[i], 1, true, ""), hosts = chooser_of(sizes[i], sizes[i], true, "");
        size_t block = (size_t)(64 << 20) / (size_t)sizes[i] + 1;

        cr_assert(is_named(pki_choose(&c, PKI_COLL_ALLREDUCE, 32 << 20), "direct"));
        cr_assert(is_named(pki_choose(&c, PKI_COLL_ALLREDUCE, 64 << 20), "staggered"));
        cr_assert(is_named(pki_choose(&c, PKI_COLL_REDUCE_SCATTER, block), "staggered"));
        cr_assert(is_named(pki_choose(&c, PKI_COLL_REDUCE_SCATTER, block / 2), "direct"));
        cr_assert(is_named(pki_choose(&hosts, PKI_COLL_ALLREDUCE, 64 << 20), "direct"));
    }
    cr_assert(is_named(pki_choose(&two, PKI_COLL_ALLREDUCE, 32 << 20), "direct"));
    cr_assert(is_named(pki_choose(&two, PKI_COLL_ALLREDUCE, 256 << 20), "staggered"));
    cr_assert(is_named(pki_choose(&two, PKI_COLL_REDUCE_SCATTER, 1 << 30), "direct"));
    cr_assert(is_named(pki_choose(&no_gpu, PKI_COLL_ALLREDUCE, 1 << 30), "direct"));
    cr_assert(is_named(pki_choose(&many, PKI_COLL_ALLREDUCE, 1 << 30), "ring"));
}

Test(choose, without_kernels_the_own_block_goes_by_a_neighbour)
{
    struct pki_chooser c = chooser_of(4, 1, true, "");

    cr_assert(is_named(pki_choose(&c, PKI_COLL_ALLTOALL, 1 << 30), "direct"));
    c.relayed = true;
    cr_assert(is_named(pki_choose(&c, PKI_COLL_ALLTOALL, 2 << 20), "detour"));
    cr_assert(is_named(pki_choose(&c, PKI_COLL_ALLTOALL, (2 << 20) - 1), "direct"));
    cr_assert(is_named(pki_choose(&c, PKI_COLL_ALLTOALLV, 1 << 30), "direct"));
    cr_assert(is_named(pki_choose(&c, PKI_COLL_ALLGATHER, 1 << 30), "direct"));
}

Test(choose, asked_for)
{
    struct pki_chooser one = chooser_of(4, 1, false, "ring");
    struct pki_chooser list = chooser_of(4, 1, false, "tree,allreduce=halving,broadcast=ring");
    struct pki_chooser kernels = chooser_of(4, 1, false, "allreduce=fused");

    cr_assert(is_named(pki_choose(&one, PKI_COLL_ALLREDUCE, 8), "ring"));
    cr_assert(is_named(pki_choose(&one, PKI_COLL_ALLTOALL, 8), "direct")); /* it has no other */
    cr_assert(is_named(pki_choose(&list, PKI_COLL_ALLREDUCE, 8), "halving"));
    cr_assert(is_named(pki_choose(&list, PKI_COLL_BROADCAST, 8), "ring"));
    cr_assert(is_named(pki_choose(&list, PKI_COLL_REDUCE, 8), "tree"));
    cr_assert(one.fused == 0 && kernels.fused == (1u << PKI_COLL_ALLREDUCE));
    cr_assert(is_named(pki_choose(&kernels, PKI_COLL_ALLREDUCE, 8), "flat")); /* in host memory */
}

Test(choose, other_names)
{
    struct pki_chooser short_one = chooser_of(4, 1, false, "one-shot,alltoall=relayed");
    struct pki_chooser hosts = chooser_of(4, 2, false, "allreduce=node-leader");

    cr_assert(is_named(pki_choose(&short_one, PKI_COLL_ALLREDUCE, 1 << 30), "flat"));
    cr_assert(is_named(pki_choose(&short_one, PKI_COLL_ALLTOALL, 8), "detour"));
    cr_assert(is_named(pki_choose(&hosts, PKI_COLL_ALLREDUCE, 1 << 30), "leader"));
    cr_assert(pki_algorithm_text_check("reduce=relayed") == PK_ERR_ARG);
}

Test(choose, asked_for_wrongly)
{
    static const char *const wrong[] = {
        "rings",      "allreduce", "allreduce=", "=ring", "allreduce=tree",      "all=ring",
        "ring,,tree", "ring;tree", "Ring",       " ring", "allreduce=ring=tree", "barrier=fused"
    };
    char long_text[PKI_ALGORITHM_TEXT + 8];

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        cr_assert(pki_algorithm_text_check(wrong[i]) == PK_ERR_ARG, "'%s' was taken", wrong[i]);
    memset(long_text, ',', sizeof long_text);
    long_text[sizeof long_text - 1] = '\0';
    cr_assert(pki_algorithm_text_check(long_text) == PK_ERR_ARG);
    cr_assert(pki_algorithm_text_check("allreduce=ring,alltoallv=direct") == PK_OK);
    cr_assert(pki_algorithm_text_check("fused,allreduce=ring,reduce=fused") == PK_OK);
    cr_assert(pki_algorithm_text_check("") == PK_OK);
}
