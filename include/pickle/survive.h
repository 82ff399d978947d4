/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file survive.h
 * Going on after ranks have died: end what is under way everywhere (pk_comm_revoke), agree on what happened (pk_comm_agree), make
 * a communicator of the ranks that live (pk_comm_shrink), and take new ranks in (pk_comm_grow, pk_comm_join).
 *
 * A rank that gets PK_ERR_PEER, PK_ERR_TIMEOUT or PK_ERR_REVOKED from an operation does this:
 *
 *     result = pk_allreduce(gradients, sums, count, PK_F32, PK_SUM, comm, PK_BLOCKING);
 *     if (result != PK_OK) {
 *         pk_comm_revoke(comm);
 *         pk_comm_agree(comm, 0, NULL, NULL, NULL, &last);
 *         pk_comm_shrink(comm, 0, NULL, 0, &smaller, NULL);
 *         pk_comm_destroy(comm);
 *         ... repeat in `smaller` the collectives behind number `last` of `comm`
 *     }
 *
 * Who counts as dead: a rank whose process has ended or has been killed (noticed at once), or whose host does not answer (after
 * PK_RETRY_MS); a rank that has destroyed, aborted or finalized its communicator; the rank that an operation which ended with
 * PK_ERR_TIMEOUT names; a rank that does not call pk_comm_agree or pk_comm_shrink within timeout_ms after the others, or whose
 * messages do not come through for so long; and a rank that was given to pk_comm_shrink to exclude. A rank that lives and
 * counts as dead gets PK_ERR_PEER from pk_comm_agree and pk_comm_shrink. It can only destroy the communicator. There is no
 * majority rule: two parts of a network that do not reach each other for longer than PK_RETRY_MS go on separately.
 *
 * Collectives of a communicator are numbered from 1, in the order in which a rank calls them, and pk_comm_split counts as one
 * (captured collectives and their replays are not counted; an allreduce by an aggregator takes four numbers). The error record
 * of a failed collective has its number in op_number.
 *
 * The algorithm is agreement up and down a tree of the ranks that are not known to be dead, in four passes, started again when
 * another death is noticed: a rank sends at most six messages when nobody dies meanwhile. It follows "Practical scalable
 * consensus for pseudo-synchronous distributed systems" (Herault, Bouteiller, Bosilca, Gamell, Teranishi, Parashar, Dongarra;
 * SC15).
 */
#ifndef PICKLE_SURVIVE_H
#define PICKLE_SURVIVE_H

