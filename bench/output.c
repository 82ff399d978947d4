/* SPDX-License-Identifier: Apache-2.0 */
#include "output.h"

#include <stdlib.h>
#include <string.h>

FILE *output_open(const char *path)
{
    FILE *file = path != NULL ? fopen(path, "w") : NULL;

    if (path != NULL && file == NULL) {
        perror(path);
        exit(2);
    }
    return file;
}

void output_close(FILE *file, const char *path)
{
    if (file != NULL && fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

void output_flush(FILE *file, const char *end)
{
    long place;

    if (file == NULL)
        return;
    place = ftell(file);
    if (end != NULL && place >= 0) {
        fputs(end, file);
        fflush(file);
        fseek(file, place, SEEK_SET);
    }
    fflush(file);
}

void output_json_text(FILE *out, const char *text, size_t length)
{
    fputc('"', out);
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '"' || text[i] == '\\')
            fprintf(out, "\\%c", text[i]);
        else if ((unsigned char)text[i] < 0x20)
            fprintf(out, "\\u%04x", (unsigned)text[i]);
        else
            fputc(text[i], out);
    }
    fputc('"', out);
}

void output_json_string(FILE *out, const char *text)
{
    output_json_text(out, text, strlen(text));
}

void output_cpu_model(char *out, size_t bytes)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];

    snprintf(out, bytes, "unknown CPU");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        const char *colon = strchr(line, ':');

        if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
            snprintf(out, bytes, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
            break;
        }
    }
    if (file != NULL)
        fclose(file);
}
