/* SPDX-License-Identifier: Apache-2.0 */
/* What people and programs read: a table, CSV with a row a world, JSON. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "output.h"
#include "timing.h"

static const char end[] = "\n ]}\n"; /* of the JSON file */
static const char *const family_names[FAMILIES] = { "libpickle", "Open MPI", "Gloo", "no library" };

static void json_header(struct driver *driver, const char *cpu, const char *date)
{
    fprintf(driver->json, "{\"tool\": \"pickle-compare\", \"date\": \"%s\", \"cpu\": ", date);
    output_json_string(driver->json, cpu);
    fprintf(driver->json, ", \"cpus\": %ld, \"ranks\": %d, \"bound\": %s,\n \"worlds\": [", sysconf(_SC_NPROCESSORS_ONLN),
            driver->options.ranks, driver->options.bind ? "true" : "false");
    for (int w = 0; w < driver->world_count; w++) {
        const struct driver_world *world = &driver->worlds[w];

        fprintf(driver->json, "%s\n  {\"name\": ", w > 0 ? "," : "");
        output_json_string(driver->json, world->label);
        fputs(", \"command\": ", driver->json);
        output_json_string(driver->json, world->command);
        fputs(", \"settings\": ", driver->json);
        output_json_string(driver->json, world->settings);
        fputs(", \"absent\": ", driver->json);
        output_json_string(driver->json, world->absent);
        fputc('}', driver->json);
    }
    fputs("],\n \"rows\": [", driver->json);
}

/* A name that fits its column. */
static void short_label(const char *label, char out[13])
{
    if (strlen(label) <= 12)
        snprintf(out, 13, "%s", label);
    else
        snprintf(out, 13, "..%s", label + strlen(label) - 10);
}

static void print_heads(const struct driver *driver)
{
    char label[13];

    printf("#\n# %-14s %10s", "operation", "bytes");
    for (int w = 0; w < driver->world_count; w++) {
        short_label(driver->worlds[w].label, label);
        printf(w == 0 ? " %12s" : " %12s ratio ", label);
    }
    printf("  | best of: Open MPI  Gloo  bare\n# %-14s %10s %12s", "", "", "us");
    for (int w = 1; w < driver->world_count; w++)
        printf(" %12s       ", "us");
    printf("  | ratio\n");
}

void driver_header(struct driver *driver)
{
    struct utsname system;
    char cpu[128], date[32];
    double load = 0;
    time_t now = time(NULL);
    struct tm tm;

    output_cpu_model(cpu, sizeof cpu);
    uname(&system);
    strftime(date, sizeof date, "%Y-%m-%d %H:%M", localtime_r(&now, &tm));
    getloadavg(&load, 1);
    printf("# pickle-compare, %s, %s, %ld CPUs, Linux %s, load before %.1f (what else runs spoils times, above all of threads)\n",
           date, cpu, sysconf(_SC_NPROCESSORS_ONLN), system.release, load);
    printf("# %d ranks a world, %s, %u rounds of %.0f ms a size, turn by turn; every result checked; sums of f32\n",
           driver->options.ranks, driver->options.bind ? "each rank bound to a core" : "not bound to cores",
           driver->options.rounds, driver->options.turn_us * 1e-3);
    for (int w = 0; w < driver->world_count; w++) {
        const struct driver_world *world = &driver->worlds[w];

        printf("# %s: %s\n", world->label, world->command);
        if (world->absent[0] != '\0')
            printf("#     ABSENT: %s\n", world->absent);
        else
            printf("#     %s\n", world->settings);
    }
    driver->csv = output_open(driver->options.csv_path);
    driver->json = output_open(driver->options.json_path);
    if (driver->csv != NULL)
        fputs(
            "operation,bytes,ranks,world,family,median_us,p99_us,min_us,samples,ratio,ratio_rounds,ratio_least,ratio_most,wrong,"
            "how,switches\n",
            driver->csv);
    if (driver->json != NULL)
        json_header(driver, cpu, date);
    print_heads(driver);
    fflush(stdout);
}

/* The first world's time to another's. */
static double ratio(const struct driver_row *row, int w)
{
    if (!row->results[0].measured || !row->results[w].measured || row->results[w].median_us <= 0)
        return 0;
    return row->results[0].median_us / row->results[w].median_us;
}

/* The ratio in each round, whose turns were close together in time: what the machine's mood cannot change. */
struct spread {
    double median, least, most;
};

static struct spread round_ratios(const struct driver *driver, const struct driver_row *row, int w)
{
    double ratios[ROUNDS_MAX];
    unsigned n = 0;

    for (unsigned round = 0; round < driver->options.rounds; round++)
        if (row->results[0].turn_us[round] > 0 && row->results[w].turn_us[round] > 0)
            ratios[n++] = row->results[0].turn_us[round] / row->results[w].turn_us[round];
    if (n == 0)
        return (struct spread){ 0, 0, 0 };
    sort_up(ratios, n);
    return (struct spread){ .median = ratios[n / 2], .least = ratios[0], .most = ratios[n - 1] };
}

