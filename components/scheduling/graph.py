"""Directed graphs of "runs before": topological layers, and short cycles where there are none."""

from collections import deque
from collections.abc import Iterable

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components


def layers_of(n: int, arcs: Iterable[tuple[int, int]]) -> np.ndarray | None:
    """(n,) int64: the longest chain of arcs (before, after) that ends in each vertex; None if there is a cycle."""
    after: list[list[int]] = [[] for _ in range(n)]
    waiting = [0] * n
    for u, v in arcs:
        after[u].append(v)
        waiting[v] += 1
    layer = [0] * n
    ready = [v for v in range(n) if not waiting[v]]
    for u in ready:  # grows while it is walked
        for v in after[u]:
            layer[v] = max(layer[v], layer[u] + 1)
            waiting[v] -= 1
            if not waiting[v]:
                ready.append(v)
    return np.array(layer, dtype=np.int64) if len(ready) == n else None


def short_cycles(n: int, arcs: Iterable[tuple[int, int]], limit: int) -> list[list[int]]:
    """Up to `limit` different cycles, each a list of vertices: a shortest one through each vertex that lies on any.

    An acyclic graph has none. Cycles are told apart up to rotation and start at their smallest vertex."""
    pairs = np.array(sorted(set(arcs)), dtype=np.int64).reshape(-1, 2)
    graph = csr_array((np.ones(len(pairs), dtype=np.int8), (pairs[:, 0], pairs[:, 1])), shape=(n, n))
    _, component = connected_components(graph, directed=True, connection="strong")
    inside = component[pairs[:, 0]] == component[pairs[:, 1]]
    after: dict[int, list[int]] = {}
    for u, v in pairs[inside].tolist():
        after.setdefault(u, []).append(v)
    found: dict[tuple[int, ...], None] = {}
    for start in after:
        cycle = _shortest_cycle(start, after)
        if cycle is None:
            continue
        turn = cycle.index(min(cycle))
        found[tuple(cycle[turn:] + cycle[:turn])] = None
        if len(found) == limit:
            break
    return [list(cycle) for cycle in found]


def _shortest_cycle(start: int, after: dict[int, list[int]]) -> list[int] | None:
    parent = {start: start}
    queue = deque([start])
    while queue:
        u = queue.popleft()
        for v in after.get(u, ()):
            if v == start:
                cycle = [u]
                while cycle[-1] != start:
                    cycle.append(parent[cycle[-1]])
                return cycle[::-1]
            if v not in parent:
                parent[v] = u
                queue.append(v)
    return None
