# SPDX-License-Identifier: Apache-2.0
"""Parts of nccl_programs.py: PyTorch's CUDA graphs, captured by hand and by torch.compile."""
import torch
import torch.distributed as dist

REPLAYS = 30
STEPS = 8
WIDTH = 256


def collectives(values, gathered, parts):
    """Of each replay: a sum, everybody's blocks, a sum of own blocks; between them kernels of the program's own."""
    total = values * 2
    dist.all_reduce(total)
    dist.all_gather_into_tensor(gathered, total + 1)
    dist.reduce_scatter_tensor(parts, gathered * 0.5)
    return total, gathered.clone(), parts.sqrt()


def replay(b, count):
    values = torch.zeros(count, device=b.device)
    gathered = torch.zeros(2 * count, device=b.device)
    parts = torch.zeros(count, device=b.device)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        collectives(values, gathered, parts)
    torch.cuda.current_stream().wait_stream(side)
    b.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        results = collectives(values, gathered, parts)
    for turn in range(REPLAYS):
        fresh = (torch.arange(count, device=b.device) % 13 + turn + b.rank).float()
        total = (torch.arange(count, device=b.device) % 13 + turn).float() * 4 + 2
        values.copy_(fresh)
        graph.replay()
        b.synchronize()
        b.equal(results[0], total, "replay %d of a sum of %d" % (turn, count))
        b.equal(results[1], torch.cat((total + 1, total + 1)), "replay %d of an allgather of %d" % (turn, count))
        b.equal(results[2], (total + 1).sqrt(), "replay %d of a reduce_scatter of %d" % (turn, count))
    graph.reset()


def graphs(b):
    """torch.cuda.CUDAGraph: collectives of three lengths with kernels between them, each replayed with new data."""
    b.start()
    b.short_round()
    for count in (64, 5000, 1 << 20):
        replay(b, count)
    dist.all_reduce(torch.ones(4, device=b.device))
    b.synchronize()


def network():
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, 1)
    )


def train(b, how):
    net = torch.nn.parallel.DistributedDataParallel(network().to(b.device), device_ids=[b.rank])
    model = how(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    losses = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 * step + b.rank)
        values = torch.randn(64, WIDTH, generator=generator).to(b.device)
        loss = (model(values) - values.mean(1, keepdim=True)).square().mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, torch.cat([p.detach().flatten() for p in net.parameters()])


def compiled(b):
    """torch.compile(mode="reduce-overhead") of a DistributedDataParallel: as good as without it, and the same on both ranks."""
    b.start()
    b.short_round()
    torch.backends.cuda.matmul.allow_tf32 = False
    plain, plain_weights = train(b, lambda net: net)
    fast, fast_weights = train(b, lambda net: torch.compile(net, mode="reduce-overhead"))
    b.info("losses %s, compiled %s" % (" ".join("%.5f" % x for x in plain), " ".join("%.5f" % x for x in fast)))
    b.check(all(abs(x - y) < 1e-3 * max(1.0, abs(x)) for x, y in zip(plain, fast)), "losses differ")
    b.check(torch.allclose(plain_weights, fast_weights, atol=1e-3), "weights differ")
    others = [torch.empty_like(fast_weights) for _ in range(2)]
    dist.all_gather(others, fast_weights)
    b.synchronize()
    b.equal(others[0], others[1], "weights of both ranks")
