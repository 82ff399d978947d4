/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of table.h, which includes this file and says what the words mean: GPUs. */

/* ---- gpu: what GPUs move and how they are driven ---- */
PART(gpu)
/* With no more hardware queues (CUDA_DEVICE_MAX_CONNECTIONS) whatever follows a wait in its stream holds up other streams.
 * Measured, 2 H200 (docs/design/0002). */
FIXED(gpu, few_queues, PKI_FEW_QUEUES, 2)
/* Low-latency messages: how long one waits for room in its ring; a copy engine costs about as much more. Chosen. */
VALUE(gpu, uint32_t, ll_room_ns, 50000)
/* CTAs of one at most, and the bytes for each CTA: one round of its threads. Measured, H200 (docs/design/0009). */
VALUE(gpu, uint32_t, ll_ctas, 16)
FIXED(gpu, ll_bytes_a_cta, PKI_LL_BYTES_A_CTA, 4 << 10)
/* A send in a stream looks for its grant so long at most, and at least. Chosen. */
VALUE(gpu, uint64_t, cts_ns, 50000)
VALUE(gpu, uint64_t, cts_least_ns, 300)
/* It may look a fiftieth of the time that has gone by, of which so much is saved up. Chosen: 2 % of a core. */
FIXED(gpu, meet_share, PKI_MEET_SHARE, 50)
VALUE(gpu, uint64_t, meet_saved_ns, 5000000)
/* CTAs of the moving kernel. Measured, H100: from a peer 371 GB/s with 16, 345 with 8 (copy engines 396). */
VALUE(gpu, int, move_ctas, 16)
/* Shorter work is over before a branch would have begun. Chosen. */
VALUE(gpu, size_t, work_inline_bytes, (size_t)1 << 20)
/* Longest block for a copy in a branch, and of copies through one bounce buffer in a call: a launch queue is not long.
 * Chosen. */
VALUE(gpu, size_t, branch_copy_bytes, (size_t)256 << 20)
VALUE(gpu, size_t, bounce_copy_bytes, 32 << 20)
/* Bytes of copies whose "done" may wait for another copy: a few of the microseconds that a word of its own would cost.
 * Chosen. */
VALUE(gpu, size_t, behind_bytes, (size_t)4 << 20)
/* CTAs that may wait for messages on a GPU; kernels that may: with 128 none begins any more (docs/design/0002), the program
 * needs some. */
VALUE(gpu, int, message_ctas, 64)
FIXED(gpu, waiting_kernels, PKI_WAITING_KERNELS, 112)
/* Of a GPU's places for kernels of fused collectives such a part is no communicator's; of the others so many eighths go one by
 * one; and of what is left each communicator takes such a part, the first one most. Chosen: five communicators of a process have
 * more than one place each, and forty have one. */
FIXED(gpu, places_kept_share, PKI_PLACES_KEPT_SHARE, 5)
FIXED(gpu, places_single_eighths, PKI_PLACES_SINGLE_EIGHTHS, 3)
FIXED(gpu, places_share, PKI_PLACES_SHARE, 2)
/* One slot of pinned memory and the longest piece through it; slots of each direction; pieces of one transfer in flight
 * (docs/design/0007). */
FIXED(gpu, bounce_bytes, PKI_BOUNCE_BYTES, 2 << 20)
FIXED(gpu, bounce_buffers, PKI_BOUNCE_BUFFERS, 16)
FIXED(gpu, bounce_pieces, PKI_BOUNCE_PIECES, 8)
/* A short transfer is cut into this number of parts, so that its copies and the wire overlap, but not into parts below this:
 * each costs three messages and two copies. Measured, 2 H200 over loopback: 1 MiB in pieces of 256 KiB 131 us, of 1 MiB 90. */
FIXED(gpu, bounce_parts, PKI_BOUNCE_PARTS, 8)
VALUE(gpu, size_t, bounce_piece_min_bytes, 1 << 20)
/* Fused collectives: of the kernels that may be quiet one in this number tells the CPU of its end. Chosen. */
FIXED(gpu, fused_tell_every, PKI_FUSED_TELL_EVERY, 16)
/* Multiprocessors that fused collectives leave to the program and to warps that wait. Chosen. */
VALUE(gpu, int, spare_sms, 4)
/* Scratch memory of captured collectives grows by so much. Chosen. */
FIXED(gpu, scratch_step_bytes, PKI_SCRATCH_STEP, 2 << 20)
/* CTAs of one reduction. Measured, H200: 1.1 TB/s read and written, three times what its links bring. A reduction is
 * bound by memory: this number comes near all of them. Bytes for each CTA: chosen. */
