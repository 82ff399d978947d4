/* SPDX-License-Identifier: Apache-2.0 */
/*
 * THE table of every constant that decides how fast something is, part by part. tuning.h and tuning.c include it several times,
 * with other meanings of these words each time:
 *
 *   PART(part), END(part)               around the rows of one part
 *   VALUE(part, type, name, value)      what tests may set to something else: pki_tuning.part.name, or agreed.part.name
 *   FIXED(part, name, CONSTANT, value)  what the compiler has to know: sizes of arrays, and what short messages would pay for
 *
 * A comment before each row, or before several that belong together, says what it is and where its value comes from: what was
 * measured, on what; "chosen" where nothing was. Sizes of formats (wires, shared memory, kernels' memory) and bounds of failures
 * (how long a peer may be silent) stand with what they belong to.
 */

#ifdef PKI_TABLE_OF_PROCESS
/* ---- wait: what a thread does that has nothing to do. Each process has its own values. ---- */
PART(wait)
/* Looks without a pause before a waiting thread gives its core away, where each rank has a core. Chosen. */
VALUE(wait, unsigned, spins, 4000)
/* The same where the kernel's threads carry packets: they come to a core when somebody leaves it. Measured over veth on 2
 * cores: 16 MiB take 18 ms while ranks spin, 7 so. */
VALUE(wait, unsigned, spins_beside_kernel, 50)
/* Looks, each after a sched_yield, before a thread sleeps: with a core for each rank, where other threads that want one are
 * few. Chosen. */
VALUE(wait, unsigned, yields_spinning, 40000)
/* The same where each look is a system call. Chosen. */
VALUE(wait, unsigned, yields_beside_kernel, 16000)
/* The same with more ranks than cores: each may last as long as the other ranks' turns. Chosen. */
VALUE(wait, unsigned, yields, 4000)
/* The same while an aggregator is asked, which may be on this machine. Chosen. */
VALUE(wait, unsigned, yields_beside_aggregator, 20)
/* The same where threads of the kernel move every byte: a waiting rank has taken one of two cores from them. Chosen, with
 * Soft-RoCE. */
VALUE(wait, unsigned, yields_beside_threads, 200)
/* An inline operation looks so often at its control channel with the lock held (others want it too, an abort for instance),
 * then lets go of it. Chosen. */
VALUE(wait, int, inline_polls, 64)
/* The same where the core is then given to another rank: a peer that runs on another core answers sooner than the kernel.
 * Chosen. */
VALUE(wait, int, inline_polls_crowded, 8)
/* After so many such rounds an ordinary operation is no slower, and looks after everything else as well. Chosen. */
VALUE(wait, int, inline_turns, 64)
/* Messages that are taken from one peer in a round, so that none starves the others. Chosen. */
VALUE(wait, int, messages_a_poll, 64)
/* Longest sleep: then deadlines and sockets are looked at. Chosen. */
VALUE(wait, uint64_t, sleep_ns, 10000000)
/* First sleep where a message may come that wakes nobody. Chosen: a message lies there as long, little of what was waited. */
VALUE(wait, uint64_t, nap_ns, 100000)
/* And the longest. Chosen. */
VALUE(wait, uint64_t, nap_most_ns, 1000000)
/* So many naps are alike before they get longer. Chosen. */
FIXED(wait, naps_alike, PKI_NAPS_ALIKE, 64)
/* A sleeper's last look, with its wake words set: thousands of cycles, for which no message stays in a store buffer. Chosen
 * (engine/progress/sleep.c). */
VALUE(wait, uint64_t, settle_ns, 3000)
/* How often peers' sockets and deadlines are looked at while something waits. Chosen. */
VALUE(wait, uint64_t, check_every_ns, 2000000)
/* How often the service thread looks after control channels: an idle process pays for each time. Chosen. */
VALUE(wait, uint64_t, background_ns, 100000000)
/* And while they are being recovered, which takes several notes in each direction. Chosen. */
VALUE(wait, uint64_t, recover_ns, 1000000)
/* The service thread stays awake so long with nothing to do: operations come in rows. Chosen. */
VALUE(wait, uint64_t, awake_ns, 200000)
/* Where callers wait for their streams themselves it sleeps so lightly: to wake it from its sleep with every operation costs
 * more. Chosen. */
