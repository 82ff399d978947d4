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
 * measured, on what; who gives it; "chosen" where nothing was: the test `constants` looks for such a word. Rows of transports
 * are in table_transport.h, of GPUs in table_gpu.h. Formats and bounds of failures (how long a peer may be silent) stand with
 * what they belong to: tests/abi/constants.txt lists them, and the test `constants` finds what should stand here.
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
/* Looks without a pause of a thread that waits for a host stream, before it sleeps: the program's own threads want the core.
 * Chosen. */
VALUE(wait, unsigned, stream_spins, 200)
/* An inline operation looks so often at its control channel with the lock held (others want it too, an abort for instance),
 * then lets go of it. Chosen. */
VALUE(wait, int, inline_polls, 64)
/* The same where the core is then given to another rank: a peer that runs on another core answers sooner than the kernel.
 * Chosen. */
VALUE(wait, int, inline_polls_crowded, 8)
/* After this number of such rounds an ordinary operation is no slower, and looks after everything else as well. Chosen. */
VALUE(wait, int, inline_turns, 64)
/* Messages that are taken from one peer in a round, so that none starves the others. Chosen. */
VALUE(wait, int, messages_a_poll, 64)
/* Longest sleep: then deadlines and sockets are looked at. Chosen. */
VALUE(wait, uint64_t, sleep_ns, 10000000)
/* The same of threads that carry chunks or packets, which are woken when there is work: then they look again. Chosen. */
VALUE(wait, uint64_t, thread_sleep_ns, 1000000000)
/* First sleep where a message may come that wakes nobody. Chosen: a message lies there as long, little of what was waited. */
VALUE(wait, uint64_t, nap_ns, 100000)
/* And the longest. Chosen. */
VALUE(wait, uint64_t, nap_most_ns, 1000000)
/* This number of naps is alike before they get longer. Chosen. */
FIXED(wait, naps_alike, PKI_NAPS_ALIKE, 64)
/* A sleeper's last look, with its wake words set: thousands of cycles, for which no message stays in a store buffer. Chosen
 * (engine/progress/sleep.c). */
VALUE(wait, uint64_t, settle_ns, 3000)
/* How often peers' sockets and deadlines are looked at while something waits. Chosen. */
VALUE(wait, uint64_t, check_every_ns, 2000000)
/* Rounds of progress between two looks at the clock for that. Chosen. */
FIXED(wait, check_rounds, PKI_CHECK_ROUNDS, 64)
/* Looks at an engine's lock, which others hold for a moment, between two sched_yields. Chosen. */
FIXED(wait, lock_spins, PKI_LOCK_SPINS, 64)
/* How often the service thread looks after control channels: an idle process pays for each time. Chosen. */
VALUE(wait, uint64_t, background_ns, 100000000)
/* And while they are being recovered, which takes several notes in each direction. Chosen. */
VALUE(wait, uint64_t, recover_ns, 1000000)
/* The service thread stays awake so long with nothing to do: operations come in rows. Chosen. */
VALUE(wait, uint64_t, awake_ns, 200000)
/* Where callers wait for their streams themselves, one after another, it sleeps so lightly: to wake it from its sleep with every
 * operation costs more. Chosen. */
VALUE(wait, uint64_t, light_sleep_ns, 100000)
/* And does so for this long after the last of them. Chosen. */
VALUE(wait, uint64_t, light_sleeping_ns, 5000000)
/* Looks of a rank that leaves before it naps, and how long it naps. Chosen. */
VALUE(wait, unsigned, leaving_spins, 2000)
VALUE(wait, uint64_t, leaving_nap_ns, 100000)
/* Unfinished transfers that kernels see to, looked at in a round: they end one behind another. Chosen. */
VALUE(wait, int, device_driven_transfers, 8)
/* Calls of such, after which the messages of the other ranks are looked at anyway. Chosen. */
FIXED(wait, device_driven_calls, PKI_DEVICE_DRIVEN_CALLS, 32)
/* Polls in vain of an aggregator between two looks at its connection. Chosen. */
FIXED(wait, switchml_polls, PKI_SWITCHML_POLLS, 256)
/* How often a communicator that graphs wait for is looked at: so late a peer's death is noticed there. Chosen. */
VALUE(wait, uint64_t, graphs_ns, 10000000)
/* Between two looks of the watchdog, and how long the lock is held before it tells the others. Chosen. */
VALUE(wait, uint64_t, watchdog_ns, 10000000)
VALUE(wait, uint64_t, held_ns, 100000000)
/* A service thread is in the driver for so long: another one takes over. The most there are. Chosen. */
VALUE(wait, uint64_t, stuck_ns, 50000000)
FIXED(wait, servers, PKI_SERVERS, 4)
/* Looks without a pause and with a sched_yield of the service thread, then the pause between two. Chosen. */
VALUE(wait, unsigned, service_spins, 2000)
VALUE(wait, unsigned, service_yields, 20000)
VALUE(wait, int, service_nap_ns, 50000)
/* What no descriptor shows is looked at so often: by an agreement, by a shrink. Chosen. */
VALUE(wait, int, survive_ms, 2)
VALUE(wait, int, shrink_ms, 1)
/* A thread that waits for a descriptor looks so often whether it has been cancelled. Chosen. */
VALUE(wait, uint64_t, slice_ns, 20000000)
/* Between two looks at what another thread or the kernel will do soon. Chosen. */
VALUE(wait, unsigned, turn_us, 1000)
END(wait)

