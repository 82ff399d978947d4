/* SPDX-License-Identifier: Apache-2.0 */
/* Machines as JSON files. */
#include "machine.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum kind { NUMBER, WHOLE, YES_NO };

struct field {
    const char *name; /* "group.member" or "member" */
    enum kind kind;
    size_t offset;
    double least, most;
};

#define AT(member) offsetof(struct sim_machine, member)
/* In memory, in the node's cache, in a core's. */
#define RATE(name, at, least) \
    { name, NUMBER, (at) + offsetof(struct sim_rate, memory), least, 1e6 }, \
        { name "_node", NUMBER, (at) + offsetof(struct sim_rate, node), 0, 1e6 }, \
    { \
        name "_core", NUMBER, (at) + offsetof(struct sim_rate, core), 0, 1e6 \
    }

static const struct field fields[] = {
    { "nodes", WHOLE, AT(nodes), 1, 65536 },
    { "ranks_per_node", WHOLE, AT(ranks_per_node), 1, 1024 },
    { "cores_per_node", WHOLE, AT(cores_per_node), 0, 4096 },
    { "nics_per_node", WHOLE, AT(nics_per_node), 0, 1024 },
    { "chunk_bytes", NUMBER, AT(chunk_bytes), 64, 1e12 },
    { "eager_bytes", NUMBER, AT(eager_bytes), 0, 1e12 },
    { "operation_us", NUMBER, AT(operation_us), 0, 1e6 },
    { "switch_us", NUMBER, AT(switch_us), 0, 1e6 },
    { "copied_by_cpu", YES_NO, AT(copied_by_cpu), 0, 1 },
    { "lane_bytes", NUMBER, AT(lane_bytes), 0, 1e15 },
    { "shared_bytes", NUMBER, AT(shared_bytes), 0, 1e15 },
    { "crowd_lane_bytes", NUMBER, AT(crowd_lane_bytes), 0, 1e15 },
    { "lane_message_bytes", NUMBER, AT(lane_message_bytes), 0, 1e15 },
    { "short_bytes", NUMBER, AT(short_bytes), 0, 1e15 },
    { "core_cache_bytes", NUMBER, AT(core_cache_bytes), 0, 1e15 },
    { "node_cache_bytes", NUMBER, AT(node_cache_bytes), 0, 1e15 },
    { "measured", YES_NO, AT(measured), 0, 1 },
    { "tflops", NUMBER, AT(tflops), 0, 1e9 },
    { "intra.latency_us", NUMBER, AT(intra.latency_us), 0, 1e6 },
    { "intra.send_us", NUMBER, AT(intra.send_us), 0, 1e6 },
    { "intra.recv_us", NUMBER, AT(intra.recv_us), 0, 1e6 },
    { "intra.short_us", NUMBER, AT(intra.short_us), 0, 1e6 },
    { "intra.handshake_us", NUMBER, AT(intra.handshake_us), 0, 1e6 },
    RATE("intra.gbps", AT(intra.gbps), 1e-6),
    RATE("intra.lane_gbps", AT(intra.lane_gbps), 0),
    { "intra.shared_gbps", NUMBER, AT(intra.shared_gbps), 0, 1e6 },
    { "inter.latency_us", NUMBER, AT(inter.latency_us), 0, 1e6 },
    { "inter.send_us", NUMBER, AT(inter.send_us), 0, 1e6 },
    { "inter.recv_us", NUMBER, AT(inter.recv_us), 0, 1e6 },
    { "inter.handshake_us", NUMBER, AT(inter.handshake_us), 0, 1e6 },
    RATE("inter.gbps", AT(inter.gbps), 1e-6),
    { "reduce.step_us", NUMBER, AT(reduce.step_us), 0, 1e6 },
    RATE("reduce.gbps", AT(reduce.gbps), 1e-6),
    { "copy.step_us", NUMBER, AT(copy.step_us), 0, 1e6 },
    RATE("copy.gbps", AT(copy.gbps), 1e-6),
    { "aggregator.latency_us", NUMBER, AT(aggregator.latency_us), 0, 1e6 },
    { "aggregator.gbps", NUMBER, AT(aggregator.gbps), 0, 1e6 },
    { "aggregator.port_gbps", NUMBER, AT(aggregator.port_gbps), 0, 1e6 },
    { "aggregator.packet_us", NUMBER, AT(aggregator.packet_us), 0, 1e6 },
    { "aggregator.packet_gbps", NUMBER, AT(aggregator.packet_gbps), 0, 1e6 },
    { "aggregator.rank_us", NUMBER, AT(aggregator.rank_us), 0, 1e6 },
    { "aggregator.rank_gbps", NUMBER, AT(aggregator.rank_gbps), 0, 1e6 },
    { "aggregator.shares_cores", YES_NO, AT(aggregator.shares_cores), 0, 1 },
};
enum { FIELDS = sizeof fields / sizeof *fields };

