/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of table.h, which includes this file and says what the words mean: transports, and SwitchML's packets. */

/* ---- shm: messages through an inbox in shared memory, copies by the kernel ---- */
PART(shm)
/* 0: no copies between processes, as where the kernel forbids them: for tests. */
VALUE(shm, int, cma, 1)
/* One copy by the kernel is fast: 0 no, 1 yes, 2 measured once a process (64 KiB in less than the next). */
VALUE(shm, int, one_copy_fast, 2)
/* Between a Zen 4 (5.5 us; two copies take 0.7 of that) and a Sapphire Rapids (3.3 to 4.2; two copies take 1.5 to 2):
 * docs/design/0006. */
VALUE(shm, uint64_t, fast_ns, 4800)
/* 1: a rank changes its mind with every probe about how far the other's core is: for tests. */
VALUE(shm, int, near_flips, 0)
/* How many EAGER messages, and long ones, go by until one also times a line. Chosen. */
FIXED(shm, probe_every, PKI_SHM_PROBE_EVERY, 128)
FIXED(shm, probe_every_long, PKI_SHM_PROBE_EVERY_LONG, 16)
/* To read a line which a far core wrote last, and the clock, takes longer. Chosen. */
VALUE(shm, uint64_t, far_ns, 100)
/* This number of equal answers makes it sure. Chosen. */
VALUE(shm, int, far_sure, 4)
/* So much is written by streaming stores to a far core, to a near one, and where it is not known which. Measured, Zen 4
 * (util/copy.c). */
FIXED(shm, stream_far_bytes, PKI_SHM_STREAM_FAR, 1024)
FIXED(shm, stream_near_bytes, PKI_SHM_STREAM_NEAR, 16384)
FIXED(shm, stream_bytes, PKI_SHM_STREAM, 4096)
/* Chosen: a second-level cache. Of a longer data area lines have left the reader's, for one that near cores share, when they come
 * round again: written in half the time, and by streaming stores it would take twice as long. In collectives among more
 * ranks than cores the reader's core has other ranks' work to do meanwhile, or is the writer's own. */
FIXED(shm, near_cache_bytes, PKI_SHM_NEAR_CACHE, 1 << 20)
/* Of blocks of 2 MiB the buffers of both ranks and two whole data areas are just more than the last cache keeps: there such
 * transfers keep to a part, still more than a second-level cache. Shorter ones lose by that, and longer ones are in memory
 * anyway. Measured, near cores: allreduce of 4 MiB in 0.75 to 0.85 of the time, 1 MiB in half as long again. */
FIXED(shm, part_bytes, PKI_SHM_PART, 1280 << 10)
FIXED(shm, part_from_bytes, PKI_SHM_PART_FROM, 2 << 20)
FIXED(shm, part_below_bytes, PKI_SHM_PART_BELOW, 4 << 20)
/* A payload of at most this number of lines is fetched together with its cell, near and far. Of a longer one some would be
 * fetched while they are being written, and cores that share a cache lose more by that than they win. Chosen by measuring
 * payloads to 8 KiB on a Zen 4. */
FIXED(shm, near_lines, PKI_SHM_NEAR_LINES, 4)
FIXED(shm, far_lines, PKI_SHM_FAR_LINES, 8)
/* An inbox: its cells, the data area (a power of two) and how little of it a writer may keep to, the longest payload. Chosen. */
FIXED(shm, cells, PKI_SHM_CELLS, 1024)
FIXED(shm, data_bytes, PKI_SHM_DATA_BYTES, 2 << 20)
FIXED(shm, data_used_min_bytes, PKI_SHM_DATA_USED_MIN, 256 << 10)
FIXED(shm, payload_bytes, PKI_SHM_PAYLOAD_MAX, 32 << 10)
/* Its slots for BOUNCE_CREDIT messages. Chosen. */
FIXED(shm, slots, PKI_SHM_SLOTS, 2)
FIXED(shm, slot_bytes, PKI_SHM_SLOT_BYTES, 4096)
FIXED(shm, big_slot_bytes, PKI_SHM_BIG_SLOT_BYTES, 8192)
/* The reader tells how far it has come when so great a part of the cells or of the data area is new. Chosen. */
FIXED(shm, tell_share, PKI_SHM_TELL_SHARE, 4)
/* Most that one call of the kernel copies, which cuts at 2 GiB: a signal or an abort waits so long. Chosen. */
VALUE(shm, size_t, call_bytes, (size_t)1 << 30)
/* What is measured for fast_ns: the best of fast_tries copies of fast_bytes. Chosen. */
FIXED(shm, fast_tries, PKI_SHM_FAST_TRIES, 16)
FIXED(shm, fast_bytes, PKI_SHM_FAST_BYTES, 64 << 10)
/* What a path over shm is taken to move, in GB/s. Measured once, Zen 4. */
FIXED(shm, gbps, PKI_SHM_GBPS, 8)
END(shm)

