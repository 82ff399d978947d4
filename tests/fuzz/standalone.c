/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target where libFuzzer is not available: on every file named, or on made-up inputs of all lengths, the same on every run.
 * usage: fuzz.NAME COUNT [SEED] | fuzz.NAME FILE...
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INPUT_MAX 65536

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t state;

static uint64_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Exactly as long as it says, so that an address sanitizer sees the first byte behind it. */
static int run_copy(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size > 0 ? size : 1);

    if (copy == NULL)
        return 1;
    memcpy(copy, data, size);
    (void)LLVMFuzzerTestOneInput(copy, size);
    free(copy);
    return 0;
}

/* Mostly short. Half are noise; the others are the last input with a few bytes changed, cut or grown. */
static size_t make_input(uint8_t *data, size_t last_size)
{
    size_t size = next_random() % (next_random() % 8 == 0 ? INPUT_MAX : 512);

    if (next_random() % 2 == 0) {
        for (size_t i = 0; i < size; i++)
            data[i] = (uint8_t)next_random();
        return size;
    }
    if (next_random() % 4 != 0)
        size = last_size;
    else if (size > last_size)
        memset(data + last_size, 0, size - last_size);
    for (uint64_t changes = next_random() % 8; size > 0 && changes > 0; changes--)
        data[next_random() % size] = next_random() % 2 == 0 ? (uint8_t)next_random() : (uint8_t)(next_random() % 4);
    return size;
}

static int run_random(unsigned long count, uint64_t seed)
{
    uint8_t *data = calloc(1, INPUT_MAX);
    size_t size = 0;
    int failed = data == NULL;

    state = seed;
    for (unsigned long i = 0; i < count && !failed; i++) {
        size = make_input(data, size);
        failed = run_copy(data, size);
    }
    free(data);
    printf("%lu inputs\n", count);
    return failed;
}

static int run_file(const char *path)
{
    uint8_t *data = malloc(INPUT_MAX);
    FILE *file = fopen(path, "rb");
    int failed = 1;

    if (file == NULL)
        perror(path);
    else if (data != NULL)
        failed = run_copy(data, fread(data, 1, INPUT_MAX, file));
    if (file != NULL)
        fclose(file);
    free(data);
    return failed;
}

int main(int argc, char **argv)
{
    char *end = NULL;
    unsigned long count = argc > 1 ? strtoul(argv[1], &end, 10) : 0;
    int failed = 0;

    if (argc < 2) {
        fprintf(stderr, "usage: %s COUNT [SEED] | %s FILE...\n", argv[0], argv[0]);
        return 2;
    }
    if (*end == '\0')
        return run_random(count, argc > 2 ? strtoull(argv[2], NULL, 10) | 1 : 88172645463325252u);
    for (int i = 1; i < argc; i++)
        failed |= run_file(argv[i]);
    return failed;
}