const char *const sim_machine_fitted[] = {
    "operation_us",
    "switch_us",
    "intra.latency_us",
    "intra.send_us",
    "intra.recv_us",
    "intra.handshake_us",
    "intra.gbps",
    "intra.gbps_node",
    "intra.gbps_core",
    "intra.shared_gbps",
    "intra.lane_gbps",
    "intra.lane_gbps_node",
    "intra.lane_gbps_core",
    "reduce.step_us",
    "reduce.gbps",
    "reduce.gbps_node",
    "reduce.gbps_core",
    "copy.step_us",
    "copy.gbps",
    "copy.gbps_node",
    "copy.gbps_core",
    "core_cache_bytes",
    "node_cache_bytes",
    "intra.short_us",
    NULL,
};

double *sim_machine_number(struct sim_machine *machine, const char *name)
{
    for (int i = 0; i < FIELDS; i++)
        if (strcmp(fields[i].name, name) == 0 && fields[i].kind == NUMBER)
            return (double *)(void *)((char *)machine + fields[i].offset);
    return NULL;
}

bool sim_machine_allows(const char *name, double number)
{
    for (int i = 0; i < FIELDS; i++)
        if (strcmp(fields[i].name, name) == 0)
            return number >= fields[i].least && number <= fields[i].most;
    return false;
}

/* The group's object and the member's name in it. */
static json_t *group_of(json_t *root, const char *name, const char **member, bool make)
{
    const char *dot = strchr(name, '.');
    char group[32];
    json_t *object;

    *member = name;
    if (dot == NULL)
        return root;
    snprintf(group, sizeof group, "%.*s", (int)(dot - name), name);
    *member = dot + 1;
    object = json_object_get(root, group);
    if (object == NULL && make) {
        object = json_object();
        json_object_set_new(root, group, object);
    }
    return object;
}

static bool read_field(struct sim_machine *machine, json_t *root, const struct field *field, const char *path)
{
    const char *member;
    json_t *group = group_of(root, field->name, &member, false), *value = json_object_get(group, member);
    double number = json_is_boolean(value) ? json_is_true(value) : json_number_value(value);
    void *target = (char *)machine + field->offset;

    if (value == NULL) {
        if (field->least == 0)
            return true;
        fprintf(stderr, "%s: '%s' is missing\n", path, field->name);
        return false;
    }
    if ((field->kind == YES_NO) != (bool)json_is_boolean(value) || (field->kind == NUMBER && !json_is_number(value)) ||
        (field->kind == WHOLE && !json_is_integer(value)) || !(number >= field->least && number <= field->most)) {
        fprintf(stderr, "%s: '%s' has to be %s from %g to %g\n", path, field->name,
                field->kind == NUMBER  ? "a number"
                : field->kind == WHOLE ? "a whole number"
                                       : "true or false:",
                field->least, field->most);
        return false;
    }
    if (field->kind == NUMBER)
        *(double *)target = number;
    else if (field->kind == WHOLE)
        *(int *)target = (int)number;
    else
        *(bool *)target = number != 0;
    return true;
}

bool sim_machine_load(struct sim_machine *machine, const char *path)
{
    json_error_t error;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    const char *name;
    bool good = true;

    if (root == NULL) {
        fprintf(stderr, "%s:%d: %s\n", path, error.line, error.text);
        return false;
    }
    *machine = (struct sim_machine){ .nics_per_node = 1 };
    name = json_string_value(json_object_get(root, "name"));
    snprintf(machine->name, sizeof machine->name, "%s", name == NULL ? path : name);
    for (int i = 0; i < FIELDS && good; i++)
        good = read_field(machine, root, &fields[i], path);
    if (good && machine->nodes > 1 && machine->nics_per_node < 1) {
        fprintf(stderr, "%s: several nodes need 'nics_per_node'\n", path);
        good = false;
    }
    json_decref(root);
    return good;
}

bool sim_machine_save(const struct sim_machine *machine, const char *path)
{
    json_t *root = json_object();
    bool good;

    json_object_set_new(root, "name", json_string(machine->name));
    for (int i = 0; i < FIELDS; i++) {
        const char *member, *source = (const char *)machine + fields[i].offset;
        json_t *group = group_of(root, fields[i].name, &member, true);
        double number = fields[i].kind == NUMBER ? *(const double *)(const void *)source : 0;

        json_object_set_new(group, member,
                            fields[i].kind == NUMBER  ? json_real(number)
                            : fields[i].kind == WHOLE ? json_integer(*(const int *)(const void *)source)
                                                      : json_boolean(*(const bool *)(const void *)source));
    }
    good = json_dump_file(root, path, JSON_INDENT(4) | JSON_REAL_PRECISION(6)) == 0;
    if (!good)
        fprintf(stderr, "%s: cannot be written\n", path);
    json_decref(root);
    return good;
}
