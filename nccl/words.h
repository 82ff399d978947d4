/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of names as NCCL_SOCKET_IFNAME and NCCL_IB_HCA have them: prefixes, with = whole names, with ^ what is not to be used; a
 * word may end with :port. */
#ifndef PKN_WORDS_H
#define PKN_WORDS_H

#include <stdbool.h>

#define PKN_VALUE_BYTES 1024 /* of a variable that is made */

struct pkn_words {
    bool others, exact;
    const char *words; /* with commas between them */
};

struct pkn_words pkn_words_parse(const char *value);

/* Is the name to be used? *port, *port_length (both may be NULL): what its word ends with, from the colon on. */
bool pkn_words_take(const struct pkn_words *words, const char *name, const char **port, int *port_length);

#endif
