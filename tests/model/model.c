/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whatever ends in the ideal ends by the rule: random programs of 2 to 4 ranks, three communicators and up to three streams a rank. And each way to
 * break the rule makes some program stand still.
 *
 * usage: model [PROGRAMS [SEED]]
 */
#include <stdio.h>
#include <stdlib.h>

#include "known.h"
#include "world.h"

static const char *const break_names[] = { "ready words behind copies",
                                           "done words before copies",
                                           "copies behind one another's waits",
                                           "copies of one peer behind one another's waits",
                                           "copies of one pair and direction behind one another's waits",
                                           "waiting copies before others",
                                           "the last channel",
                                           "value waits not counted",
                                           "parts one by one",
                                           "ready words of all levels at once" };

#define BREAKS (int)(sizeof break_names / sizeof break_names[0])

static bool is_bad(enum outcome outcome)
{
    return outcome == WORLD_STUCK || outcome == WORLD_EARLY;
}

/* The next program that ends in the ideal. */
static void next_program(struct program *p, uint64_t *random)
{
    do
        program_make(p, random);
    while (!program_ends(p));
}

static int check_rule(long programs, uint64_t seed, bool kernels)
{
    static const int channels[] = { 4, 4, 4, 8, 2 };
    uint64_t random = seed;
    long refused = 0;

    for (long i = 0; i < programs; i++) {
        const struct machine machine = { .channels = channels[i % 5], .kernels = kernels };
        struct program p;
        enum outcome outcome;

        next_program(&p, &random);
        outcome = world_run(&p, &machine, &random);
        refused += outcome == WORLD_REFUSED;
        if (!is_bad(outcome) && (outcome != WORLD_REFUSED || !kernels))
            continue;
        printf("FAILED: program %ld of seed %llu, %d channels, %s kernels: %s\n", i, (unsigned long long)seed, machine.channels,
               kernels ? "with" : "without", outcome == WORLD_EARLY ? "bytes moved early" : "stands still");
        program_print(&p);
        return 1;
    }
    printf("%ld programs %s kernels ended%s", programs, kernels ? "with" : "without", kernels ? "\n" : "");
    if (!kernels)
        printf(" or were refused (%ld) for want of channels\n", refused);
    return 0;
}

static int check_break(int which, long programs, uint64_t seed)
{
    const struct machine machine = { .channels = 4, .kernels = true, .breaks = 1u << which };
    uint64_t random = seed;

    for (long i = 0; i < programs; i++) {
        struct program p;

        next_program(&p, &random);
        if (!is_bad(world_run(&p, &machine, &random)))
            continue;
        printf("broken rule \"%s\": program %ld\n", break_names[which], i);
        return 0;
    }
    printf("FAILED: the broken rule \"%s\" was not noticed in %ld programs\n", break_names[which], programs);
    return 1;
}

/* Each ends by the rule whoever comes when, and stands still in some order by the rule that it is known for. */
static int check_known(const struct known *known, uint64_t seed)
{
    const bool kernels = !known->without_kernels;
    const struct machine sound = { .channels = 2, .kernels = kernels },
                         broken = { .channels = 2, .kernels = kernels, .breaks = known->breaks };
    uint64_t random = seed;
    int bad = !program_ends(&known->program), noticed = 0;

    for (int i = 0; i < 1000; i++) {
        enum outcome outcome = world_run(&known->program, &sound, &random);

        bad += is_bad(outcome) || (kernels && outcome == WORLD_REFUSED);
        noticed += world_run(&known->program, &broken, &random) == WORLD_STUCK;
    }
    printf("%s%s: by a broken rule %d of 1000 orders stand still, by the rule %d\n", bad > 0 || noticed == 0 ? "FAILED: " : "",
           known->name, noticed, bad);
    return bad > 0 || noticed == 0;
}

int main(int argc, char **argv)
{
    long programs = argc > 1 ? atol(argv[1]) : 100000;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
    int failed = check_rule(programs, seed, true) + check_rule(programs, seed + 1, false);

    unsigned known = 0;

    for (int i = 0; i < known_count; i++) {
        failed += check_known(&known_programs[i], seed + 3);
        known |= known_programs[i].breaks;
    }
    for (int i = 0; i < BREAKS; i++)
        if ((known >> i & 1) == 0)
            failed += check_break(i, programs, seed + 2);
    return failed != 0;
}