VALUE(wait, uint64_t, light_sleep_ns, 100000)
/* And does so for this long. Chosen. */
VALUE(wait, uint64_t, light_sleeping_ns, 20000000)
/* Looks of a rank that leaves before it naps, and how long it naps. Chosen. */
VALUE(wait, unsigned, leaving_spins, 2000)
VALUE(wait, uint64_t, leaving_nap_ns, 100000)
/* Unfinished transfers that kernels see to, looked at in a round: they end one behind another. Chosen. */
VALUE(wait, int, device_driven_transfers, 8)
/* Calls of such, after which the messages of the other ranks are looked at anyway. Chosen. */
FIXED(wait, device_driven_calls, PKI_DEVICE_DRIVEN_CALLS, 32)
/* Polls in vain of an aggregator between two looks at its connection. Chosen. */
FIXED(wait, switchml_polls, PKI_SWITCHML_POLLS, 256)
END(wait)

/* ---- cpu: copies and sums by the processor ---- */
PART(cpu)
/* From here on libc's memcpy is one string instruction, which a Zen 3 runs at a twentieth of its speed in one case
 * (util/copy.c). libc's. */
FIXED(cpu, vector_bytes_min, PKI_COPY_VECTOR_MIN, 2048)
/* From here on libc goes around the caches. libc's. */
FIXED(cpu, vector_bytes_max, PKI_COPY_VECTOR_MAX, 512 << 10)
/* The target begins so few bytes behind the source's place in a page: there libc's is slow. Measured, Zen 3: 1 to 31 bytes. */
FIXED(cpu, close_bytes, PKI_COPY_CLOSE, 64)
/* Below, the detour around the caches costs more than it saves. Chosen. */
FIXED(cpu, around_bytes_min, PKI_COPY_AROUND_MIN, 4096)
/* Elements that loops of sums take at a time, so that they become vector code at -O2 already. Chosen. */
FIXED(cpu, lanes, PKI_REDUCE_LANES, 16)
/* Elements whose intermediate results stay in the first-level cache. Chosen. */
FIXED(cpu, stride, PKI_REDUCE_STRIDE, 512)
/* A block and what goes beside it do not stay in a cache any more: written around it. Measured, 2 ranks on near cores. */
VALUE(cpu, size_t, around_bytes, (size_t)4 << 20)
/* Bytes that a rank copies and sums up in a round of progress, in multiples of the second: the lock is held so long. Chosen. */
VALUE(cpu, size_t, work_bytes, 1 << 20)
FIXED(cpu, work_unit_bytes, PKI_WORK_UNIT_BYTES, 4096)
END(cpu)

/* ---- p2p: protocols of a transfer, whatever the transport ---- */
PART(p2p)
/* EAGER bytes a peer may have sent that nobody asked for yet. Chosen. */
FIXED(p2p, eager_credit_bytes, PKI_EAGER_CREDIT, 256 << 10)
/* Bytes that all peers together may have moved before their CTS, of one rank. Chosen: memory. */
VALUE(p2p, size_t, eager_put_all_bytes, 32 << 20)
/* A send between hosts says RTS after so long though its grant would come without. Chosen. */
VALUE(p2p, uint64_t, rts_ns, 20000000)
/* A DATA message that is worked on as it comes. Chosen. */
VALUE(p2p, size_t, data_piece_bytes, 16384)
/* DATA messages of a transfer below coop_bytes, so that both ends copy at the same time, if each has a core. Chosen. */
VALUE(p2p, size_t, data_short_bytes, 8192)
/* From here on both ends of a host move pieces of one transfer; below it goes through the control channel. Measured, Zen 4
 * (docs/design/0006). */
VALUE(p2p, size_t, coop_bytes, 64 << 10)
/* The same for collectives among more ranks than cores, where the kernel's calls wait for one another (docs/design/0006). */
VALUE(p2p, size_t, coop_crowded_bytes, 512 << 10)
/* Blocks exchanged between near cores go through the control channel up to here with more ranks than cores
 * (docs/design/0006). */
VALUE(p2p, size_t, coop_crowded_even_bytes, (size_t)4 << 20)
/* Between near cores one copy pays from here on, when nothing of it is in a cache. Measured, near cores. */
VALUE(p2p, size_t, coop_near_bytes, (size_t)32 << 20)
/* Two far ranks that both send and receive so much: streaming stores leave their caches alone, so two copies. Measured, far
 * cores. */