/* ---- start: how ranks find one another. ---- */
PART(start)
/* An address is tried at the latest so long after the one before it. Chosen. */
VALUE(start, uint64_t, stagger_ns, 100000000)
/* The pause before an address is tried again, and the longest. Chosen. */
VALUE(start, uint64_t, pause_ns, 1000000)
VALUE(start, uint64_t, pause_most_ns, 50000000)
/* How often a rank that waits looks at everything; at an answer about a name, the first time. Chosen. */
VALUE(start, uint64_t, tick_ns, 20000000)
VALUE(start, uint64_t, look_ns, 250000)
/* A name that is not known is asked for again after so long, then twice as long, up to the second; rank 0 for its own up to the
 * third. Chosen. */
VALUE(start, uint64_t, ask_ns, 100000000)
VALUE(start, uint64_t, ask_most_ns, 1000000000)
VALUE(start, uint64_t, own_name_most_ns, 1600000000)
/* The same for a name that is known. Chosen. */
VALUE(start, uint64_t, known_ns, 2000000000)
VALUE(start, uint64_t, known_most_ns, 8000000000)
/* The other end's backlog is full: again after so long. Chosen. */
VALUE(start, uint64_t, again_ns, 1000000)
/* A listener without a descriptor for the next connection rests so long. Chosen. */
VALUE(start, uint64_t, rest_ns, 10000000)
/* Between two questions to PMIx. Chosen. */
VALUE(start, unsigned, pmix_us, 200)
/* Rounds without a pause while the ranks' connections are made, and the pause from then on. Chosen. */
VALUE(start, unsigned, connect_rounds, 1000)
VALUE(start, unsigned, connect_us, 50)
/* This number of rounds lies between two looks at the bootstrap, and at whether the init has been aborted. Chosen. */
FIXED(start, connect_look_rounds, PKI_CONNECT_LOOK_ROUNDS, 64)
END(start)

/* ---- cpu: copies and sums by the processor ---- */
PART(cpu)
/* From here on libc's memcpy is one string instruction, which a Zen 3 runs at a twentieth of its speed in one case
 * (util/copy.c). Given by libc. */
FIXED(cpu, vector_bytes_min, PKI_COPY_VECTOR_MIN, 2048)
/* From here on libc goes around the caches. Given by libc. */
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
/* Credit is given back when such a part of it has been used up; a message that moves before its CTS is no longer than that.
 * Chosen: half, so that while one half is not given back, one can still go. */
FIXED(p2p, credit_share, PKI_CREDIT_SHARE, 2)
/* Bytes that all peers together may have moved before their CTS, of one rank. Chosen: memory. */
VALUE(p2p, size_t, eager_put_all_bytes, 32 << 20)
/* A send between hosts says RTS after so long though its grant would come without. Chosen. */
VALUE(p2p, uint64_t, rts_ns, 20000000)
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
/* Puts of one transfer in flight: of a message over a deep transport, of a step of a plan there, and over others
 * (docs/design/0029). */
FIXED(p2p, puts_of_message, PKI_XFER_PUTS_OF_MESSAGE, 9)
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
/* Transfers that are allocated at once; tasks that are kept for the next operations. Chosen. */
FIXED(p2p, xfers_a_slab, PKI_XFERS_A_SLAB, 64)
VALUE(p2p, int, spare_tasks, 128)
/* Blocks of scratch memory that are kept. Chosen. */
FIXED(p2p, scratches, PKI_SCRATCH_MAX, 64)
/* Longest transfer that goes as DATA through the control channel because it is combined as it comes. Chosen. */
FIXED(p2p, ctrl_data_bytes, PKI_CTRL_DATA_MAX, 256 << 20)
/* Calls with other arguments whose checks are remembered. Chosen. */
FIXED(p2p, call_memos, PKI_CALL_MEMOS, 8)
/* Operands of all reductions of a plan that runs inline. Chosen. */
FIXED(p2p, program_operands, PKI_PROGRAM_OPERANDS, 128)
/* Signals of a pair: graphs keep theirs while they exist; the pages of others are never touched. Chosen. */
FIXED(p2p, signal_slots, PKI_SIGNAL_SLOTS, 1024)
/* Cells of a pair for messages, and as many for steps of collectives; steps of one collective, of a pair and direction: those of
 * plans with more share cells with the next collectives. Chosen. */
