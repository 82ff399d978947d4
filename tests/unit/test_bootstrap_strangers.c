/* SPDX-License-Identifier: Apache-2.0 */
/* The bootstrap with strangers at the door: wrong secrets, noise, idle connections, impostors. */
#include "bootstrap_ranks.h"

#include <fcntl.h>

#include "comm/bootstrap/accept.h"

Test(bootstrap, wrong_secret, .timeout = 20)
{
    struct rank ranks[3];
    int before = open_files();

    make_ranks(ranks, 3, NULL);
    ranks[0].timeout_ms = 1000; /* rank 1 has more, and hears of it however late rank 0 gets a processor */
    ranks[2].id.bytes[9] ^= 0x40;
    start_ranks(ranks, 3);
    join_ranks(ranks, 3);
    cr_expect_eq(ranks[2].result, PK_ERR_AUTH);
    cr_expect_lt(ranks[2].took_ms, SOON_MS);
    expect_all(ranks, 2, PK_ERR_TIMEOUT, "rank 2 of 3 did not come");
    cr_expect(strstr(ranks[0].error.text, "connections came and did not prove the secret") != NULL, "%s", ranks[0].error.text);
    cr_expect_eq(open_files(), before);
}

/* It is dropped as soon as that is known, for its hello may be shorter than this version's, and rank 0 says so. */
Test(bootstrap, another_version, .timeout = 20)
{
    struct rank ranks[2];
    char byte;
    int fd;

    make_ranks(ranks, 2, NULL);
    ranks[0].timeout_ms = 2000;
    fd = knock(&ranks[0].id);
    cr_assert_eq(send(fd, "PKh1", 4, MSG_NOSIGNAL), 4);
    start_rank(&ranks[0]);
    cr_expect_leq(recv(fd, &byte, 1, 0), 0);
    join_ranks(ranks, 1);
    expect_all(ranks, 1, PK_ERR_TIMEOUT, "; a process with another version of the library came; rank 0 listens at");
    close(fd);
}

static void speak_garbage(const pk_unique_id_t *id, int *fds, int count)
{
    unsigned char noise[300];
    struct pki_hello hello = { .kind = PKI_HELLO_CONTROL, .from = 1, .size = 2 };

    for (int i = 0; i < count; i++) {
        fds[i] = knock(id);
        for (size_t k = 0; k < sizeof noise; k++)
            noise[k] = (unsigned char)rand();
        if (i % 3 == 0)
            pki_wire_put_hello(noise, &hello); /* a good hello, then a proof that is none */
        cr_assert_eq(send(fds[i], noise, i % 3 == 1 ? 10 : sizeof noise, MSG_NOSIGNAL), i % 3 == 1 ? 10 : (ssize_t)sizeof noise);
    }
}

/* More idle connections than there are slots, before and after the ranks: nobody is delayed. */
Test(bootstrap, idle_and_garbage_disturb_nobody, .timeout = 30)
{
    struct rank ranks[4];
    int idle[400], garbage[60];

    make_ranks(ranks, 4, gather_body);
    for (int i = 0; i < 200; i++)
        idle[i] = knock(&ranks[0].id);
    start_rank(&ranks[0]);
    speak_garbage(&ranks[0].id, garbage, 60);
    start_ranks(ranks + 1, 2);
    sleep_ms(100);
    for (int i = 200; i < 400; i++)
        idle[i] = knock(&ranks[0].id);
    start_rank(&ranks[3]);
    join_ranks(ranks, 4);
    expect_all(ranks, 4, PK_OK, NULL);
    for (int r = 0; r < 4; r++)
        cr_expect_lt(ranks[r].took_ms, SOON_MS, "rank %d took %d ms", r, (int)ranks[r].took_ms);
    for (int i = 0; i < 400; i++)
        close(idle[i]);
    for (int i = 0; i < 60; i++)
        close(garbage[i]);
}

