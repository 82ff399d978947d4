/* SPDX-License-Identifier: Apache-2.0 */
/* Starting worlds of ranks, ending them, and giving orders to one at a time. */
#include "words.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <libgen.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_MS 40000
#define POLL_MS 100
#define ANSWER_SECONDS 60
#define END_MS 10000

/* What a world is started by. Words are divided by spaces; %r in the environment is the rank. */
struct kind {
    const char *name;
    enum driver_family family;
    const char *program, *variant;
    const char *mpirun;      /* its options; NULL: ranks are started one by one, with PK_RANK, PK_SIZE and PK_ROOT */
    const char *environment; /* with --net */
    bool unbound;            /* never one core a rank: a thread beside the caller moves its data */
};

#define OB1 "--mca pml ob1 --mca btl "
/* By itself it wants network hardware that it knows. */
#define UCX "--mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any"

static const struct kind kinds[] = {
    { "pickle", FAMILY_PICKLE, "compare-pickle", "plain", NULL, "PK_HOST_ID=host%r", false },
    { "pickle-mem", FAMILY_PICKLE, "compare-pickle", "alloc", NULL, "PK_HOST_ID=host%r", false },
    { "bare-pipe", FAMILY_BARE, "compare-bare", "pipe", NULL, NULL, false },
    { "ompi-cma", FAMILY_OMPI, "compare-mpi", "-", OB1 "vader,self --mca btl_vader_single_copy_mechanism cma", NULL, false },
    { "ompi-copy", FAMILY_OMPI, "compare-mpi", "-", OB1 "vader,self --mca btl_vader_single_copy_mechanism none", NULL, false },
    { "ompi-ucx", FAMILY_OMPI, "compare-mpi", "-", UCX, NULL, false },
    { "ompi-tcp", FAMILY_OMPI, "compare-mpi", "-", OB1 "tcp,self --mca btl_tcp_if_include lo", NULL, false },
    /* On hosts of their own (--enter), which a host file names. */
    { "ompi-eth0", FAMILY_OMPI, "compare-mpi", "-",
      OB1 "tcp,self --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 --mca rtc ^hwloc", NULL, false },
    { "bare-wire", FAMILY_BARE, "compare-wire", "copy", NULL, NULL, false },
    { "bare-splice", FAMILY_BARE, "compare-wire", "splice", NULL, NULL, false },
    { "bare-frames", FAMILY_BARE, "compare-wire", "frames", NULL, NULL, false },
    { "bare-cma", FAMILY_BARE, "compare-bare", "cma", NULL, NULL, false },
    { "bare-copy", FAMILY_BARE, "compare-bare", "copy", NULL, NULL, false },
    { "bare-ring", FAMILY_BARE, "compare-bare", "ring", NULL, NULL, false },
    { "bare-stream", FAMILY_BARE, "compare-bare", "stream", NULL, NULL, false },
    { "gloo", FAMILY_GLOO, "compare-gloo", "async", NULL, NULL, true },
    { "gloo-poll", FAMILY_GLOO, "compare-gloo", "poll", NULL, NULL, false },
};

static const char default_worlds[] = "pickle,ompi-cma,ompi-copy,ompi-ucx,gloo,gloo-poll";
static const char default_net_worlds[] = "pickle,ompi-tcp,gloo,gloo-poll";

static _Noreturn void give_up(const char *what)
{
    perror(what);
    exit(1);
}

static const struct kind *find_kind(const char *name)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(kinds[i].name, name) == 0)
            return &kinds[i];
    fprintf(stderr, "pickle-compare: there is no world '%s'\n", name);
    exit(2);
}

static void beside_this_program(const char *name, char *path, size_t bytes)
{
    char self[512];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

    if (n < 0)
        give_up("/proc/self/exe");
    self[n] = '\0';
    snprintf(path, bytes, "%s/%s", dirname(self), name);
}

static int free_port(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&address, length) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &length) != 0)
        give_up("a free port");
    close(fd);
    return ntohs(address.sin_port);
}