/* ---- tcp ---- */
PART(tcp)
/* Connections for chunks to one peer; PK_SOCKETS. Measured over loopback and veth: eight gain nothing over four
 * (bench/results/0.2-net.md). */
VALUE(tcp, int, sockets, 4)
/* From this number of CPUs a rank on 8 threads carry chunks, and 4; they spin for a while, and so do the rank's own.
 * Measured on 16 CPUs of a Xeon and on 2 x H200 (docs/design/0018). */
VALUE(tcp, int, cpus_for_8_threads, 16)
VALUE(tcp, int, cpus_for_4_threads, 8)
/* Chunks of one connection that may be unacknowledged; PK_WINDOW. As GPUDirect-TCPX; measured over loopback and veth: 4 are
 * enough. */
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
 * offloaded, 181 so. */
VALUE(tcp, size_t, offload_whole_bytes, (size_t)512 << 10)
/* A thread without a job spins so long: to wake one takes as long as to read 512 KiB (docs/design/0018). */
VALUE(tcp, uint64_t, thread_awake_ns, 500000)
/* And within a job, for the peer's bytes or the kernel's room. Chosen. */
VALUE(tcp, uint64_t, thread_blocked_ns, 20000)
/* Looks at its mailbox between two at the clock. Chosen. */
VALUE(tcp, int, thread_polls, 64)
/* With no more peers the control channel of each is read without asking epoll first, for this number of quiet rounds: epoll's
 * call back costs a sixth of a short message. Measured over loopback. */
VALUE(tcp, int, direct_peers, 2)
VALUE(tcp, unsigned, direct_rounds, 4096)
/* Rounds of progress for which an unexpected chunk waits in its connection before it is kept. Chosen. */
VALUE(tcp, unsigned, unexpected_polls, 64)
/* The pause behind an attempt to connect that has failed, twice as long each time, and the longest. Chosen. */
VALUE(tcp, uint64_t, backoff_ns, 1000000)
VALUE(tcp, uint64_t, backoff_most_ns, 100000000)
/* Events taken from epoll at once; rounds between two looks at connections that say nothing. Chosen. */
FIXED(tcp, events, PKI_TCP_EVENTS, 32)
FIXED(tcp, health_rounds, PKI_TCP_HEALTH_ROUNDS, 256)
/* How often timers are looked at. Chosen. */
VALUE(tcp, uint64_t, timers_ns, 1000000)
/* Longest payload of a control message, of an EAGER one, and of a put before its CTS; of the latter so much at a time. Chosen;
 * docs/wire.md names them, and other values are another wire format. */
FIXED(tcp, payload_bytes, PKI_TCP_PAYLOAD_MAX, 32 << 10)
FIXED(tcp, eager_max_bytes, PKI_TCP_EAGER_MAX, 64 << 10)
FIXED(tcp, eager_put_bytes, PKI_TCP_EAGER_PUT_MAX, 1 << 20)
FIXED(tcp, eager_put_credit_bytes, PKI_TCP_EAGER_PUT_CREDIT, 8 << 20)
/* The control channel's ring, a power of two, and its receive buffer. Chosen. */
FIXED(tcp, tx_bytes, PKI_TCP_TX_BYTES, 256 << 10)
FIXED(tcp, rx_bytes, PKI_TCP_RX_BYTES, 256 << 10)
/* Bytes of the ring that are acknowledged with the next message, and by a message of their own: the writer never stands still for
 * it. Chosen: a quarter, half. */
FIXED(tcp, tell_bytes, PKI_TCP_TELL_BYTES, 64 << 10)
FIXED(tcp, tell_at_last_bytes, PKI_TCP_TELL_AT_LAST, 128 << 10)
/* Puts to one peer in flight. Chosen. */
FIXED(tcp, moves, PKI_TCP_MOVES, 64)
/* Threads at most, whatever PK_THREADS says. Chosen. */
FIXED(tcp, threads_max, PKI_TCP_THREADS_MAX, 8)
/* Chunks kept of a peer: the credit is of their bytes alone, and a chunk may be of one. Chosen. */
FIXED(tcp, unexpected, PKI_TCP_UNEXPECTED_MAX, 1024)
/* Connections accepted in a round. Chosen. */
VALUE(tcp, int, accepts, 64)
/* The kernel is asked for events once in this number of rounds: where control channels are polled, after quiet_rounds
 * without any, after idle_rounds. It costs as much as a message through shared memory. Chosen. */
VALUE(tcp, unsigned, quiet_rounds, 1024)
VALUE(tcp, unsigned, idle_rounds, 65536)
FIXED(tcp, ask_polled, PKI_TCP_ASK_POLLED, 8)
FIXED(tcp, ask_quiet, PKI_TCP_ASK_QUIET, 4)
FIXED(tcp, ask_idle, PKI_TCP_ASK_IDLE, 16)
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
/* Longest payload of a control message. Chosen. */
FIXED(rdma, payload_bytes, PKI_RDMA_PAYLOAD_MAX, 8192)
/* Puts to one peer in flight, a power of two; grants to one peer at a time that are filled by writes which tell of themselves.
 * Chosen. */
