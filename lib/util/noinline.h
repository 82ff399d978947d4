/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PKI_NOINLINE_H
#define PKI_NOINLINE_H

/* What a short operation does otherwise: in line there it would take registers that every operation has to save. */
#define PKI_NOINLINE __attribute__((noinline))

#endif
