/* SPDX-License-Identifier: Apache-2.0 */
/* Proofs and randomness for connections. auth.c is the only file that knows the crypto library. */
#ifndef PKI_AUTH_H
#define PKI_AUTH_H

#include <stdbool.h>
#include <stddef.h>

#include "pickle/base.h"

#define PKI_HASH_BYTES 32

/* From the kernel's generator. PK_ERR_SYSTEM is recorded. */
pk_result_t pki_auth_random(void *out, size_t bytes);

/* SHA-256, and HMAC-SHA256. They fail (recorded) only when the crypto library refuses the algorithm. */
pk_result_t pki_auth_hash(const void *data, size_t bytes, unsigned char out[PKI_HASH_BYTES]);
pk_result_t pki_auth_mac(const void *key, size_t key_bytes, const void *data, size_t bytes, unsigned char out[PKI_HASH_BYTES]);

/* Takes the same time whatever the bytes. */
bool pki_auth_equal(const void *a, const void *b, size_t bytes);

/* Clear memory that held a secret; not optimised away. */
void pki_auth_wipe(void *data, size_t bytes);

#endif