FIXED(rdma, moves, PKI_RDMA_MOVES, 64)
FIXED(rdma, numbers, PKI_RDMA_NUMBERS, 16)
/* A completion is asked for, and receives are posted again, each time so great a part of a queue is used. Chosen. */
FIXED(rdma, tell_share, PKI_RDMA_TELL_SHARE, 4)
/* Receives that the peer has not been told of are worth a request when they are such a part of the ring: with those that are not
 * posted again they are fewer than the ring. Chosen. */
FIXED(rdma, credit_share, PKI_RDMA_CREDIT_SHARE, 2)
/* What comes where no receive is posted is sent again after 0.64 ms, as verbs number it. Chosen: credits keep it from being
 * needed. */
FIXED(rdma, rnr_timer, PKI_RDMA_RNR_TIMER, 12)
/* Between two looks at queue pairs from which nothing is heard, and at a recovery. Chosen. */
VALUE(rdma, uint64_t, watchdog_ns, 50000000)
VALUE(rdma, uint64_t, recover_look_ns, 20000000)
/* What a rail is taken to move, in percent of its rate: packets of 4096 bytes have headers. Computed. */
VALUE(rdma, int, payload_percent, 97)
END(rdma)

/* ---- switchml: packets to and from an aggregator ---- */
PART(switchml)
/* Packets of one worker under way; PK_SWITCHML's file says another number. As the reference. */
FIXED(switchml, window, PKI_SWITCHML_WINDOW, 256)
/* When a packet is sent again: at first, at the least, and how fast that changes. As the reference. */
FIXED(switchml, timeout_ns, PKI_SWITCHML_TIMEOUT_NS, 10000000)
FIXED(switchml, timeout_least_ns, PKI_SWITCHML_TIMEOUT_LEAST_NS, 1000000)
FIXED(switchml, threshold, PKI_SWITCHML_THRESHOLD, 100)
FIXED(switchml, increment, PKI_SWITCHML_INCREMENT, 100)
/* Replies to later packets by which one counts as lost: an eighth of those on their way, between this minimum and maximum.
 * Chosen. */
VALUE(switchml, uint32_t, overtaken_least, 3)
VALUE(switchml, uint32_t, overtaken_most, 32)
/* Replies with marks of two operations until ranks count as calling different ones: the network may have kept fewer. Chosen. */
VALUE(switchml, uint32_t, mixed_most, 3)
/* Errors of packets alone end an operation when they have lasted for so long. Chosen: as keepalive takes for a host that is
 * gone. */
VALUE(switchml, uint64_t, gone_ns, 12000000000)
/* Looks in vain of a worker's thread before it sleeps until a packet comes or a timer runs out. As the aggregator. Chosen. */
VALUE(switchml, unsigned, thread_looks, 20)
/* Of a million packets that are sent, the number that is lost, as in a bad network: for tests. */
VALUE(switchml, uint32_t, lost_per_million, 0)
/* Receiving: buffers of a call where the kernel does not join packets; where it does so few that what has come is in the core's
 * cache when it is taken (measured, EPYC with 512 KiB: 4 carry a tenth more packets than 32); bytes of each; datagrams of calls
 * in a row. */
FIXED(switchml, buffers, PKI_SWITCHML_BUFFERS, 32)
FIXED(switchml, joined_buffers, PKI_SWITCHML_JOINED_BUFFERS, 4)
FIXED(switchml, joined_bytes, PKI_SWITCHML_JOINED_BYTES, 65536)
FIXED(switchml, alone_bytes, PKI_SWITCHML_ALONE_BYTES, 2048)
FIXED(switchml, datagrams, PKI_SWITCHML_DATAGRAMS, 128)
/* Sending: packets and bytes of one large datagram (the kernel's limits are 64 and 64 KiB), such that are kept until they are
 * flushed, messages of one call. Chosen. */
FIXED(switchml, segments, PKI_DATAGRAMS_SEGMENTS, 60)
FIXED(switchml, large_bytes, PKI_SWITCHML_LARGE_BYTES, 64000)
FIXED(switchml, trains, PKI_SWITCHML_TRAINS, 64)
FIXED(switchml, messages, PKI_SWITCHML_MESSAGES, 128)
/* What the kernel counts for a packet of 256 values that waits to be read, and for one of 64. Measured, Linux 6. */
FIXED(switchml, packet_memory_bytes, PKI_SWITCHML_PACKET_MEMORY, 2304)
FIXED(switchml, small_packet_memory_bytes, PKI_SWITCHML_SMALL_PACKET_MEMORY, 1280)
END(switchml)
