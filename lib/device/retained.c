/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdlib.h>

#include "device/device.h"
#include "util/list.h"
#include "util/log.h"

struct held {
    struct pki_list node;
    void *at;
    int holders;
    /* of its own: it keeps the context when the first holder's has been closed; NULL: mappable memory */
    struct pki_device *device;
};

static struct {
    pthread_mutex_t lock;
    struct pki_list all;
} memories = { .lock = PTHREAD_MUTEX_INITIALIZER, .all = { &memories.all, &memories.all } };

/* Locked. */
static struct held *held_at(const void *at)
{
    for (struct pki_list *n = memories.all.next; n != &memories.all; n = n->next)
        if (pki_container_of(n, struct held, node)->at == at)
            return pki_container_of(n, struct held, node);
    return NULL;
}

static void note(struct held *held, void **at)
{
    held->holders = 1;
    *at = held->at;
    pthread_mutex_lock(&memories.lock);
    pki_list_push(&memories.all, &held->node);
    pthread_mutex_unlock(&memories.lock);
}

static struct held *held_new(void)
{
    struct held *held = calloc(1, sizeof *held);

    if (held == NULL)
        (void)pki_fail(PK_ERR_MEMORY, NULL, "no memory for the list of ranks that write to this GPU");
    return held;
}

pk_result_t pki_retained_alloc(struct pki_device *device, size_t bytes, void **at)
{
    struct held *held = held_new();
    struct pki_device_info info;
    pk_result_t result;

    if (held == NULL)
        return PK_ERR_MEMORY;
    device->ops->info(device, &info);
    result = device->ops->open(info.ordinal, &held->device);
    if (result != PK_OK)
        goto err_free;
    result = held->device->ops->alloc(held->device, bytes, &held->at);
    if (result != PK_OK)
        goto err_device;
    note(held, at);
    return PK_OK;

err_device:
    held->device->ops->close(held->device);
err_free:
    free(held);
    return result;
}

pk_result_t pki_retained_alloc_mappable(int ordinal, size_t bytes, void **at)
{
    struct held *held = held_new();
    pk_result_t result = held == NULL ? PK_ERR_MEMORY : pki_device_cuda_mem_alloc(ordinal, bytes, &held->at);

    if (result == PK_OK)
        note(held, at);
    else
        free(held);
    return result;
}

bool pki_retained_take(void *at)
{
    struct held *held;

    pthread_mutex_lock(&memories.lock);
    held = held_at(at);
    if (held != NULL)
        held->holders++;
    pthread_mutex_unlock(&memories.lock);
    return held != NULL;
}

void pki_retained_give(void *at)
{
    struct held *held;
    bool is_last;

    pthread_mutex_lock(&memories.lock);
    held = held_at(at);
    is_last = --held->holders == 0;
    if (is_last)
        pki_list_remove(&held->node);
    pthread_mutex_unlock(&memories.lock);
    if (!is_last)
        return;
    if (held->device == NULL) {
        (void)pki_device_cuda_mem_free(at);
    } else {
        held->device->ops->free(held->device, at);
        held->device->ops->close(held->device);
    }
    free(held);
}
