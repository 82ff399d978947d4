/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two ways to do the same, of which the machine decides which takes less time, and decides anew while it runs: how near two cores are to one another, for
 * one. Both are tried now and then, by a number that counts what is done; all ends that count alike try the same at the same time. In between it goes
 * the way that took less.
 */
#ifndef PKI_AUTOTUNER_H
#define PKI_AUTOTUNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PKI_AUTOTUNER_EVERY 512u
#define PKI_AUTOTUNER_TURNS 16u /* of each way, of so many */
#define PKI_AUTOTUNER_BLOCK 4u /* so many together */
/* To begin with where the first ones find memory that nobody has touched, and say nothing of those to come. */
#define PKI_AUTOTUNER_COLD (PKI_AUTOTUNER_EVERY - 2 * PKI_AUTOTUNER_TURNS)

struct pki_autotuner {
    bool second;    /* is the way that pays */
    bool flips;     /* test: the other one each time */
    uint64_t epoch; /* of the samples, */
    size_t bytes;   /* and how much was moved: 0: not always as much */
    unsigned n[2];
    uint64_t ns[2][PKI_AUTOTUNER_TURNS];
};

bool pki_autotuner_is_on(uint64_t number);
/* Does this one go the second way? `settled`: where nothing is tried. */
bool pki_autotuner_goes_second(uint64_t number, bool settled);
/* `number` was tried, with so many bytes. */
void pki_autotuner_took(struct pki_autotuner *tuner, uint64_t number, size_t bytes, uint64_t ns);
/* If `number` is the last that is tried: which way pays from now on. Else nothing. */
void pki_autotuner_decide(struct pki_autotuner *tuner, uint64_t number);

#endif