VALUE(p2p, size_t, coop_far_even_bytes, (size_t)8 << 20)
/* A second-level cache: what a broadcast writes below it may still be in the other core's. Measured: a broadcast whose root
 * changes. */
VALUE(p2p, size_t, near_cache_bytes, (size_t)1 << 20)
/* What a receiver gets and sums up at a time: of memory it has mapped, and by the kernel, whose call is short against so
 * much (docs/design/0006). */
VALUE(p2p, size_t, get_piece_mapped_bytes, (size_t)64 << 10)
VALUE(p2p, size_t, get_piece_bytes, (size_t)128 << 10)
/* It does so from here on, and where one copy by the kernel is fast (docs/design/0006). */
VALUE(p2p, size_t, get_bytes, (size_t)128 << 10)
VALUE(p2p, size_t, get_fast_bytes, (size_t)64 << 10)
/* A put that answers an even step; shorter ones cost a call of the kernel each: through the control channel it is faster
 * (measured). */
VALUE(p2p, size_t, even_put_bytes, (size_t)256 << 10)
/* Most that one put of host memory moves: the lock is held so long. Chosen. */
VALUE(p2p, size_t, host_put_bytes, 4 << 20)
/* Puts of one transfer in flight: at most over a deep transport, and of others (docs/design/0029). */
FIXED(p2p, puts, PKI_XFER_PUTS, 4)
FIXED(p2p, puts_few, PKI_XFER_PUTS_FEW, 2)
/* In, out or scratch of a collective without a task. Chosen. */
FIXED(p2p, inline_bytes, PKI_INLINE_BYTES, 64 << 10)
/* Plans that are kept; those of each root taken last, found at once; and so near the front of the list plans stay where they
 * are. Chosen. */
FIXED(p2p, plans, PKI_PLANS_MAX, 128)
FIXED(p2p, plans_recent, PKI_PLANS_RECENT, 8)
FIXED(p2p, plans_near_front, PKI_PLANS_NEAR_FRONT, 3)
/* Registrations that are kept though no transfer needs them; mappings that wait to be given back, and their bytes. Chosen:
 * memory. */
VALUE(p2p, uint32_t, regions, 1024)
VALUE(p2p, uint32_t, retired, 64)
VALUE(p2p, size_t, retired_bytes, (size_t)256 << 20)
END(p2p)

/* ---- shm: messages through an inbox in shared memory, copies by the kernel ---- */
PART(shm)
/* 0: no copies between processes, as where the kernel forbids them. */
VALUE(shm, int, cma, 1)
/* One copy by the kernel is fast: 0 no, 1 yes, 2 measured once a process (64 KiB in less than the next). */
VALUE(shm, int, one_copy_fast, 2)
/* Between a Zen 4 (5.5 us; two copies take 0.7 of that) and a Sapphire Rapids (3.3 to 4.2; two copies take 1.5 to 2):
 * docs/design/0006. */
VALUE(shm, uint64_t, fast_ns, 4800)
/* 1: a rank changes its mind with every probe about how far the other's core is. */
VALUE(shm, int, near_flips, 0)
/* Beside every so many EAGER messages, and others, a line is timed. Chosen. */
FIXED(shm, probe_every, PKI_SHM_PROBE_EVERY, 128)
FIXED(shm, probe_every_long, PKI_SHM_PROBE_EVERY_LONG, 16)
/* To read a line which a far core wrote last, and the clock, takes longer. Chosen. */
VALUE(shm, uint64_t, far_ns, 100)
/* So many answers alike make it sure. Chosen. */
VALUE(shm, int, far_sure, 4)
/* So much is written by streaming stores to a far core, to a near one, and where it is not known which. Measured, Zen 4
 * (util/copy.c). */
FIXED(shm, stream_far_bytes, PKI_SHM_STREAM_FAR, 1024)
FIXED(shm, stream_near_bytes, PKI_SHM_STREAM_NEAR, 16384)
FIXED(shm, stream_bytes, PKI_SHM_STREAM, 4096)
/* A second-level cache. Of a longer data area lines have left the reader's, for one that near cores share, when they come
 * round again: written in half the time, and by streaming stores it would take twice as long. In collectives among more
 * ranks than cores the reader's core has other ranks' work to do meanwhile, or is the writer's own. */