static void bind_to_core(int rank)
{
    cpu_set_t allowed, one;
    int seen = 0;

    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed) && seen++ == rank % CPU_COUNT(&allowed))
            CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
}

/* In the child. */
static _Noreturn void become(bool bound, const struct words *command, const struct words *variables, int rank, const char *log)
{
    int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int out = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

    prctl(PR_SET_PDEATHSIG, SIGTERM);
    words_set_variables(variables->list, rank);
    if (in < 0 || out < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0)
        _exit(126);
    if (bound)
        bind_to_core(rank);
    execvp(command->list[0], command->list);
    perror(command->list[0]);
    _exit(127);
}

static void spawn(struct driver_world *world, bool bound, const struct words *command, const struct words *variables, int rank,
                  const char *log)
{
    pid_t pid = fork();

    if (pid < 0)
        give_up("fork");
    if (pid == 0)
        become(bound, command, variables, rank, log);
    world->pids[world->started++] = pid;
}

static void last_line(const char *log, char *text, size_t bytes)
{
    FILE *file = fopen(log, "r");
    char line[COMPARE_TEXT_BYTES];

    *text = '\0';
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strspn(line, "-\n ") < strlen(line))
            snprintf(text, bytes, "%.*s", (int)strcspn(line, "\n"), line);
    if (file != NULL)
        fclose(file);
}

static bool all_alive(struct driver_world *world)
{
    for (int i = 0; i < world->started; i++)
        if (world->pids[i] > 0 && waitpid(world->pids[i], NULL, WNOHANG) == world->pids[i]) {
            world->pids[i] = 0;
            return false;
        }
    return true;
}

static bool receive(int fd, void *data, size_t bytes)
{
    ssize_t n;

    do {
        n = recv(fd, data, bytes, MSG_WAITALL);
    } while (n < 0 && errno == EINTR);
    return n == (ssize_t)bytes;
}

static bool welcome(struct driver *driver, struct driver_world *world)
{
    struct timeval limit = { .tv_sec = ANSWER_SECONDS };
    struct compare_hello hello;
    int fd = accept4(driver->listener, NULL, NULL, SOCK_CLOEXEC);

    if (fd < 0)
        return false;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (!receive(fd, &hello, sizeof hello) || hello.rank < 0 || hello.rank >= driver->options.ranks ||
        hello.size != driver->options.ranks || world->fds[hello.rank] >= 0) {
        close(fd);
        return false;
    }
    world->fds[hello.rank] = fd;
    world->operations = hello.operations;
    if (hello.rank == 0)
        memcpy(world->settings, hello.settings, sizeof world->settings);
    return true;
}

static void end_world(struct driver_world *world, int grace_ms)
{
    for (int r = 0; r < RANKS_MAX; r++)
        if (world->fds[r] >= 0)
            close(world->fds[r]);
    for (int r = 0; r < RANKS_MAX; r++)
        world->fds[r] = -1;
    for (int i = 0; i < world->started; i++) {
        int waited = 0;

        while (world->pids[i] > 0 && waitpid(world->pids[i], NULL, WNOHANG) == 0) {
            if (waited == grace_ms)
                kill(world->pids[i], SIGTERM);
            if (waited == grace_ms + END_MS)
                kill(world->pids[i], SIGKILL);
            usleep(1000);
            waited++;
        }
        world->pids[i] = 0;
    }
    world->started = 0;
}

/* The reason, with the last that the world said. */
static void bury(struct driver *driver, struct driver_world *world, const char *reason)
{
    char log[128], line[COMPARE_TEXT_BYTES / 2];

    end_world(world, 0);
    snprintf(log, sizeof log, "%s/w%d.log", driver->folder, (int)(world - driver->worlds));
    last_line(log, line, sizeof line);
    snprintf(world->absent, sizeof world->absent, "%s%s%s", reason, line[0] != '\0' ? ": " : "", line);
}

