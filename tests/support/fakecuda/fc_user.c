/* SPDX-License-Identifier: Apache-2.0 */
/* User objects: something of the caller's that lives as long as a graph and all that was made of it. */
#include "fakecuda.h"

#include <stdlib.h>

struct fc_user {
    unsigned refs;
    CUhostFn destroy;
    void *data;
};

static void *must(void *memory)
{
    if (memory == NULL)
        abort();
    return memory;
}

static void user_put(struct fc_user *user, unsigned count)
{
    user->refs -= count;
    if (user->refs > 0)
        return;
    fc_reap(user->destroy, user->data);
    free(user);
}

struct fc_user_ref *fc_users_copy(const struct fc_user_ref *users)
{
    struct fc_user_ref *copy = NULL;

    for (; users != NULL; users = users->next) {
        struct fc_user_ref *ref = must(calloc(1, sizeof *ref));

        *ref = (struct fc_user_ref){ .next = copy, .user = users->user, .count = 1 };
        ref->user->refs++;
        copy = ref;
    }
    return copy;
}

void fc_users_free(struct fc_user_ref *users)
{
    while (users != NULL) {
        struct fc_user_ref *next = users->next;

        user_put(users->user, users->count);
        free(users);
        users = next;
    }
}

CUresult cuUserObjectCreate(CUuserObject *object_out, void *ptr, CUhostFn destroy, unsigned int initialRefcount,
                            unsigned int flags)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS &&
        (object_out == NULL || destroy == NULL || initialRefcount == 0 || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        struct fc_user *user = must(calloc(1, sizeof *user));

        *user = (struct fc_user){ .refs = initialRefcount, .destroy = destroy, .data = ptr };
        *object_out = (CUuserObject)(void *)user;
    }
    return fc_leave(__func__, result);
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned int count)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS) {
        fc_lock();
        ((struct fc_user *)(void *)object)->refs += count;
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS) {
        fc_lock();
        user_put((struct fc_user *)(void *)object, count);
        fc_unlock();
    }
    return fc_leave(__func__, result);
}

static void graph_retain(struct fc_graph *graph, struct fc_user *user, unsigned count, unsigned flags)
{
    struct fc_user_ref *ref = must(calloc(1, sizeof *ref));

    *ref = (struct fc_user_ref){ .next = graph->users, .user = user, .count = count };
    graph->users = ref;
    if (!(flags & CU_GRAPH_USER_OBJECT_MOVE))
        user->refs += count;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags)
{
    CUresult result = fc_enter(__func__, FC_INIT);

    if (result == CUDA_SUCCESS) {
        fc_lock();
        if (fc_graph_get(graph) != NULL && object != NULL && count > 0)
            graph_retain(fc_graph_get(graph), (struct fc_user *)(void *)object, count, flags);
        else
            result = CUDA_ERROR_INVALID_VALUE;
        fc_unlock();
    }
    return fc_leave(__func__, result);
}