FIXED(shm, near_cache_bytes, PKI_SHM_NEAR_CACHE, 1 << 20)
/* Of blocks of 2 MiB the buffers of both ranks and two whole data areas are just more than the last cache keeps: there such
 * transfers keep to a part, still more than a second-level cache. Shorter ones lose by that, and longer ones are in memory
 * anyway. */
FIXED(shm, part_bytes, PKI_SHM_PART, 1280 << 10)
FIXED(shm, part_from_bytes, PKI_SHM_PART_FROM, 2 << 20)
FIXED(shm, part_below_bytes, PKI_SHM_PART_BELOW, 4 << 20)
/* A payload of so many lines is fetched together with its cell, near and far. Of a longer one some would be fetched while
 * they are being written, and cores that share a cache lose more by that than they win. Chosen by measuring payloads to 8
 * KiB on a Zen 4. */
FIXED(shm, near_lines, PKI_SHM_NEAR_LINES, 4)
FIXED(shm, far_lines, PKI_SHM_FAR_LINES, 8)
END(shm)

/* ---- tcp ---- */
PART(tcp)
/* Connections for chunks to one peer; PK_SOCKETS. Measured over loopback and veth: eight gain nothing over four
 * (bench/results/0.2-net.md). */
VALUE(tcp, int, sockets, 4)
/* From so many CPUs a rank on 8 threads carry chunks, and 4; they spin for a while, and so do the rank's own. Measured on 16 CPUs
 * of a Xeon and on 2 x H200 (docs/design/0018). */
VALUE(tcp, int, cpus_for_8_threads, 16)
VALUE(tcp, int, cpus_for_4_threads, 8)
/* Chunks of one connection that may be unacknowledged; PK_WINDOW. As GPUDirect-TCPX; 4 are enough over loopback and veth. */
VALUE(tcp, int, window, 16)
/* PK_CHUNK_BYTES. As GPUDirect-TCPX; measured over loopback and veth: enough. */
VALUE(tcp, int, chunk_bytes, 512 << 10)
/* The same within a machine, by one connection: nothing is gained there by several chunks at a time, and each is acknowledged,
 * which takes the CPUs of the copies (bench/results/0.2-net.md); but not by ranks with a GPU (docs/design/0032). */
VALUE(tcp, int, chunk_alone_bytes, 4 << 20)
/* Host memory that goes EAGER, at most PKI_TCP_EAGER_MAX. Chosen. */
VALUE(tcp, uint32_t, eager_bytes, 32 << 10)
/* Moves and grants that an exchange with one peer has in flight: with more, threads get shorter chunks too. Chosen. */
VALUE(tcp, unsigned, exchange, 2)
/* Of one connection in one round of progress, so that none starves the others. Chosen. */
VALUE(tcp, size_t, round_bytes, (size_t)4 << 20)
/* Chunks of transfers up to here are copied, so that they end before they are acknowledged. Without, 2 to 15 times the trips
 * (docs/design/0045). */
FIXED(tcp, retransmit_max_bytes, PKI_TCP_RETRANSMIT_MAX, 256 << 10)
/* And so much of all copies to one peer. Chosen: four of them. */
FIXED(tcp, retransmit_bytes, PKI_TCP_RETRANSMIT_BYTES, 1 << 20)
/* Bytes that are worth a thread's attention. Chosen. */
VALUE(tcp, size_t, offload_bytes, 64 << 10)
/* Longer transfers pay for a thread by themselves. Measured, 16 CPUs of a Xeon: allreduce of 512 KiB 289 us with every chunk
 * lent, 181 so. */
VALUE(tcp, size_t, offload_whole_bytes, (size_t)512 << 10)
/* A thread without a job spins so long: to wake one takes as long as to read 512 KiB (docs/design/0018). */
VALUE(tcp, uint64_t, thread_awake_ns, 500000)
/* And within a job, for the peer's bytes or the kernel's room. Chosen. */
VALUE(tcp, uint64_t, thread_blocked_ns, 20000)
/* Looks at its mailbox between two at the clock. Chosen. */
VALUE(tcp, int, thread_polls, 64)
/* With no more peers the control channel of each is read without asking epoll first, and for so many quiet rounds: epoll's
 * call back costs a sixth of a short message. Measured over loopback. */