FIXED(p2p, cells, PKI_CELLS, 1024)
FIXED(p2p, steps_a_collective, PKI_STEPS_A_COLLECTIVE, 16)
/* Registrations that are asked in a round whether their memory still exists. Chosen. */
VALUE(p2p, int, dead_regions, 4)
END(p2p)

#include "tuning/table_transport.h"
#include "tuning/table_gpu.h"
#endif

#ifdef PKI_TABLE_OF_RANK_0
/* ---- coll: which algorithm a collective takes. Rank 0's values hold for all ranks of a communicator. ---- */
PART(coll)
/* With more ranks, not every rank sends to every other. Chosen: operands of one reduction (reduce_sources). */
VALUE(coll, uint64_t, direct_max_ranks, 16)
/* Allreduce: most that a rank receives when all send all they have to all. Measured on 2 cores, 2 and 4 ranks
 * (docs/design/0008). */
VALUE(coll, uint64_t, one_shot_max_bytes, 24 << 10)
/* The same of two ranks of one host, in host memory: one message. Measured, 2 cores, near and far: 32 KiB 0.76 and 0.88 of the
 * ring's time, 36 KiB 1.25. */
VALUE(coll, uint64_t, one_shot_two_max_bytes, 32 << 10)
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
/* Allreduce: by doubling up to such a part of that, by halving up to so many times that (docs/design/0008). */
FIXED(coll, doubling_share, PKI_DOUBLING_SHARE, 4)
FIXED(coll, halving_times, PKI_HALVING_TIMES, 8)
/* Allreduce of GPUs in pieces, and reduce_scatter of more than two from so much in all on, if there is no kernel for it.
 * Measured, 2 and 4 H200 (docs/design/0005). */
VALUE(coll, uint64_t, staggered_min_bytes, 64 << 20)
/* Across hosts: up to here, times the ranks, one rank of a host speaks for it, but not beyond the second (docs/design/0011). */
VALUE(coll, uint64_t, node_leader_max_bytes_per_rank, 16 << 10)
VALUE(coll, uint64_t, node_leader_max_bytes, 1 << 20)
/* Allreduce beyond the second: one rank speaks for its host up to so many times the first, times the ranks (docs/design/0011). */
FIXED(coll, node_leader_times, PKI_NODE_LEADER_TIMES, 4)
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
/* Operands of one reduction, on the host as on a GPU. Chosen: a kernel's parameters. */
FIXED(coll, reduce_sources, PKI_REDUCE_SOURCES, 16)
/* Blocks that have come and wait to be summed up in a ring; partial sums on their way. Chosen: one comes while one is used. */
FIXED(coll, ring_landings, PKI_RING_LANDINGS, 2)
FIXED(coll, ring_partials, PKI_RING_PARTIALS, 2)
/* Pieces of a block begin at multiples of this number of elements, so that GPUs work on whole vectors. Chosen. */
FIXED(coll, piece_grain, PKI_PIECE_GRAIN, 64)
END(coll)

/* ---- pair: what both ends of a transfer must have alike ---- */
PART(pair)
/* Host memory that goes EAGER, unless the transport knows better (docs/design/0006). */
VALUE(pair, size_t, eager_bytes, 8192)
/* The same between ranks of a host, where a grant costs as much as the longer copy (docs/design/0006). */
VALUE(pair, size_t, eager_shm_bytes, 32 << 10)
/* One copy by the kernel from this length on, and EAGER in collectives up to there, where that copy is fast. Measured on a
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

/* ---- fused: collectives that are one kernel a rank (docs/design/0009) ---- */
PART(fused)
/* Most that a rank receives in one shot of allreduce, and of a block. Measured, 2 and 4 H200 (bench/results/0.2-h200.md). */
VALUE(fused, size_t, one_shot_bytes, 512 << 10)
VALUE(fused, size_t, one_shot_block_bytes, 256 << 10)
/* Sums by way of relays up to here. Measured, 4 H200 (bench/results/0.2-h200.md). */
VALUE(fused, size_t, relay_bytes, 512 << 10)
/* Reduce in two shots up to here. Allreduce and reduce_scatter always: of copies in a stream one rank of a pair may have to
 * move all (docs/design/0041). Measured, 2 H200, 1 GiB: copies 4530 us, this kernel in table_gpu.h, bulk_from_bytes. */
