/* SPDX-License-Identifier: Apache-2.0 */
/* Do all ranks call the same collective? Its number and its fingerprint tell, and a disagreement names both sides. */
#include <stdio.h>

#include "engine/channel/channel.h"
#include "util/dtype.h"

static uint64_t mix(uint64_t hash, uint64_t value)
{
    return (hash ^ value) * 0x9e3779b97f4a7c15ull;
}

/* What must be equal everywhere and has no bits of its own: the count, all of them where every rank names all, and the algorithm,
 * which may depend on the kind of memory. */
static uint64_t digest(const struct pki_request *r, int size)
{
    uint64_t hash = mix(0, r->count);

    if (r->algorithm->coll == PKI_COLL_ALLGATHERV)
        for (int i = 0; i < size; i++)
            hash = mix(hash >> 7, r->layout.out_counts[i]);
    hash = mix(hash >> 3, (uint64_t)r->root >> 8);
    for (const char *c = r->instead != NULL ? r->instead->name : r->algorithm->name; *c != '\0'; c++)
        hash = mix(hash >> 5, (unsigned char)*c);
    return hash;
}

#define OP_SCALED PK_OP_COUNT /* whatever the factors are */

/* Operation in 4 bits, type in 4, reduction in 4, root in 8, a digest of the rest in 12. */
uint32_t pki_task_fingerprint(const struct pki_request *r, int size)
{
    if (r->what != PKI_DO_COLL)
        return 0;
    return (uint32_t)r->algorithm->coll | (uint32_t)r->dtype << 4 | (r->scaled ? OP_SCALED : (uint32_t)(r->op & 15)) << 8 |
           (uint32_t)(r->root & 255) << 12 | (uint32_t)(digest(r, size) >> 52) << 20;
}

/* One side of a disagreement, from its fingerprint. */
static void describe(uint32_t sig, char *text, size_t len)
{
    static const char *const ops[] = { "sum", "prod", "min", "max", "avg", [OP_SCALED] = "premul sum" };
    const struct pki_shape *shape = pki_coll_shape(sig & 15);
    unsigned op = sig >> 8 & 15;
    int used = snprintf(text, len, "calls %s", shape != NULL ? shape->name : "another operation");

    if (shape == NULL || (sig & 15) == PKI_COLL_BARRIER)
        return;
    used += snprintf(text + used, len - (size_t)used, " of %s", pk_dtype_name((pk_dtype_t)(sig >> 4 & 15)));
    if (shape->reduces)
        used += snprintf(text + used, len - (size_t)used, ", reduction %s", op <= OP_SCALED ? ops[op] : "unknown");
    if (shape->rooted)
        snprintf(text + used, len - (size_t)used, ", root %u", (unsigned)(sig >> 12 & 255));
}

static void mismatch(struct pki_engine *e, const struct pki_coll_seen *own, int peer, uint32_t theirs)
{
    const struct pki_shape *shape = pki_coll_shape(own->sig & 15);
    struct pki_where where = {
        .rank = e->config.rank, .peer = peer, .op = shape != NULL ? shape->name : NULL, .op_number = own->number
    };
    bool rest_only = ((theirs ^ own->sig) & 0xfffff) == 0;
    char mine[96], other[96];

    describe(own->sig, mine, sizeof mine);
    describe(theirs, other, sizeof other);
    (void)pki_fail(PK_ERR_MISMATCH, &where, "rank %d %s, count %zu; rank %d %s%s", e->config.rank, mine, own->count, peer, other,
                   rest_only ? ", another count or kind of memory" : "");
    pki_engine_poison(e, PK_ERR_MISMATCH, true);
}

void pki_task_mismatch(struct pki_task *task, int peer, uint32_t theirs)
{
    struct pki_coll_seen own = { task->number, task->sig, task->request.count };

    mismatch(task->engine, &own, peer, theirs);
}

bool pki_task_contradicts(struct pki_engine *e, int peer, uint64_t number, uint32_t theirs)
{
    const struct pki_coll_seen *own = &e->colls.seen[number % PKI_SEEN_MAX];

    if (own->number != number || number == 0 || own->sig == theirs)
        return false;
    mismatch(e, own, peer, theirs);
    return true;
}

/* Peers may have spoken of it already. */
static void check_unexpected(struct pki_task *task)
{
    struct pki_engine *e = task->engine;

    for (int i = 0; i < e->config.size; i++)
        for (struct pki_list *n = e->peers[i].unexpected_queue.next; n != &e->peers[i].unexpected_queue; n = n->next) {
            const struct pki_msg *msg = &pki_container_of(n, struct pki_unexpected, node)->msg;

            if (pki_msg_of_collective(msg) && msg->op == task->number && pki_task_contradicts(e, i, msg->op, msg->sig))
                return;
        }
}

void pki_task_number(struct pki_task *task)
{
    struct pki_engine *e = task->engine;

    task->number = ++e->colls.number;
    e->colls.seen[task->number % PKI_SEEN_MAX] = (struct pki_coll_seen){ task->number, task->sig, task->request.count };
    check_unexpected(task);
}