VALUE(tcp, int, direct_peers, 2)
VALUE(tcp, unsigned, direct_rounds, 4096)
/* Rounds of progress for which an unexpected chunk waits in its connection before it is kept. Chosen. */
VALUE(tcp, unsigned, unexpected_polls, 64)
/* Events taken from epoll at once; rounds between two looks at connections that say nothing. Chosen. */
FIXED(tcp, events, PKI_TCP_EVENTS, 32)
FIXED(tcp, health_rounds, PKI_TCP_HEALTH_ROUNDS, 256)
/* How often timers are looked at. Chosen. */
VALUE(tcp, uint64_t, timers_ns, 1000000)
END(tcp)

/* ---- rdma ---- */
PART(rdma)
/* Data queue pairs to one peer; PK_QPS. Chosen (docs/design/0012). */
VALUE(rdma, int, qps, 2)
/* Of several rails each gets a share of a transfer, none too small for the device to be busy with, and none longer than
 * this. Chosen. */
VALUE(rdma, size_t, chunk_min_bytes, (size_t)64 << 10)
VALUE(rdma, size_t, chunk_max_bytes, (size_t)1 << 20)
/* Receives posted on a control channel and sends in flight on it; chunks in flight on a data queue pair. Powers of two.
 * Chosen. */
FIXED(rdma, ring, PKI_RDMA_RING, 32)
FIXED(rdma, depth, PKI_RDMA_DEPTH, 16)
/* Bytes that a send carries in its request, where the device can. Chosen. */
FIXED(rdma, inline_bytes, PKI_RDMA_INLINE, 128)
/* Writes that fill one grant and tell of themselves; a longer transfer ends with a FIN (docs/design/0012). */
FIXED(rdma, parts, PKI_RDMA_PARTS, 4)
/* Receives that are posted again at once; completions taken from a queue at once. Chosen. */
FIXED(rdma, telling_batch, PKI_RDMA_TELLING_BATCH, 16)
FIXED(rdma, completions, PKI_RDMA_COMPLETIONS, 32)
/* Registrations that are kept. Chosen. */
VALUE(rdma, unsigned, cached, 256)
END(rdma)

/* ---- gpu: what GPUs move and how they are driven ---- */
PART(gpu)
/* With no more hardware queues (CUDA_DEVICE_MAX_CONNECTIONS) whatever follows a wait in its stream holds up other streams.
 * Measured, 2 H200 (docs/design/0002). */
FIXED(gpu, few_queues, PKI_FEW_QUEUES, 2)
/* Low-latency messages: how long one waits for room in its ring; a copy engine costs about as much more. Chosen. */
VALUE(gpu, uint32_t, ll_room_ns, 50000)
/* CTAs of one at most, and a CTA for so many bytes: one round of its threads. Measured, H200 (docs/design/0009). */
VALUE(gpu, uint32_t, ll_ctas, 16)
FIXED(gpu, ll_bytes_a_cta, PKI_LL_BYTES_A_CTA, 4 << 10)
/* A send in a stream looks for its grant so long at most, and at least. Chosen. */
VALUE(gpu, uint64_t, cts_ns, 50000)
VALUE(gpu, uint64_t, cts_least_ns, 300)
/* It may look a fiftieth of the time that has gone by, of which so much is saved up. Chosen: 2 % of a core. */
FIXED(gpu, meet_share, PKI_MEET_SHARE, 50)
VALUE(gpu, uint64_t, meet_saved_ns, 5000000)
/* CTAs of the moving kernel: from a peer 371 GB/s with 16, 345 with 8 (H100; copy engines 396). */
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
/* One slot of pinned memory and the longest piece through it; slots of each direction; pieces of one transfer in flight
 * (docs/design/0007). */
FIXED(gpu, bounce_bytes, PKI_BOUNCE_BYTES, 2 << 20)
FIXED(gpu, bounce_buffers, PKI_BOUNCE_BUFFERS, 16)
FIXED(gpu, bounce_pieces, PKI_BOUNCE_PIECES, 8)
/* A short transfer is cut into so many parts, so that its copies and the wire overlap, but not into shorter ones than this:
 * each costs three messages and two copies. Measured, 2 H200 over loopback: 1 MiB in pieces of 256 KiB 131 us, of 1 MiB 90. */
