/* SPDX-License-Identifier: Apache-2.0 */
/*
 * No wait here may last for ever, and many are not this program's own: of the driver, of NCCL, of libraries that are loaded. So a thread looks
 * at the clock for all of them.
 */
#include "overlap.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#define LOOK_US 50000
#define TEXT_BYTES 160
#define ERASE_LINE "\r\033[K"

static const struct overlap_run *watched;
static pthread_t thread;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char phase[TEXT_BYTES], step[TEXT_BYTES];
static double opened_us, step_us;
static bool leaving, terminal, shown;

static double seconds_since(double us)
{
    return (now_us() - us) * 1e-6;
}

/* With the lock held, which whoever stands still does not hold. */
static void end_late(void)
{
    char who[32] = "a rank (not known yet)";

    if (watched->size > 0)
        snprintf(who, sizeof who, "rank %d", watched->rank);
    dprintf(STDERR_FILENO, "%spickle-perf-overlap: %s: %s%s%s: not done after %.0f s (--limit)\n", shown ? ERASE_LINE : "", who,
            phase, step[0] != '\0' ? ": " : "", step, watched->options.limit_s);
    _exit(1); /* whatever is registered for an exit might wait for the same */
}

static void *watch(void *argument)
{
    bool leave = false;

    while (!leave) {
        usleep(LOOK_US);
        pthread_mutex_lock(&lock);
        leave = leaving;
        if (!leave && seconds_since(step_us) > watched->options.limit_s)
            end_late();
        pthread_mutex_unlock(&lock);
    }
    return argument;
}

void overlap_watch_open(struct overlap_run *run)
{
    watched = run;
    terminal = isatty(STDERR_FILENO);
    opened_us = step_us = now_us();
    snprintf(phase, sizeof phase, "start");
    if (pthread_create(&thread, NULL, watch, NULL) != 0)
        overlap_fail("no thread that looks at the clock");
}

/* With the lock held. A size of 0: ranks are not numbered yet. */
static void show(bool new_phase)
{
    step_us = now_us();
    if (watched->rank != 0 || watched->size == 0)
        return;
    if (terminal)
        dprintf(STDERR_FILENO, ERASE_LINE "%.0f s: %s%s%s", seconds_since(opened_us), phase, step[0] != '\0' ? ": " : "", step);
    else if (new_phase)
        dprintf(STDERR_FILENO, "pickle-perf-overlap: %.0f s: %s\n", seconds_since(opened_us), phase);
    shown = terminal;
}

void overlap_phase(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    pthread_mutex_lock(&lock);
    vsnprintf(phase, sizeof phase, format, args);
    step[0] = '\0';
    show(true);
    pthread_mutex_unlock(&lock);
    va_end(args);
}

void overlap_step(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    pthread_mutex_lock(&lock);
    vsnprintf(step, sizeof step, format, args);
    show(false);
    pthread_mutex_unlock(&lock);
    va_end(args);
}

void overlap_watch_hide(void)
{
    pthread_mutex_lock(&lock);
    if (shown)
        dprintf(STDERR_FILENO, ERASE_LINE);
    shown = false;
    pthread_mutex_unlock(&lock);
}

void overlap_watch_close(void)
{
    overlap_watch_hide();
    pthread_mutex_lock(&lock);
    leaving = true;
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
}
