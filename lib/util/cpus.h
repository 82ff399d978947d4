/* SPDX-License-Identifier: Apache-2.0 */
/* On which CPUs a thread runs. */
#ifndef PKI_CPUS_H
#define PKI_CPUS_H

/* The calling thread may run on every CPU that the process's cpuset has. The thread that made it may be bound to one core, which its own
 * spinning needs. */
void pki_cpus_widen(void);

#endif