FIXED(gpu, bounce_parts, PKI_BOUNCE_PARTS, 8)
VALUE(gpu, size_t, bounce_piece_min_bytes, 1 << 20)
/* Fused collectives: of the kernels that may be quiet each so-manieth tells the CPU of its end. Chosen. */
FIXED(gpu, fused_tell_every, PKI_FUSED_TELL_EVERY, 16)
/* Multiprocessors that fused collectives leave to the program and to warps that wait. Chosen. */
VALUE(gpu, int, spare_sms, 4)
/* Scratch memory of captured collectives grows by so much. Chosen. */
FIXED(gpu, scratch_step_bytes, PKI_SCRATCH_STEP, 2 << 20)
/* CTAs of one reduction: 1.1 TB/s read and written on an H200, three times what its links bring. A reduction is
 * bound by memory: so many come near all of them. A CTA for so many bytes. */
VALUE(gpu, uint32_t, reduce_ctas, 16)
FIXED(gpu, reduce_bytes_a_cta, PKI_REDUCE_BYTES_A_CTA, 64 << 10)
/* CTAs that unpack fragments: they keep the way to the host's memory full. A CTA for so many bytes. Chosen. */
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
 * caller. */
VALUE(gpu, uint32_t, nvlink_in_flight, 256)
/* Polls in vain before the driver is asked whether the queue is broken. Chosen. */
VALUE(gpu, uint32_t, nvlink_polls, 4096)
/* From here on puts to all peers go in one queue, in the plan's order. Measured, 4 H200, 256 MiB to each of three peers: 2.1
 * ms, and 4.0 ms in three queues at once; short copies gain from overlapping instead. */
VALUE(gpu, size_t, nvlink_bulk_bytes, (size_t)1 << 20)
END(gpu)
#endif

#ifdef PKI_TABLE_OF_RANK_0
/* ---- coll: which algorithm a collective takes. Rank 0's values hold for all ranks of a communicator. ---- */
PART(coll)
/* With more ranks, not every rank sends to every other. Operands of one reduction (device.h). */
VALUE(coll, uint64_t, direct_max_ranks, 16)
/* Allreduce: most that a rank receives when all send all they have to all. Measured on 2 cores, 2 and 4 ranks
 * (docs/design/0008). */
VALUE(coll, uint64_t, one_shot_max_bytes, 24 << 10)
/* The same between two ranks on two hosts. Measured over loopback: 1 MiB 388 us, 632 in a ring (docs/design/0017); */
VALUE(coll, uint64_t, one_shot_pair_max_bytes, 1 << 20)
/* and where they have GPUs: 0.6 of the direct algorithm's time at 256 KiB and 1 MiB, 0.75 at 4, the same beyond
 * (docs/design/0018). */
VALUE(coll, uint64_t, one_shot_pair_gpu_max_bytes, 4 << 20)
/* Reduce, GPUs among the ranks: most that the root receives when all send all they have to it (docs/design/0008). */
VALUE(coll, uint64_t, one_shot_root_max_bytes, 384 << 10)
/* Reduce, host memory: most of that times the others, who wait for the root to sum it up alone (docs/design/0008). */
VALUE(coll, uint64_t, one_shot_root_max_work, 32 << 10)
/* Up to here hops cost more than bytes, among many ranks or hosts. Chosen. */
VALUE(coll, uint64_t, few_hops_max_bytes, 64 << 10)
/* Allreduce of two GPUs in pieces; of more, and reduce_scatter from so much in all on, if there is no kernel for it.
 * Measured, 2 and 4 H200 (docs/design/0005). */
VALUE(coll, uint64_t, staggered_pair_min_bytes, 64 << 20)
VALUE(coll, uint64_t, staggered_min_bytes, 64 << 20)
/* Across hosts: up to here, times the ranks, one rank of a host speaks for it, but not beyond the second (docs/design/0011). */
VALUE(coll, uint64_t, node_leader_max_bytes_per_rank, 16 << 10)
VALUE(coll, uint64_t, node_leader_max_bytes, 1 << 20)
/* Across hosts, where each rank has a block: by way of each host's ranks from so much in all on (docs/design/0011). */
VALUE(coll, uint64_t, hier_min_bytes, 512 << 10)
/* Alltoall without kernels: of a block; two hops more against the host's memory. Measured, 4 H200
 * (bench/results/0.2-h200.md). */