#include "pickle/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * End everything that is under way in a communicator, on all ranks: operations that wait and all later ones return
 * PK_ERR_REVOKED, or the error that came before. Buffers are free afterwards as comm.h describes it for failures. Unlike after
 * pk_comm_abort, the ranks can then call pk_comm_agree and pk_comm_shrink.
 *
 * @param comm  the communicator
 * @return PK_OK (also when it had failed before); PK_ERR_ARG (null, still being made, init has failed); PK_ERR_UNSUPPORTED (in a child
 *         of fork, the parent's communicator)
 * Local: other ranks end their operations when they hear of it. Returns within 100 ms on a machine that is not overloaded. Any
 * thread. Since 0.3.
 */
PK_API pk_result_t pk_comm_revoke(pk_comm_t *comm);

/**
 * Agree among the ranks that live: each gives a value, and all that return PK_OK have the same answer, also where ranks die
 * meanwhile. It works on a communicator that has failed, and on one that has not.
 *
 * @param comm           the communicator
 * @param value          bits that this rank gives
 * @param all            out: the bits that all living ranks have given (bitwise and); NULL: not wanted
 * @param failed         out: the ranks that count as dead, in ascending order; room for all ranks of the communicator; NULL: not wanted
 * @param failed_count   out: how many there are; NULL: not wanted
 * @param last_complete  out: the number of the last collective that has ended with PK_OK on all living ranks, and with it all before
 *         it; 0: none. A collective in a stream counts when it has ended. NULL: not wanted
 * @return PK_OK; PK_ERR_ARG (null, still being made, finalized, a group is open); PK_ERR_PEER (this rank counts as dead for the others,
 *         which go on without it); PK_ERR_ABORTED (pk_comm_abort was called here); PK_ERR_MISMATCH (other ranks have called
 *         pk_comm_shrink); PK_ERR_UNSUPPORTED (more than 8192 ranks; in a child of fork); PK_ERR_MEMORY. Outputs are set only with
 *         PK_OK.
 * Collective over the living ranks, in the same order as pk_comm_shrink. Blocks until all of them have called it; who does not
 * come within timeout_ms counts as dead. Does not wait for operations in streams. Since 0.3.
 */
PK_API pk_result_t pk_comm_agree(pk_comm_t *comm, uint64_t value, uint64_t *all, int *failed, int *failed_count,
                                 uint64_t *last_complete);

/** Values of pk_comm_shrink's flags. */
enum {
    PK_SHRINK_DEFAULT = 0,    /**< the living ranks are renumbered, in the order of their numbers in the old communicator */
    PK_SHRINK_REVOKE = 1,     /**< pk_comm_revoke first: operations that are under way end with PK_ERR_REVOKED */
    PK_SHRINK_KEEP_RANKS = 2, /**< size and numbers stay; the numbers of the dead are holes. Since 0.3 */
    PK_SHRINK_REPLACE = 4     /**< the ranks with the highest numbers take those of the dead, all others keep theirs. Since 0.3 */
};

/**
 * Make a communicator of the ranks that live, out of one that has failed or not. They agree first on who that is, and if one of
 * them dies while the new communicator is made, they start again without it. No list of dead ranks is needed.
 *
 * Holes: with PK_SHRINK_KEEP_RANKS the new communicator has the size of the old one, and each rank its number. A dead rank's
 * number belongs to nobody. Sends and receives work among the living. One with a hole, and every collective, returns
 * PK_ERR_PEER, whose record names the hole, at the call; nothing has failed then. pk_comm_split works (its groups have no
 * holes; it and pk_comm_grow count as a send to and a receive from each living rank, and as no collective), pk_comm_agree counts holes among the dead, pk_comm_grow fills them, and pk_comm_shrink without the flag closes them.
 *
 * Spares: a rank that only waits in a communicator takes the place of one that dies. Let the working ranks split off the
 * communicator that they work in, and the ranks with the highest numbers be the spares, which call pk_comm_async_error
 * occasionally. After a death all ranks revoke and shrink the large communicator with PK_SHRINK_REPLACE, and split again: of 10 ranks,
 * of which 8 work, rank 9 becomes rank 3 when rank 3 has died, and the others stay what they were. docs/guide.md shows it.
 * Without spares the highest numbers are those of working ranks: the communicator has no holes, and one number less.
 *
 * @param comm           the old communicator; it stays as it is, and is the caller's to destroy
 * @param flags          PK_SHRINK_*, the same on all ranks, except PK_SHRINK_REVOKE; not KEEP_RANKS and REPLACE together
 * @param exclude        ranks to leave out though they live, the same on all that call; they do not call. NULL: none
 * @param exclude_count  how many
 * @param newcomm        out: the new communicator, the caller's until pk_comm_destroy; set only with PK_OK
 * @param config         NULL: the old communicator's. Device and policy need not be the old one's. The call blocks also with
 *         config->nonblocking.
 * @return PK_OK; as pk_comm_agree; PK_ERR_MISMATCH (ranks differ in the flags); PK_ERR_ARG (an excluded rank is out of range, or
 *         is this one; unknown flags; a field of `config`);
 *         as pk_comm_init, where the living ranks could not make a communicator for another reason than a death: on all of them
 * Collective over the living ranks, as pk_comm_agree; afterwards as pk_comm_init, at most timeout_ms. Nothing secret is sent.
 * Since 0.3.
 */
PK_API pk_result_t pk_comm_shrink(pk_comm_t *comm, int flags, const int *exclude, int exclude_count, pk_comm_t **newcomm,
                                  const pk_comm_config_t *config);

/**
 * Make an id for ranks that join a communicator. From now on this process listens for them, as pk_get_unique_id does it. An id
 * serves one pk_comm_grow of this communicator. pk_unique_id_release gives back one that is not used.
 *
 * @param comm  the communicator, of which this is rank 0 (where that is a hole, the first rank behind it)
 * @param id    out, the caller's: 128 bytes to give to the ranks that join, over a private channel. Other ranks of `comm` need no id
 * @return as pk_get_unique_id; PK_ERR_ARG (null, still being made, finalized; another rank than that); the error that poisoned it
 * Local. Does not block. Since 0.3.
 */
PK_API pk_result_t pk_comm_get_unique_id(pk_comm_t *comm, pk_unique_id_t *id);

/**
 * Take ranks in: make a communicator of the ranks of another one, with the same numbers, and of `count` ranks that call
 * pk_comm_join. These fill the holes first (PK_SHRINK_KEEP_RANKS), and then come behind the others. Those that ask for no
 * number (pk_comm_join) get the lowest ones that are free, in the order in which they come. With config->nonblocking the ranks
 * go on working in `comm` while a thread of each makes the new communicator; they change over together, at an operation of
 * which all know that it is the last one in `comm` (for example when a reduction of pk_comm_async_error(newcomm) == PK_OK over
 * all ranks says that all have it).
 *
 * @param comm     the parent; stays usable, and must not be destroyed before the new communicator is made, or destroyed
 * @param count    how many ranks join, the same on all ranks
 * @param id       rank 0 (or the first behind a hole): made by pk_comm_get_unique_id of `comm`, used up by this call, whatever it
 *         returns, except PK_ERR_ARG. Other ranks: not looked at
 * @param newcomm  out: the new communicator, the caller's until pk_comm_destroy; set only with PK_OK or PK_IN_PROGRESS
 * @param config   NULL: the parent's, blocking. Device and policy need not be the parent's.
 * @return as pk_comm_init: PK_ERR_TIMEOUT names the ranks that did not come, the ones that join by the numbers that they would have had
 *         (where there are holes ranks are counted without them, and those that join last);
 *         the error of the parent if it is or becomes poisoned; PK_ERR_MISMATCH (ranks differ in `count`; some have called
 *         pk_comm_split; a rank that joins wants a number that there is not, or that another has);
 *         PK_ERR_ARG (null; a finalized parent; a group is open; `count`; an id of another communicator; a field of `config`: then this
 *         rank has not taken part, and may call again). The parent has not failed where ranks that join did not come, or died.
 * Collective over the parent, in the same order among its operations on all ranks. Blocks as pk_comm_split. Nothing secret is
 * sent. Since 0.3.
 */
PK_API pk_result_t pk_comm_grow(pk_comm_t *comm, int count, const pk_unique_id_t *id, pk_comm_t **newcomm,
                                const pk_comm_config_t *config);

/**
 * Join a communicator. The device is opened at once; then this rank waits until the ranks of the communicator take it in. Its
 * place is known afterwards, by pk_comm_rank and pk_comm_size.
 *
 * @param comm    out: the new communicator, the caller's until pk_comm_destroy; set only with PK_OK or PK_IN_PROGRESS
 * @param rank    the number that this rank wants: that of a hole, or one behind the ranks of the communicator; -1: any
 * @param id      made by pk_comm_get_unique_id of rank 0
 * @param config  NULL for all defaults
 * @return as pk_comm_init; PK_ERR_ARG (null; `rank`; an id of pk_get_unique_id); PK_ERR_MISMATCH (as pk_comm_grow);
 *         PK_ERR_TIMEOUT (nobody has called pk_comm_grow within timeout_ms); PK_ERR_PEER (the process of rank 0 has ended or given
 *         the id back; as many ranks as are taken in came before)
 * Collective with pk_comm_grow, blocking at most timeout_ms, or not at all with config->nonblocking. Any thread. Since 0.3.
 */
PK_API pk_result_t pk_comm_join(pk_comm_t **comm, int rank, const pk_unique_id_t *id, const pk_comm_config_t *config);

#ifdef __cplusplus
}
#endif

#endif
