/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PKI_SWITCHML_INTERNAL_H
#define PKI_SWITCHML_INTERNAL_H

#include "switchml/datagrams.h"
#include "switchml/settings.h"
#include "switchml/switchml.h"
#include "switchml/worker.h"

#define PKI_SWITCHML_NAME_MAX 320

struct pki_switchml_job {
    const char *in;
    char *out;
    size_t count, units; /* units: packets' worth of elements */
    size_t unfit;
    bool floats;
    uint32_t sig;
    bool disagree;     /* some rank's sig is another one */
    int8_t *exponents; /* [units] the largest of all ranks; floats */
    bool *summed;      /* [units] the sums are in `out` */
    size_t room;
};

struct pki_switchml {
    char name[PKI_SWITCHML_NAME_MAX];
    int size;
    uint32_t elements, window;
    int connection; /* TCP; negative: this rank has left */
    struct pki_datagrams datagrams;
    struct pki_switchml_worker worker;
    unsigned looks;
    int error; /* errno that the socket has told */
    bool busy;
    uint64_t now;
    uint64_t heard; /* when a packet came last, or the job began */
    struct pki_switchml_job job;
};

#endif
