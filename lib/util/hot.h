/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that lie side by side in the library. */
#ifndef PKI_HOT_H
#define PKI_HOT_H

/* What a short message between hosts runs through. Between two system calls the caches of the processor's first level, and
 * where a hypervisor looks after page tables those of addresses, have little of the library left: eleven pages of code took 1
 * to 3 per cent longer than three do. */
#define PKI_HOT __attribute__((hot))

/* What such a function does otherwise: in line there it would take registers that every message has to save. */
#define PKI_COLD __attribute__((noinline))

#endif
