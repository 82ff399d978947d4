/* SPDX-License-Identifier: Apache-2.0 */
#include "measure.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int64_t monotonic_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

double monotonic_ms(void)
{
    return (double)monotonic_ns() * 1e-6;
}

double test_slack(void)
{
    const char *text = getenv("PICKLE_TEST_SLACK");
    double value = text != NULL ? atof(text) : 20;

    return value >= 1 ? value : 1;
}

int open_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;

    if (dir == NULL) {
        perror("/proc/self/fd");
        exit(2);
    }
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

size_t bytes_other_than(unsigned char value, const unsigned char *bytes, size_t n)
{
    size_t others = 0;

    for (size_t i = 0; i < n; i++)
        others += bytes[i] != value;
    return others;
}

unsigned long mappings_here(void)
{
    FILE *file = fopen("/proc/self/maps", "r");
    unsigned long lines = 0;
    int c;

    while (file != NULL && (c = getc(file)) != EOF)
        lines += c == '\n';
    if (file != NULL)
        fclose(file);
    return lines;
}