static bool doubtful(const struct driver *driver, const struct driver_row *row, int w)
{
    struct spread spread = round_ratios(driver, row, w);

    return spread.most > 1.5 * spread.least;
}

/* To the fastest of a family; 0: none was measured. */
static double best_ratio(const struct driver *driver, const struct driver_row *row, enum driver_family family)
{
    double best = 0;

    for (int w = 1; w < driver->world_count; w++)
        if (driver->worlds[w].family == family && ratio(row, w) > best)
            best = ratio(row, w);
    return best;
}

static void print_ratio(double value, int width)
{
    if (value > 0)
        printf(" %*.2f", width, value);
    else
        printf(" %*s", width, "-");
}

static void print_row(const struct driver *driver, const struct driver_row *row)
{
    printf("  %-14s %10zu", driver_op_name(row->op), row->bytes);
    for (int w = 0; w < driver->world_count; w++) {
        if (row->results[w].measured)
            printf(" %12.2f", row->results[w].median_us);
        else
            printf(" %12s", "-");
        if (w > 0) {
            print_ratio(ratio(row, w), 5);
            putchar(doubtful(driver, row, w) ? '~' : ' ');
        }
    }
    printf("  |         ");
    print_ratio(best_ratio(driver, row, FAMILY_OMPI), 8);
    print_ratio(best_ratio(driver, row, FAMILY_GLOO), 5);
    print_ratio(best_ratio(driver, row, FAMILY_BARE), 5);
    printf("  %s\n", row->results[0].note);
    for (int w = 0; w < driver->world_count; w++)
        if (row->results[w].wrong > 0)
            printf("# WRONG: %s, %llu elements in the row above\n", driver->worlds[w].label,
                   (unsigned long long)row->results[w].wrong);
}

static void csv_row(const struct driver *driver, const struct driver_row *row)
{
    for (int w = 0; w < driver->world_count; w++) {
        const struct driver_result *r = &row->results[w];
        struct spread spread = round_ratios(driver, row, w);

        if (r->measured)
            fprintf(driver->csv, "%s,%zu,%d,%s,%s,%.3f,%.3f,%.3f,%u,%.4f,%.4f,%.4f,%.4f,%llu,\"%s\",%.1f\n",
                    driver_op_name(row->op), row->bytes, driver->options.ranks, driver->worlds[w].label,
                    family_names[driver->worlds[w].family], r->median_us, r->p99_us, r->min_us, r->samples, ratio(row, w),
                    spread.median, spread.least, spread.most, (unsigned long long)r->wrong, r->note, r->switches);
    }
}

static void json_row(const struct driver *driver, const struct driver_row *row)
{
    const char *comma = "";

    fprintf(driver->json, "%s\n  {\"operation\": \"%s\", \"bytes\": %zu, \"results\": [", driver->first_row ? "" : ",",
            driver_op_name(row->op), row->bytes);
    for (int w = 0; w < driver->world_count; w++) {
        const struct driver_result *r = &row->results[w];
        struct spread spread = round_ratios(driver, row, w);

        if (!r->measured)
            continue;
        fprintf(driver->json, "%s\n   {\"world\": ", comma);
        output_json_string(driver->json, driver->worlds[w].label);
        fprintf(driver->json,
                ", \"median_us\": %.3f, \"p99_us\": %.3f, \"min_us\": %.3f, \"samples\": %u, \"ratio\": %.4f,"
                " \"ratio_rounds\": [%.4f, %.4f, %.4f], \"switches\": %.1f, \"wrong\": %llu, \"how\": ",
                r->median_us, r->p99_us, r->min_us, r->samples, ratio(row, w), spread.least, spread.median, spread.most,
                r->switches, (unsigned long long)r->wrong);
        output_json_string(driver->json, r->note);
        fputc('}', driver->json);
        comma = ",";
    }
    fputs("]}", driver->json);
}

void driver_report(struct driver *driver, const struct driver_row *row)
{
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
    print_row(driver, row);
    fflush(stdout);
    if (driver->csv != NULL)
        csv_row(driver, row);
    if (driver->json != NULL)
        json_row(driver, row);
    output_flush(driver->csv, NULL);
    output_flush(driver->json, end);
    driver->first_row = false;
}

void driver_footer(struct driver *driver)
{
    for (int w = 0; w < driver->world_count; w++)
        if (driver->worlds[w].absent[0] != '\0')
            printf("# ABSENT: %s: %s\n", driver->worlds[w].label, driver->worlds[w].absent);
    printf("# wrong elements: %llu %s\n", (unsigned long long)driver->wrong, driver->wrong == 0 ? "OK" : "FAILED");
    if (driver->json != NULL)
        fputs(end, driver->json);
    output_close(driver->csv, driver->options.csv_path);
    output_close(driver->json, driver->options.json_path);
}
