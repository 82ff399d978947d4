/* SPDX-License-Identifier: Apache-2.0 */
#include "util/auth.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include "util/log.h"

pk_result_t pki_auth_random(void *out, size_t bytes)
{
    unsigned char *to = out;

    while (bytes > 0) {
        ssize_t n = getrandom(to, bytes, 0);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return pki_fail_errno(PK_ERR_SYSTEM, NULL, "getrandom of %zu bytes", bytes);
        to += n;
        bytes -= (size_t)n;
    }
    return PK_OK;
}

pk_result_t pki_auth_hash(const void *data, size_t bytes, unsigned char out[PKI_HASH_BYTES])
{
    if (EVP_Digest(data, bytes, out, NULL, EVP_sha256(), NULL) != 1)
        return pki_fail(PK_ERR_SYSTEM, NULL, "the crypto library refuses sha-256");
    return PK_OK;
}

pk_result_t pki_auth_mac(const void *key, size_t key_bytes, const void *data, size_t bytes, unsigned char out[PKI_HASH_BYTES])
{
    unsigned int written = 0;

    if (HMAC(EVP_sha256(), key, (int)key_bytes, data, bytes, out, &written) == NULL || written != PKI_HASH_BYTES)
        return pki_fail(PK_ERR_SYSTEM, NULL, "the crypto library refuses hmac-sha-256");
    return PK_OK;
}

bool pki_auth_equal(const void *a, const void *b, size_t bytes)
{
    return CRYPTO_memcmp(a, b, bytes) == 0;
}

void pki_auth_wipe(void *data, size_t bytes)
{
    OPENSSL_cleanse(data, bytes);
}
