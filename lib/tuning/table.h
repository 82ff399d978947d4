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
 * (engine/sleep.c). */
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
VALUE(coll, uint64_t, staggered_pair_min_bytes, 256 << 20)
VALUE(coll, uint64_t, staggered_min_bytes, 64 << 20)
/* Across hosts: up to here, times the ranks, one rank of a host speaks for it, but not beyond the second (docs/design/0011). */
VALUE(coll, uint64_t, node_leader_max_bytes_per_rank, 16 << 10)
VALUE(coll, uint64_t, node_leader_max_bytes, 1 << 20)
/* Across hosts, where each rank has a block: by way of each host's ranks from so much in all on (docs/design/0011). */
VALUE(coll, uint64_t, hier_min_bytes, 512 << 10)
/* Alltoall without kernels: of a block; two hops more against the host's memory. Measured, 4 H200
 * (bench/results/0.2-h200.md). */
VALUE(coll, uint64_t, relayed_min_bytes, 2 << 20)
/* With no more hosts every leader sends to every other: one hop. Log h hops of one message each take longer, but fewer messages
 * (docs/design/0011). */
FIXED(coll, hosts_one_shot, PKI_HOSTS_ONE_SHOT, 8)
END(coll)
#endif