VALUE(fused, size_t, two_shot_bytes, 64 << 20)
/* That, and where PK_ALGORITHM wants kernels whatever the length, or GPUs do not reach one another. Chosen. */
VALUE(fused, size_t, always_bytes, (size_t)4 << 30)
/* Where some GPUs do not reach one another blocks up to here go in cells, and longer ones through rings, with a least number of
 * bytes for each CTA. Measured, 2 H200, allreduce: 1 MiB 79 us in cells, 99 in rings; 256 KiB 27.7 in cells; 128 MiB by 8, 16,
 * 32 CTAs 7.4, 4.6, 3.9 ms (NCCL 5.0), 256 KiB 65 by 16 and 101 by 32. */
VALUE(fused, size_t, host_cells_bytes, 1 << 20)
VALUE(fused, size_t, host_bytes_a_cta, 128 << 10)
/* CTAs of reduce_scatter from so much in all on: they fill the links. Measured, 2 and 4 H200 (bench/results/0.2-h200.md). */
VALUE(fused, size_t, scattered_long_bytes, 256 << 20)
VALUE(fused, size_t, long_ctas, 16)
/* Exchanges by kernels up to here; blocks that leave or reach one root, in all. Measured, 2 and 4 H200
 * (bench/results/0.2-h200.md). */
VALUE(fused, size_t, push_bytes, 8 << 20)
VALUE(fused, size_t, rooted_bytes, 32 << 20)
/* What a CTA does: pairs of data and flag, between two GPUs (two in flight a thread), bytes that a rank folds. Chosen. */
FIXED(fused, pairs_a_cta, PKI_FUSED_PAIRS_A_CTA, 512)
FIXED(fused, pairs_a_cta_of_two, PKI_FUSED_PAIRS_A_CTA_OF_TWO, 1024)
FIXED(fused, part_bytes_a_cta, PKI_FUSED_PART_A_CTA, 16 << 10)
/* Ranks, CTAs and threads of a CTA; operations of which a rank may say that it does them in another way. Chosen. */
FIXED(fused, ranks, PKI_FUSED_RANKS, 8)
FIXED(fused, ctas, PKI_FUSED_CTAS, 32)
FIXED(fused, threads, PKI_FUSED_THREADS, 512)
FIXED(fused, falls, PKI_FUSED_FALLS, 1024)
/* An inbox: the longest block that goes in cells, and the longest that a pair kernel sums up; pairs of a relay's part; a piece of
 * two shots, and half of what all rings have. Chosen: a half has some 3 MiB. */
FIXED(fused, cells_bytes, PKI_FUSED_BYTES, 512 << 10)
FIXED(fused, pair_bytes, PKI_FUSED_PAIR_BYTES, 1 << 20)
FIXED(fused, relay_pairs_max, PKI_FUSED_RELAY_PAIRS, 32768)
FIXED(fused, piece_bytes, PKI_FUSED_PIECE, 512 << 10)
/* Rings of a CTA: as many warps send, and as many receive; the longest chunk, and what its length is a multiple of. Chosen. */
FIXED(fused, rings, PKI_PUSH_RINGS, 8)
FIXED(fused, chunk_bytes, PKI_FUSED_CHUNK, 16 << 10)
FIXED(fused, grain_bytes, PKI_FUSED_GRAIN, 512)
/* In flight of a thread: pairs of cells from each rank in an exchange, of two, in a relay (and where they come from one rank);
 * vectors of a push's lane, of two shots. Chosen. */
FIXED(fused, exchange_pairs, PKI_EXCHANGE_PAIRS, 1)
FIXED(fused, pair_pairs, PKI_PAIR_PAIRS, 2)
FIXED(fused, relay_pairs, PKI_RELAY_PAIRS, 2)
FIXED(fused, relay_copies, PKI_RELAY_COPIES, 4)
FIXED(fused, push_vectors, PKI_PUSH_VECTORS, 8)
FIXED(fused, push_sum_vectors, PKI_PUSH_SUM_VECTORS, 4)
FIXED(fused, two_shot_vectors, PKI_TWOSHOT_VECTORS, 2)
/* Allreduce of two ranks by bulk copies through shared memory: a piece of each rank (two vectors of each thread that sums up),
 * stages of a ring, and CTAs that do it. Measured, 2 H200 (docs/design/0009). */
FIXED(fused, bulk_piece, PKI_BULK_PIECE, 15 << 10)
FIXED(fused, bulk_stages, PKI_BULK_STAGES, 7)
FIXED(fused, bulk_bytes, PKI_BULK_BYTES, 2 * PKI_BULK_STAGES * PKI_BULK_PIECE)
FIXED(fused, bulk_ctas, PKI_BULK_CTAS, 8)
/* Polls of a warp between two looks at words in host memory. Chosen. */
FIXED(fused, polls_a_look, PKI_FUSED_POLLS_A_LOOK, 64)
END(fused)
#endif