VALUE(coll, uint64_t, relayed_min_bytes, 2 << 20)
/* Allreduce in one shot across hosts among no more ranks than this. Chosen. */
VALUE(coll, int, one_shot_hosts_ranks, 4)
/* A barrier in one hop among no more ranks; on hosts of several by way of leaders among more than this. Chosen. */
VALUE(coll, int, barrier_one_hop_ranks, 8)
VALUE(coll, int, barrier_flat_ranks, 4)
/* With no more hosts every leader sends to every other: one hop. Log h hops of one message each take longer, but fewer messages
 * (docs/design/0011). */
FIXED(coll, hosts_one_shot, PKI_HOSTS_ONE_SHOT, 8)
END(coll)

/* ---- pair: what both ends of a transfer must have alike ---- */
PART(pair)
/* Host memory that goes EAGER, unless the transport knows better (docs/design/0006). */
VALUE(pair, size_t, eager_bytes, 8192)
/* The same between ranks of a host, where a grant costs as much as the longer copy (docs/design/0006). */
VALUE(pair, size_t, eager_shm_bytes, 32 << 10)
/* One copy by the kernel from so many bytes on, and EAGER in collectives up to there, where that copy is fast. Measured on a
 * Sapphire Rapids (docs/design/0006); elsewhere p2p.coop_bytes. */
VALUE(pair, size_t, coop_fast_bytes, 16 << 10)
/* Granularity of dependencies between steps: on the host; on a GPU, for plans with reductions; and where the other GPU is
 * reached through the host, which takes ten times as long. Chosen. */
VALUE(pair, size_t, host_chunk_bytes, 512 << 10)
VALUE(pair, size_t, device_chunk_bytes, 16 << 20)
VALUE(pair, size_t, bounce_chunk_bytes, 2 << 20)
/* Of a cooperative copy at most; of an even collective's step. A call of the kernel costs microseconds, and smaller pieces
 * gain nothing (measured). */
VALUE(pair, size_t, coop_bytes, (size_t)256 << 10)
VALUE(pair, size_t, coop_even_bytes, (size_t)4 << 20)
END(pair)

/* ---- fused: collectives that are one kernel a rank. Measured on 2 and 4 H200 (docs/design/0009,
 * bench/results/0.2-h200.md). ---- */
PART(fused)
/* Most that a rank receives in one shot of allreduce, and of a block. */
VALUE(fused, size_t, one_shot_bytes, 512 << 10)
VALUE(fused, size_t, one_shot_block_bytes, 256 << 10)
/* Sums by way of relays up to here; */
VALUE(fused, size_t, relay_bytes, 512 << 10)
/* Reduce in two shots up to here. Allreduce and reduce_scatter always: of copies in a stream one rank of a pair may have to
 * move all (docs/design/0041). Measured, 2 H200, 1 GiB: 3383 us, NCCL 3234, copies 4530. */
VALUE(fused, size_t, two_shot_bytes, 64 << 20)
/* That, and where PK_ALGORITHM wants kernels whatever the length. Chosen. */
VALUE(fused, size_t, always_bytes, (size_t)4 << 30)
/* CTAs of reduce_scatter from so much in all on: they fill the links. */
VALUE(fused, size_t, scattered_long_bytes, 256 << 20)
VALUE(fused, size_t, long_ctas, 16)
/* Exchanges by kernels up to here; blocks that leave or reach one root, in all. */
VALUE(fused, size_t, push_bytes, 8 << 20)
VALUE(fused, size_t, rooted_bytes, 32 << 20)
/* What a CTA does: pairs of data and flag, between two GPUs (two in flight a thread), bytes that a rank folds. */
FIXED(fused, pairs_a_cta, PKI_FUSED_PAIRS_A_CTA, 512)
FIXED(fused, pairs_a_cta_of_two, PKI_FUSED_PAIRS_A_CTA_OF_TWO, 1024)
FIXED(fused, part_bytes_a_cta, PKI_FUSED_PART_A_CTA, 16 << 10)
END(fused)
#endif