VALUE(gpu, uint32_t, reduce_ctas, 16)
FIXED(gpu, reduce_bytes_a_cta, PKI_REDUCE_BYTES_A_CTA, 64 << 10)
/* Allreduce of two GPUs goes by bulk copies where each sums up so many bytes. Measured, 2 H200, so by 8 CTAs, and by loads and
 * stores of 32: 16 MiB 65.2 and 65.7 us, 64 MiB 218 and 224, 256 MiB 808 and 857, 1 GiB 3185 and 3383. */
VALUE(gpu, size_t, bulk_from_bytes, 8 << 20)
/* CTAs that unpack fragments: they keep the way to the host's memory full. Bytes for each CTA. Chosen. */
VALUE(gpu, int, unpack_ctas, 16)
FIXED(gpu, unpack_bytes_a_cta, PKI_UNPACK_BYTES_A_CTA, 32 << 10)
/* Copies from or to the host of fewer bytes stand where kernels do. Measured, H200: 4 and 64 KiB do, 1 MiB does not. */
VALUE(gpu, size_t, engine_copy_bytes, (size_t)1 << 20)
/* Streams for words: made at a time when the driver has no place for one more, and kept spare (with 6 of 8 hardware queues
 * standing still a word comes in two of three cases). Measured, 1 H200 (docs/design/0024). */
FIXED(gpu, stream_places, PKI_STREAM_PLACES, 43)
FIXED(gpu, spare_streams, PKI_SPARE_STREAMS, 16)
/* A quarter of the hardware queues stand still: as many streams of the program may wait for these, and it is half. Chosen. */
VALUE(gpu, int, held_share, 4)
/* How long a word is waited for (it takes 6 to 8 us), after which another stream is asked, and how long an answer is good
 * (docs/design/0024). */
VALUE(gpu, uint64_t, word_ns, 15000)
VALUE(gpu, uint64_t, word_replace_ns, 30000)
VALUE(gpu, uint64_t, word_fresh_ns, 100000)
/* Once one was in vain: the GPU may be another process's for a while, and many words on their way fill all queues
 * (docs/design/0024). */
VALUE(gpu, uint64_t, word_later_ns, 5000000)
/* NVLink: puts under way from one GPU; each is two entries of a launch queue that takes about 1024 and then blocks the
 * caller. Chosen: half of that. */
VALUE(gpu, uint32_t, nvlink_in_flight, 256)
/* Polls in vain before the driver is asked whether the queue is broken. Chosen. */
VALUE(gpu, uint32_t, nvlink_polls, 4096)
/* From here on puts to all peers go in one queue, in the plan's order. Measured, 4 H200, 256 MiB to each of three peers: 2.1
 * ms, and 4.0 ms in three queues at once; short copies gain from overlapping instead. */
VALUE(gpu, size_t, nvlink_bulk_bytes, (size_t)1 << 20)
/* What NVLink is taken to move, in GB/s. Measured, NVLink 4 with 18 links. */
VALUE(gpu, int, nvlink_gbps, 390)
/* Low-latency messages: the longest, their ring of a pair and direction, places in it, messages in it at a time. Chosen. */
FIXED(gpu, ll_bytes, PKI_LL_MAX_BYTES, 512 << 10)
FIXED(gpu, ll_ring_bytes, PKI_LL_RING_BYTES, 7680 << 10)
FIXED(gpu, ll_unit_bytes, PKI_LL_UNIT, 128)
FIXED(gpu, ll_messages, PKI_LL_MESSAGES, 128)
/* Words that one kernel waits for; low-latency messages, copies, fragments and operands of one launch: its parameters have 4 KiB.
 * Chosen. */
FIXED(gpu, wait_words, PKI_WAIT_WORDS_MAX, 16)
FIXED(gpu, ll_row_ops, PKI_LL_ROW_OPS, 64)
FIXED(gpu, move_ops, PKI_MOVE_OPS, 64)
FIXED(gpu, unpack_fragments, PKI_UNPACK_FRAGMENTS, 32)
/* Threads of a CTA. Chosen: registers suffice, and 16 warps hide the way to memory. */
FIXED(gpu, ll_threads, PKI_LL_THREADS, 512)
FIXED(gpu, unpack_threads, PKI_UNPACK_THREADS, 512)
FIXED(gpu, move_threads, PKI_MOVE_THREADS, 512)
FIXED(gpu, scale_threads, PKI_SCALE_THREADS, 512)
FIXED(gpu, reduce_threads, PKI_REDUCE_THREADS, 512)
/* A share of a copy by the moving kernel; words of a thread in flight: 64 KiB of a CTA, since the way to another GPU is long.
 * Chosen. */