static void await(struct driver *driver, struct driver_world *world)
{
    struct pollfd ready = { .fd = driver->listener, .events = POLLIN };
    int come = 0;

    for (int waited = 0; come < driver->options.ranks; waited += POLL_MS) {
        int n = poll(&ready, 1, POLL_MS);

        if (n > 0 && welcome(driver, world)) {
            come++;
            continue;
        }
        if (!all_alive(world)) {
            bury(driver, world, "ended at its start");
            return;
        }
        if (waited > START_MS) {
            bury(driver, world, "did not start in time");
            return;
        }
    }
}

static void add_mpirun(const struct driver *driver, const struct kind *kind, struct words *command)
{
    char start[128];
    bool crowded = driver->options.ranks > sysconf(_SC_NPROCESSORS_ONLN);

    snprintf(start, sizeof start, "mpirun --allow-run-as-root --oversubscribe -n %d --bind-to %s", driver->options.ranks,
             !driver->options.bind ? "none"
             : crowded             ? "core:overload-allowed"
                                   : "core");
    words_add(command, start, " ");
    /* More ranks than cores: those that wait must make room. */
    if (crowded)
        words_add(command, "--mca mpi_yield_when_idle 1", " ");
    words_add(command, kind->mpirun, " ");
}

/* As it is printed: what is set, and what is run without our own arguments. */
static void describe(const struct kind *kind, const struct words *variables, const struct words *command, int own_words,
                     struct driver_world *world)
{
    size_t used = 0;

    for (int i = 0; i < variables->count; i++)
        used += (size_t)snprintf(world->command + used, COMMAND_BYTES - used, "%s ", variables->list[i]);
    for (int i = 0; i < command->count - own_words && used < COMMAND_BYTES; i++)
        used += (size_t)snprintf(world->command + used, COMMAND_BYTES - used, "%s ", command->list[i]);
    if (used < COMMAND_BYTES)
        snprintf(world->command + used, COMMAND_BYTES - used, "%s %s", kind->program, kind->variant);
}

/* The command where its rank is to be. */
static void enter(const struct driver *driver, const struct words *command, int rank, struct words *out)
{
    *out = (struct words){ .count = 0 };
    words_add_for_rank(out, driver->options.enter, rank);
    for (int i = 0; i < command->count; i++)
        words_add_one(out, command->list[i], strlen(command->list[i]));
}

static void start_ranks(struct driver *driver, struct driver_world *world, const struct kind *kind, const struct words *command,
                        struct words *variables)
{
    static struct words entered;
    char log[128], own[128];

    snprintf(log, sizeof log, "%s/w%d.log", driver->folder, (int)(world - driver->worlds));
    if (kind->mpirun != NULL) {
        enter(driver, command, 0, &entered);
        spawn(world, false, &entered, variables, -1, log);
        return;
    }
    snprintf(own, sizeof own, "PK_RANK=%%r PK_SIZE=%d PK_ROOT=%s:%d", driver->options.ranks, driver->options.root, free_port());
    words_add(variables, own, " ");
    for (int r = 0; r < driver->options.ranks; r++) {
        enter(driver, command, r, &entered);
        spawn(world, driver->options.bind && !kind->unbound, &entered, variables, r, log);
    }
}

/* `spec`: a kind's name, then variables, divided by colons. */
static void start_world(struct driver *driver, struct driver_world *world, const char *spec)
{
    static struct words command, variables;
    char name[32], program[600], own[256];
    size_t length = strcspn(spec, ":");
    int index = (int)(world - driver->worlds);
    const struct kind *kind;

    snprintf(name, sizeof name, "%.*s", (int)length, spec);
    kind = find_kind(name);
    snprintf(world->label, sizeof world->label, "%s", spec);
    world->family = kind->family;
    command = variables = (struct words){ .count = 0 };
    words_add(&variables, driver->options.net ? kind->environment : NULL, " ");
    words_add(&variables, spec + length, ":");
    if (kind->mpirun != NULL)
        add_mpirun(driver, kind, &command);
    beside_this_program(kind->program, program, sizeof program);
    describe(kind, &variables, &command, 0, world);
    if (access(program, X_OK) != 0) {
        snprintf(world->absent, sizeof world->absent, "%s was not built (its library was not found then)", kind->program);
        return;
    }
    snprintf(own, sizeof own, "%s/w%d", driver->folder, index);
    if (mkdir(own, 0700) != 0)
        give_up(own);
    words_add_one(&command, program, strlen(program));
    snprintf(own, sizeof own, "%s/driver %d %s/w%d %zu %s", driver->folder, index, driver->folder, index,
             driver->options.end_bytes, kind->variant);
    words_add(&command, own, " ");
    start_ranks(driver, world, kind, &command, &variables);
    await(driver, world);
}

