/* SPDX-License-Identifier: Apache-2.0 */
/* The addresses of an id: given back, and looked for where some of them cannot be tried or answer nothing. */
#include "bootstrap_ranks.h"

#include <errno.h>
#include <sys/syscall.h>

#include "pickle/pickle.h"
#include "seccomp.h"
#include "util/listen.h"
#include "util/resolve.h"

/* Also where what is wrong with the communicator has nothing to do with it. */
Test(bootstrap_addresses, an_id_is_given_back_by_a_communicator_that_fails)
{
    pk_comm_t *comm = NULL;
    pk_unique_id_t id;
    int before;

    open_files();
    before = open_files();
    cr_assert_eq(pk_get_unique_id(&id), PK_OK);
    setenv("PK_TIMEOUT_MS", "soon", 1);
    cr_expect_eq(pk_comm_init_rank(&comm, 2, 0, &id, NULL), PK_ERR_ARG);
    cr_expect(strstr(pki_error_get()->text, "PK_TIMEOUT_MS") != NULL, "%s", pki_error_get()->text);
    cr_expect_eq(open_files(), before);
}

/* Who dies is noticed although one of its addresses cannot be tried from here: a family that is not there, or is denied. */
static void expect_dead(int error)
{
    struct rank ranks[2];
    struct pki_id id;

    make_ranks(ranks, 2, NULL);
    cr_assert(pki_wire_get_id(&ranks[0].id, &id));
    cr_assert(pki_listener_drop(&ranks[0].id));
    id.address_count = 2;
    cr_assert_eq(pki_resolve_literal("2001:db8::1", &id.address[1], 1), 1);
    pki_netif_set_port(&id.address[1], 7000);
    pki_wire_put_id(&ranks[1].id, &id);
    if (!seccomp_deny(SYS_socket, AF_INET6, error))
        cr_skip("no seccomp");
    start_ranks(ranks + 1, 1);
    join_ranks(ranks + 1, 1);
    expect_all(ranks + 1, 1, PK_ERR_PEER, "(connection refused); [2001:db8::1]:7000: ");
    expect_all(ranks + 1, 1, PK_ERR_PEER, strerror(error));
    cr_expect_lt(ranks[1].took_ms, SOON_MS);
}

Test(bootstrap_addresses, rank_0_dies_and_a_family_is_not_there, .timeout = 20)
{
    expect_dead(EAFNOSUPPORT);
}

Test(bootstrap_addresses, rank_0_dies_and_a_family_is_denied, .timeout = 20)
{
    expect_dead(EACCES);
}

/* Of the addresses that did not answer the error at the deadline tells as well. */
Test(bootstrap_addresses, silence_and_nobody, .timeout = 20)
{
    struct rank ranks[2];
    struct pki_id id;
    int silent = -1;

    make_ranks(ranks, 2, NULL);
    cr_assert(pki_wire_get_id(&ranks[0].id, &id));
    cr_assert(pki_listener_drop(&ranks[0].id));
    id.address_count = 2;
    id.address[1] = id.address[0];
    cr_assert_eq(pki_resolve_literal("127.0.0.2", &id.address[0], 1), 1);
    cr_assert_eq(pki_listen(&id.address[0], 8, false, &silent), PK_OK);
    pki_wire_put_id(&ranks[1].id, &id);
    ranks[1].timeout_ms = 3000;
    start_ranks(ranks + 1, 1);
    join_ranks(ranks + 1, 1);
    expect_all(ranks + 1, 1, PK_ERR_TIMEOUT, "rank 0 at 127.0.0.2:");
    expect_all(ranks + 1, 1, PK_ERR_TIMEOUT, "Connection refused");
    close(silent);
}

/* Where others have all ports of PK_PORTS at one address, the next one does. */
Test(bootstrap_addresses, ports_that_are_taken_at_one)
{
    struct sockaddr_storage taken, address[2];
    int fds[2], fd = -1, other = -1, count = 2;

    cr_assert_eq(pki_resolve_literal("127.0.0.1", &address[0], 1), 1);
    cr_assert_eq(pki_resolve_literal("127.0.0.2", &address[1], 1), 1);
    setenv("PK_PORTS", "23861-23861", 1);
    taken = address[0];
    cr_assert_eq(pki_listen(&taken, 8, false, &fd), PK_OK);
    cr_assert_eq(pki_meeting_listen(address, &count, false, NULL, fds), PK_OK);
    cr_assert_eq(count, 1);
    cr_expect_eq(pki_netif_port(&address[0]), 23861);
    close(fds[0]);
    cr_assert_eq(pki_resolve_literal("127.0.0.1", &address[0], 1), 1);
    cr_assert_eq(pki_resolve_literal("127.0.0.2", &address[1], 1), 1);
    taken = address[1];
    cr_assert_eq(pki_listen(&taken, 8, false, &other), PK_OK);
    count = 2;
    cr_expect_eq(pki_meeting_listen(address, &count, false, NULL, fds), PK_ERR_SYSTEM);
    cr_expect(strstr(pki_error_get()->text, "none of the ports PK_PORTS=23861-23861 is free") != NULL, "%s",
              pki_error_get()->text);
    close(fd);
    close(other);
}
