/* SPDX-License-Identifier: Apache-2.0 */
#include "switchml/settings.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tuning/tuning.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/log.h"

#define FILE_MAX_BYTES 65536

static const struct pki_switchml_settings defaults = { .port = PKI_SWITCHML_PORT,
                                                       .elements = 256,
                                                       .window = PKI_SWITCHML_WINDOW,
                                                       .threads = 1,
                                                       .timing = { .timeout_ns = PKI_SWITCHML_TIMEOUT_NS,
                                                                   .least_ns = PKI_SWITCHML_TIMEOUT_LEAST_NS,
                                                                   .threshold = PKI_SWITCHML_THRESHOLD,
                                                                   .increment = PKI_SWITCHML_INCREMENT } };

enum key { HOST, PORT, ELEMENTS, WINDOW, THREADS, TIMEOUT, THRESHOLD, INCREMENT, NO_USE, KEYS };

/* The keys of [general]; those of no use here say what a communicator knows, or how the reference's own program works. */
static const struct known {
    const char *name;
    enum key key;
    uint64_t min, max;
} known[] = {
    { "controller_ip", HOST, 0, 0 },
    { "controller_port", PORT, 1, 65535 },
    { "packet_numel", ELEMENTS, 64, 256 },
    { "max_outstanding_packets", WINDOW, 1, PKI_SWITCHML_SLOTS_MAX },
    { "num_worker_threads", THREADS, 1, PKI_SWITCHML_THREADS_MAX },
    { "timeout", TIMEOUT, 1, 1000 },
    { "timeout_threshold", THRESHOLD, 1, 1000000 },
    { "timeout_threshold_increment", INCREMENT, 0, 1000000 },
    { "rank", NO_USE, 0, 0 },
    { "num_workers", NO_USE, 0, 0 },
    { "backend", NO_USE, 0, 0 },
    { "scheduler", NO_USE, 0, 0 },
    { "prepostprocessor", NO_USE, 0, 0 },
    { "instant_job_completion", NO_USE, 0, 0 },
};

static bool read_number(const char *text, uint64_t min, uint64_t max, uint64_t *value)
{
    char *end;

    if (!isdigit((unsigned char)*text))
        return false;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0' && *value >= min && *value <= max;
}

static bool set_host(struct pki_switchml_settings *s, const char *host)
{
    size_t length = strlen(host);

    if (length == 0 || length >= sizeof s->host)
        return false;
    memcpy(s->host, host, length + 1);
    return true;
}

static bool set(struct pki_switchml_settings *s, const struct known *k, const char *text)
{
    uint64_t n = 0;

    if (k->key == NO_USE)
        return true;
    if (k->key == HOST)
        return set_host(s, text);
    if (!read_number(text, k->min, k->max, &n))
        return false;
    switch (k->key) {
    case PORT:
        s->port = (uint16_t)n;
        return true;
    case ELEMENTS:
        s->elements = (uint32_t)n;
        return pki_switchml_elements_ok(s->elements);
    case WINDOW:
        s->window = (uint32_t)n;
        return true;
    case THREADS:
        s->threads = (uint32_t)n;
        return true;
    case TIMEOUT:
        s->timing.timeout_ns = n * PKI_NS_PER_MS;
        return true;
    case THRESHOLD:
        s->timing.threshold = (uint32_t)n;
        return true;
    case INCREMENT:
        s->timing.increment = (uint32_t)n;
        return true;
    default:
        return false;
    }
}

/* Without what stands around it. */
static char *trim(char *text)
{
    char *end = text + strlen(text);

    while (isspace((unsigned char)*text))
        text++;
    while (end > text && isspace((unsigned char)end[-1]))
        *--end = '\0';
    return text;
}

