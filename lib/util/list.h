/* SPDX-License-Identifier: Apache-2.0 */
/* Doubly linked intrusive list with a sentinel head. */
#ifndef PKI_LIST_H
#define PKI_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct pki_list {
    struct pki_list *next, *prev;
};

#define pki_container_of(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

static inline void pki_list_init(struct pki_list *head)
{
    head->next = head->prev = head;
}

static inline bool pki_list_empty(const struct pki_list *head)
{
    return head->next == head;
}

static inline void pki_list_push(struct pki_list *head, struct pki_list *node)
{
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

/* Safe to call twice: a removed node points at itself. */
static inline void pki_list_remove(struct pki_list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    pki_list_init(node);
}

static inline struct pki_list *pki_list_pop(struct pki_list *head)
{
    struct pki_list *node = head->next;

    if (node == head)
        return NULL;
    pki_list_remove(node);
    return node;
}

#endif
