/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Constants that decide how fast something is; table.h is the one place where they stand. What ranks must have alike is rank 0's
 * and belongs to a communicator (struct pki_agreed), everything else to the process (struct pki_tuning). Includes nothing of the
 * library.
 */
#ifndef PKI_TUNING_H
#define PKI_TUNING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PART(part) struct pki_tuning_##part {
#define VALUE(part, type, name, value) type name;
#define FIXED(part, name, constant, value)
#define END(part) \
    } \
    part;
struct pki_tuning {
#define PKI_TABLE_OF_PROCESS
#include "tuning/table.h"
#undef PKI_TABLE_OF_PROCESS
};

struct pki_agreed {
#define PKI_TABLE_OF_RANK_0
#include "tuning/table.h"
#undef PKI_TABLE_OF_RANK_0
};
#undef PART
#undef VALUE
#undef FIXED
#undef END

#define PART(part)
#define VALUE(part, type, name, value)
#define FIXED(part, name, constant, value) constant = (value),
#define END(part)
enum pki_fixed {
#define PKI_TABLE_OF_PROCESS
#define PKI_TABLE_OF_RANK_0
#include "tuning/table.h"
#undef PKI_TABLE_OF_PROCESS
#undef PKI_TABLE_OF_RANK_0
};
#undef PART
#undef VALUE
#undef FIXED
#undef END

/* This process's, and what its communicators agree on where it is rank 0. Written by pki_tuning_override alone, before the first
 * communicator. Hidden: read without a detour. */
extern struct pki_tuning pki_tuning __attribute__((visibility("hidden")));
extern struct pki_agreed pki_agreed __attribute__((visibility("hidden")));

/* For tests: "pair.eager_bytes=0,shm.cma=0" sets values. NULL: done. Otherwise where the text goes wrong (no such value, a fixed
 * one, or no number that it can have); what comes before that has been set. Not while another thread uses the library. */
const char *pki_tuning_override(const char *text);

/* One row, by number. */
struct pki_tuning_row {
    const char *part, *name;
    uint64_t value, usual; /* usual: what the table says */
    bool fixed;
};

/* False: there are no more. `agreed`: of the communicator whose values are asked for. */
bool pki_tuning_row(const struct pki_agreed *agreed, size_t number, struct pki_tuning_row *row);

#endif