/* Somebody who plays an accepting end without the secret is not believed either. */
static void *impostor_main(void *arg)
{
    int listener = *(int *)arg;
    unsigned char hello[PKI_HELLO_BYTES], challenge[PKI_CHALLENGE_BYTES] = { 0x50, 0x4b, 0x63, 0x31 };
    int fd = accept(listener, NULL, NULL);

    if (fd >= 0 && recv(fd, hello, sizeof hello, MSG_WAITALL) == (ssize_t)sizeof hello)
        (void)!send(fd, challenge, sizeof challenge, MSG_NOSIGNAL);
    sleep_ms(100);
    close(fd);
    return NULL;
}

/* Plays rank 0 as far as the handshake: that much it knows. */
struct doorman {
    int listener, turns; /* connections to close after their proof */
    bool welcomes;       /* the next one */
    struct pki_secret secret;
};

static int shake_hands(const struct doorman *d)
{
    struct pki_handshake h;
    int fd = accept(d->listener, NULL, NULL);

    cr_assert_geq(fd, 0);
    pki_handshake_accept(&h, fd, &d->secret, UINT64_MAX);
    while (pki_handshake_step(&h) == PK_IN_PROGRESS)
        sleep_ms(1);
    cr_assert_eq((int)h.state, (int)PKI_HS_DONE);
    return fd;
}

static void *doorman_main(void *arg)
{
    const struct doorman *d = arg;
    const struct pki_frame frame = { .type = PKI_FRAME_WELCOME, .bytes = PKI_SESSION_BYTES };
    unsigned char bytes[PKI_FRAME_HEADER_BYTES + PKI_SESSION_BYTES] = { 0 };
    int fd;

    for (int i = 0; i < d->turns; i++)
        close(shake_hands(d));
    if (d->welcomes) {
        fd = shake_hands(d);
        pki_wire_put_frame(bytes, &frame);
        cr_expect_eq(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL), (ssize_t)sizeof bytes);
        sleep_ms(200);
        close(fd);
    }
    close(d->listener);
    return NULL;
}

static void join_at_door(struct rank *rank, bool welcomes)
{
    struct doorman d = { .turns = welcomes ? 3 : 1, .welcomes = welcomes };
    struct rank ranks[2];
    struct pki_id id;
    pthread_t thread;

    make_ranks(ranks, 2, NULL);
    cr_assert(pki_wire_get_id(&ranks[0].id, &id));
    d.listener = take_listener(&ranks[0].id);
    cr_assert_eq(fcntl(d.listener, F_SETFL, 0), 0); /* blocking */
    d.secret = id.secret;
    cr_assert_eq(pthread_create(&thread, NULL, doorman_main, &d), 0);
    start_rank(&ranks[1]);
    pthread_join(ranks[1].thread, NULL);
    pthread_join(thread, NULL);
    *rank = ranks[1];
}

/* A rank whose connection is pushed out after its proof, and before it is admitted, comes again. */
Test(bootstrap, pushed_out_after_its_proof, .timeout = 20)
{
    struct rank rank;

    join_at_door(&rank, true);
    cr_expect_eq(rank.result, PK_OK, "%s", rank.error.text);
}

/* And does not wait until its deadline when there is nobody any more. */
Test(bootstrap, rank_0_dies_after_the_proof, .timeout = 20)
{
    struct rank rank;

    join_at_door(&rank, false);
    cr_expect_eq(rank.result, PK_ERR_PEER);
    cr_expect(strstr(rank.error.text, "rank 0 died") != NULL, "%s", rank.error.text);
    cr_expect_lt(rank.took_ms, SOON_MS);
}

Test(bootstrap, impostor_in_rank_0s_place, .timeout = 20)
{
    struct rank ranks[2];
    int listener;
    pthread_t impostor;

    make_ranks(ranks, 2, NULL);
    listener = take_listener(&ranks[0].id);
    fcntl(listener, F_SETFL, 0);
    cr_assert_eq(pthread_create(&impostor, NULL, impostor_main, &listener), 0);
    start_rank(&ranks[1]);
    join_ranks(ranks + 1, 1);
    pthread_join(impostor, NULL);
    expect_all(ranks + 1, 1, PK_ERR_AUTH, NULL);
    close(listener);
}