static void open_listener(struct driver *driver)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };

    snprintf(driver->folder, sizeof driver->folder, "/tmp/pickle-compare.XXXXXX");
    if (mkdtemp(driver->folder) == NULL)
        give_up(driver->folder);
    snprintf(address.sun_path, sizeof address.sun_path, "%s/driver", driver->folder);
    driver->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (driver->listener < 0 || bind(driver->listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(driver->listener, RANKS_MAX) != 0)
        give_up(address.sun_path);
}

void driver_start(struct driver *driver)
{
    const char *list = driver->options.worlds;
    struct words specs = { .count = 0 };

    if (list == NULL)
        list = driver->options.net ? default_net_worlds : default_worlds;
    words_add(&specs, list, ",");
    if (specs.count == 0 || specs.count > WORLDS_MAX) {
        fprintf(stderr, "pickle-compare: 1 to %d worlds\n", WORLDS_MAX);
        exit(2);
    }
    open_listener(driver);
    driver->world_count = specs.count;
    for (int i = 0; i < specs.count; i++) {
        int index = driver->options.backwards ? specs.count - 1 - i : i;
        struct driver_world *world = &driver->worlds[index];

        for (int r = 0; r < RANKS_MAX; r++)
            world->fds[r] = -1;
        world->ranks = driver->options.ranks;
        start_world(driver, world, specs.list[index]);
    }
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *where)
{
    (void)status;
    (void)type;
    (void)where;
    return remove(path);
}

void driver_stop(struct driver *driver)
{
    for (int i = 0; i < driver->world_count; i++)
        end_world(&driver->worlds[i], END_MS);
    close(driver->listener);
    nftw(driver->folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static bool merge_rank(struct driver_world *world, int rank, struct compare_answer *answer, double *samples)
{
    static double own[COMPARE_SAMPLES_MAX];
    struct compare_answer one;

    if (!receive(world->fds[rank], &one, sizeof one) || one.samples > COMPARE_SAMPLES_MAX ||
        (one.samples > 0 && !receive(world->fds[rank], own, one.samples * sizeof *own)))
        return false;
    if (rank == 0) {
        *answer = one;
        memcpy(samples, own, one.samples * sizeof *own);
        return true;
    }
    answer->wrong += one.wrong;
    answer->switches += one.switches;
    for (unsigned s = 0; s < one.samples && s < answer->samples; s++)
        samples[s] = own[s] > samples[s] ? own[s] : samples[s];
    return true;
}

bool driver_order(struct driver *driver, struct driver_world *world, const struct compare_order *order,
                  struct compare_answer *answer, double *samples)
{
    bool well = true;

    for (int r = 0; r < world->ranks && well; r++)
        well = send(world->fds[r], order, sizeof *order, MSG_NOSIGNAL) == (ssize_t)sizeof *order;
    for (int r = 0; r < world->ranks && well; r++)
        well = merge_rank(world, r, answer, samples);
    if (!well) {
        char what[96];

        snprintf(what, sizeof what, "died or hung in %s of %zu bytes", driver_op_name((enum compare_op)order->op), order->bytes);
        bury(driver, world, what);
        driver->died = driver->died || world->family == FAMILY_PICKLE; /* a peer's end is told, and no failure of ours */
        fprintf(stderr, "\npickle-compare: %s %s\n", world->label, world->absent);
    }
    return well;
}
