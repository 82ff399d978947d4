/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel holds up a thread that unmaps monitored memory until the monitor has read of it. The monitor reads and marks under
 * one lock, so a thread that takes the lock afterwards finds the marks of everything that it has unmapped. For the same reason
 * nobody may free memory while holding the lock: that could unmap memory, which would wait for the monitor, which waits for the
 * lock.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "transport/rdma/rdma.h"
#include "util/fd.h"
#include "util/fork.h"
#include "util/thread.h"

#define FEATURES \
    (UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_PAGEFAULT_FLAG_WP)

static struct {
    pthread_mutex_t life; /* opening and closing */
    unsigned users;
    pthread_mutex_t lock; /* the list, and reading of events */
    struct pki_list ranges;
    int fd, stop_fd; /* fd -1: there is no watcher */
    pthread_t thread;
} monitor = { .life = PTHREAD_MUTEX_INITIALIZER,
              .lock = PTHREAD_MUTEX_INITIALIZER,
              .ranges = { &monitor.ranges, &monitor.ranges },
              .fd = -1,
              .stop_fd = -1 };

static void mark(uint64_t begin, uint64_t end)
{
    for (struct pki_list *node = monitor.ranges.next; node != &monitor.ranges; node = node->next) {
        struct pki_rdma_monitored *monitored = pki_container_of(node, struct pki_rdma_monitored, node);

        if (begin < monitored->end && monitored->begin < end)
            atomic_store(&monitored->stale, true);
    }
}

static void take(const struct uffd_msg *event)
{
    switch (event->event) {
    case UFFD_EVENT_REMOVE:
    case UFFD_EVENT_UNMAP:
        mark(event->arg.remove.start, event->arg.remove.end);
        return;
    case UFFD_EVENT_REMAP:
        mark(event->arg.remap.from, event->arg.remap.from + event->arg.remap.len);
        return;
    default:
        return;
    }
}

/* Forgotten before it is closed: a child of a fork in between would close the number, whatever it stands for by then. */
static void forget(int *fd)
{
    int old = *fd;

    *fd = -1;
    if (old >= 0)
        close(old);
}

/* A child has neither the thread nor the mappings that the kernel tells of: it starts again. */
static void start_over(void)
{
    pthread_mutex_init(&monitor.life, NULL);
    pthread_mutex_init(&monitor.lock, NULL);
    pki_list_init(&monitor.ranges);
    monitor.users = 0;
    forget(&monitor.fd);
    forget(&monitor.stop_fd);
}

static void know_forks(void)
{
    pki_fork_at_child(start_over);
}

static void *monitor_thread(void *arg)
{
    struct pollfd fds[2] = { { .fd = monitor.fd, .events = POLLIN }, { .fd = monitor.stop_fd, .events = POLLIN } };

    (void)arg;
    for (;;) {
        struct uffd_msg event;

        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            return NULL;
        if (fds[1].revents != 0)
            return NULL;
        pthread_mutex_lock(&monitor.lock);
        while (read(monitor.fd, &event, sizeof event) == (ssize_t)sizeof event)
            take(&event);
        pthread_mutex_unlock(&monitor.lock);
    }
}

static int open_uffd(void)
{
    struct uffdio_api api = { .api = UFFD_API, .features = FEATURES };
    int fd = pki_fd_keep((int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY));

    if (fd >= 0 && ioctl(fd, UFFDIO_API, &api) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

void pki_rdma_monitor_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, know_forks);
    pthread_mutex_lock(&monitor.life);
    if (monitor.users++ == 0) {
        monitor.fd = open_uffd();
        monitor.stop_fd = monitor.fd >= 0 ? pki_fd_keep(eventfd(0, EFD_CLOEXEC)) : -1;
        if (monitor.fd >= 0 && (monitor.stop_fd < 0 || pki_thread_start(&monitor.thread, monitor_thread, NULL) != 0)) {
            close(monitor.fd);
            monitor.fd = -1;
        }
        if (monitor.fd < 0)
            pki_log(PKI_LOG_INFO, NULL, "rdma: userfaultfd cannot be used (%s): memory is registered again for each transfer",
                    strerror(errno));
    }
    pthread_mutex_unlock(&monitor.life);
}

void pki_rdma_monitor_close(void)
{
    pthread_mutex_lock(&monitor.life);
    if (--monitor.users == 0) {
        if (monitor.fd >= 0) {
            (void)eventfd_write(monitor.stop_fd, 1);
            pthread_join(monitor.thread, NULL);
        }
        forget(&monitor.fd);
        forget(&monitor.stop_fd);
    }
    pthread_mutex_unlock(&monitor.life);
}

/* Write-protect mode without protecting anything: no access is ever held up. Memory of files cannot be
 * monitored, nor memory that another monitor of this process has. */
void pki_rdma_monitor_add(struct pki_rdma_monitored *monitored)
{
    struct uffdio_register range = { .range = { .start = monitored->begin, .len = monitored->end - monitored->begin },
                                     .mode = UFFDIO_REGISTER_MODE_WP };

    atomic_init(&monitored->stale, false);
    pki_list_init(&monitored->node);
    monitored->is_monitored = monitor.fd >= 0 && ioctl(monitor.fd, UFFDIO_REGISTER, &range) == 0;
    if (!monitored->is_monitored)
        return;
    pthread_mutex_lock(&monitor.lock);
    pki_list_push(&monitor.ranges, &monitored->node);
    pthread_mutex_unlock(&monitor.lock);
}

/* The kernel goes on watching: another range may overlap this one, and what nobody asks for is read and forgotten. */
void pki_rdma_monitor_remove(struct pki_rdma_monitored *monitored)
{
    if (!monitored->is_monitored)
        return;
    pthread_mutex_lock(&monitor.lock);
    pki_list_remove(&monitored->node);
    pthread_mutex_unlock(&monitor.lock);
}

void pki_rdma_monitor_sync(void)
{
    pthread_mutex_lock(&monitor.lock);
    pthread_mutex_unlock(&monitor.lock);
}