FIXED(gpu, move_share_bytes, PKI_MOVE_SHARE_BYTES, 32 << 10)
FIXED(gpu, move_words, PKI_MOVE_WORDS, 8)
/* In flight of a thread: pairs of cells of low-latency messages, vectors that are scaled, sources of a reduction and vectors of a
 * common type, words that are unpacked (the way to the host's memory is long). Chosen. */
FIXED(gpu, ll_pairs, PKI_LL_PAIRS, 4)
FIXED(gpu, scale_vectors, PKI_SCALE_VECTORS, 2)
FIXED(gpu, reduce_sources_in_flight, PKI_REDUCE_SOURCES_IN_FLIGHT, 4)
FIXED(gpu, common_vectors, PKI_COMMON_VECTORS, 4)
FIXED(gpu, unpack_words, PKI_UNPACK_WORDS, 4)
/* How often a kernel looks at the abort word, which is in host memory that answers one after another: polls of a low-latency
 * message's warps, by turns; batches of the moving kernel, 1 MiB of a CTA. Chosen. */
FIXED(gpu, ll_polls, PKI_LL_POLLS, 64)
FIXED(gpu, move_batches_a_look, PKI_MOVE_BATCHES_A_LOOK, 16)
/* Kernels that do what the CPU orders while they wait: CTAs of one, the first of which asks the host; and of one that runs
 * beside its group; threads of a CTA; orders of a lane at a time; the number of units of an order, their least and most
 * bytes; launches that may run at a time, or wait in streams; the looks after which the first CTA works; pauses between
 * two. Chosen. */
VALUE(gpu, int, serve_ctas, 17)
VALUE(gpu, int, serve_beside_ctas, 5)
FIXED(gpu, serve_threads, PKI_SERVE_THREADS, 256)
FIXED(gpu, serve_orders, PKI_SERVE_ORDERS, 64)
VALUE(gpu, uint32_t, serve_units, 16)
VALUE(gpu, uint32_t, serve_least_bytes, 16 << 10)
VALUE(gpu, uint32_t, serve_most_bytes, 64 << 10)
FIXED(gpu, serve_launches, PKI_SERVE_LAUNCHES, 1024)
FIXED(gpu, serve_looks, PKI_SERVE_LOOKS, 8)
FIXED(gpu, serve_sleep_ns, PKI_SERVE_SLEEP_NS, 100)
/* Pauses of kernels that wait: the moving kernel's for each op (many make no more reads of host memory than one), the waiting
 * kernel's, one that waits for its turn, a fused one. Chosen. */
FIXED(gpu, move_sleep_ns, PKI_MOVE_SLEEP_NS, 50)
FIXED(gpu, wait_sleep_ns, PKI_WAIT_SLEEP_NS, 100)
FIXED(gpu, turn_sleep_ns, PKI_TURN_SLEEP_NS, 200)
FIXED(gpu, fused_sleep_ns, PKI_FUSED_SLEEP_NS, 500)
/* Operations in CUDA streams at a time; each has two words while it lasts. Chosen: a launch queue takes about 1024 entries. */
FIXED(gpu, stream_operations, PKI_STREAM_OPERATIONS, 512)
/* How long a call waits for a place for one more kernel that waits. Chosen. */
FIXED(gpu, room_ns, PKI_ROOM_NS, 100000000)
/* Branches of an engine; words that are written at once; transfers of a call without memory of its own. Chosen. */
FIXED(gpu, branches, PKI_BRANCHES, 2)
FIXED(gpu, signals_a_batch, PKI_SIGNALS_A_BATCH, 64)
FIXED(gpu, moves_a_call, PKI_MOVES_A_CALL, 8)
/* Blocks of scratch memory of graphs, each at least twice as long as those before it. Chosen. */
FIXED(gpu, graph_scratches, PKI_GRAPH_SCRATCHES, 32)
/* Ranges of memory whose kind is remembered. Chosen. */
FIXED(gpu, ranges, PKI_CUDA_RANGES, 64)
/* Host memory for words of streams. Chosen: 256 lines. */
FIXED(gpu, stream_words_bytes, PKI_STREAM_WORDS_BYTES, 16 << 10)
/* Up to here memory is cleared by copies of zeros. Chosen. */
VALUE(gpu, size_t, zeros_bytes, (size_t)128 << 10)
END(gpu)