static pk_result_t set_line(char *line, const char *name, unsigned number, struct pki_switchml_settings *s)
{
    char *equal = strchr(line, '=');
    const char *key, *value;

    if (equal == NULL)
        return pki_fail(PK_ERR_ARG, NULL, "%.200s, line %u: '%.64s' is not of the form key = value", name, number, line);
    *equal = '\0';
    key = trim(line);
    value = trim(equal + 1);
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        if (strcmp(known[k].name, key) != 0)
            continue;
        if (set(s, &known[k], value))
            return PK_OK;
        return pki_fail(PK_ERR_ARG, NULL, "%.200s, line %u: %s is '%.64s'%s", name, number, key, value,
                        known[k].key == ELEMENTS ? ": 64 or 256" : "");
    }
    return pki_fail(PK_ERR_ARG, NULL, "%.200s, line %u: unknown key '%.64s'", name, number, key);
}

pk_result_t pki_switchml_settings_parse(char *text, const char *name, struct pki_switchml_settings *s)
{
    bool general = true; /* other sections are those of the reference's backends */
    unsigned number = 0;
    pk_result_t result = PK_OK;

    *s = defaults;
    while (text != NULL && result == PK_OK) {
        char *next = strchr(text, '\n'), *line;

        if (next != NULL)
            *next++ = '\0';
        number++;
        text[strcspn(text, "#;")] = '\0';
        line = trim(text);
        if (*line == '[')
            general = strcmp(line, "[general]") == 0;
        else if (*line != '\0' && general)
            result = set_line(line, name, number, s);
        text = next;
    }
    if (result == PK_OK && s->host[0] == '\0')
        result = pki_fail(PK_ERR_ARG, NULL, "%.200s does not set controller_ip", name);
    if (result == PK_OK && s->window < s->threads)
        result = pki_fail(PK_ERR_ARG, NULL, "%.200s: max_outstanding_packets is %u and num_worker_threads %u: one each at least",
                          name, s->window, s->threads);
    return result;
}

static pk_result_t read_file(const char *path, struct pki_switchml_settings *s)
{
    char *text = malloc(FILE_MAX_BYTES + 1);
    ssize_t n;
    int fd = pki_fd_keep(open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    pk_result_t result;

    if (text == NULL)
        result = pki_fail(PK_ERR_MEMORY, NULL, "no memory to read PK_SWITCHML=%.200s", path);
    else if (fd < 0)
        result = pki_fail_errno(PK_ERR_ARG, NULL, "PK_SWITCHML=%.200s cannot be opened", path);
    else if ((n = read(fd, text, FILE_MAX_BYTES)) < 0)
        result = pki_fail_errno(PK_ERR_ARG, NULL, "PK_SWITCHML=%.200s cannot be read", path);
    else if (n == FILE_MAX_BYTES || memchr(text, '\0', (size_t)n) != NULL)
        result = pki_fail(PK_ERR_ARG, NULL, "PK_SWITCHML=%.200s is not a text file of less than %d bytes", path, FILE_MAX_BYTES);
    else {
        text[n] = '\0';
        result = pki_switchml_settings_parse(text, path, s);
    }
    if (fd >= 0)
        close(fd);
    free(text);
    return result;
}

/* host:port, or [address of IPv6]:port. */
static pk_result_t read_address(const char *text, struct pki_switchml_settings *s)
{
    const char *colon = strrchr(text, ':');
    const char *from = text[0] == '[' ? text + 1 : text;
    size_t length = colon == NULL ? 0 : (size_t)(colon - from) - (text[0] == '[');
    uint64_t port;

    *s = defaults;
    if (colon == NULL || colon <= from || (text[0] == '[' && colon[-1] != ']') || length == 0 || length >= sizeof s->host ||
        !read_number(colon + 1, 1, 65535, &port))
        return pki_fail(PK_ERR_ARG, NULL, "PK_SWITCHML is '%.200s': host:port, or a file (with a slash, or .cfg at its end)",
                        text);
    memcpy(s->host, from, length);
    s->host[length] = '\0';
    s->port = (uint16_t)port;
    return PK_OK;
}

pk_result_t pki_switchml_settings_read(const char *text, struct pki_switchml_settings *s)
{
    size_t length = strlen(text);

    if (strchr(text, '/') != NULL || (length > 4 && strcmp(text + length - 4, ".cfg") == 0))
        return read_file(text, s);
    return read_address(text, s);
}
