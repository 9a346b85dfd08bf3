#!/usr/bin/env python3
"""Writes pycachesim.txt, for the test in hierarchy.rs: misses that the public simulator pycachesim
counts on random loads.

    pip install pycachesim && python3 pycachesim.py > pycachesim.txt
"""
import itertools
from cachesim import Cache, CacheSimulator, MainMemory

MASK = (1 << 64) - 1


class Random:
    """xorshift64* (Vigna 2016), as in random/mod.rs."""

    def __init__(self, seed):
        self.state = seed

    def below(self, bound):
        x = self.state
        x ^= x >> 12
        x = (x ^ x << 25) & MASK
        x ^= x >> 27
        self.state = x
        return ((x * 0x2545F4914F6CDD1D & MASK) >> 33) % bound


def misses(line, sets1, ways1, sets2, ways2, span, seed):
    memory = MainMemory()
    l2 = Cache("L2", sets2, ways2, line, "LRU")
    l1 = Cache("L1", sets1, ways1, line, "LRU", store_to=l2, load_from=l2)
    memory.load_to(l2)
    memory.store_from(l2)
    simulator = CacheSimulator(l1, memory)
    random = Random(seed)
    for _ in range(20000):
        near = random.below(4) != 0
        simulator.load(random.below(span // 8 if near else span), length=1)
    return [list(simulator.stats())[level]["MISS_count"] for level in (0, 1)]


print("# line sets1 ways1 sets2 ways2 span seed: misses of L1, of L2 (pycachesim 0.3.1)")
shapes = itertools.product(
    [16, 64], [(1, 4), (8, 1), (16, 2), (64, 8)], [(16, 8), (128, 1), (256, 16)]
)
for seed, (line, (sets1, ways1), (sets2, ways2)) in enumerate(shapes, 1):
    span = 4 * line * sets2 * ways2
    seed *= 0x9E3779B97F4A7C15
    arguments = [line, sets1, ways1, sets2, ways2, span, seed & MASK]
    print(*arguments, *misses(*arguments))
