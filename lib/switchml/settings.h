/* SPDX-License-Identifier: Apache-2.0 */
/* Where the aggregator is and how to speak to it: PK_SWITCHML, a host:port or a file with the keys of switchml.cfg. */
#ifndef PKI_SWITCHML_SETTINGS_H
#define PKI_SWITCHML_SETTINGS_H

#include "pickle/base.h"
#include "switchml/worker.h"

#define PKI_SWITCHML_HOST_MAX 256

struct pki_switchml_settings {
    char host[PKI_SWITCHML_HOST_MAX];
    uint16_t port;
    uint32_t elements; /* of a packet */
    uint32_t window;   /* of all threads */
    uint32_t threads;
    struct pki_switchml_timing timing;
};

/* What `text` says, or the file that it names: one with a slash, or that ends in .cfg. PK_ERR_ARG, recorded: the line that cannot
 * be understood. */
pk_result_t pki_switchml_settings_read(const char *text, struct pki_switchml_settings *settings);
/* The text of such a file; `name` is for messages. `text` is changed. */
pk_result_t pki_switchml_settings_parse(char *text, const char *name, struct pki_switchml_settings *settings);

#endif
