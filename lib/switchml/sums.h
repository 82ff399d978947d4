/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to the values of packets: 32-bit integers in network byte order, and floats that are scaled to such integers. */
#ifndef PKI_SWITCHML_SUMS_H
#define PKI_SWITCHML_SUMS_H

#include <stdbool.h>
#include <stdint.h>

/* sums += values, modulo 2^32; the sums in the host's byte order, the values in that of the network. */
void pki_switchml_add(uint32_t *sums, const void *values, uint32_t elements);
/* The same without the vector instructions that this machine may have. */
void pki_switchml_add_portably(uint32_t *sums, const void *values, uint32_t elements);

/* 32-bit integers of the host to network byte order or back. */
void pki_switchml_swap(void *to, const void *from, uint32_t elements);

/* A unit is as many floats as a packet carries. They are sent as integers: x * scale, where the scale is so small that the sum of
 * all workers' fits 32 bits; all workers have the same, for they have told one another the exponent of their largest number. */
#define PKI_SWITCHML_UNFIT 127 /* an exponent that says: no scale exists for this unit. Only of two workers and more */

/* The exponent e of a unit: all its numbers are below 2^e. PKI_SWITCHML_UNFIT where one is infinite or not a number, or 2^e times
 * the workers would be. */
int8_t pki_switchml_exponent(const float *unit, uint32_t count, int workers);
/* Does the largest exponent of all workers say that there is a scale? */
bool pki_switchml_fits(int8_t exponent, int workers);
/* The scale for it. */
float pki_switchml_scale(int8_t exponent, int workers);
/* Between floats and values in network byte order. To the nearest, halves to even. */
void pki_switchml_quantise(void *values, const float *unit, uint32_t count, float scale);
void pki_switchml_restore(float *unit, const void *values, uint32_t count, float scale);

#endif
