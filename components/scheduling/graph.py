"""Directed graphs of "runs before": topological layers, and short cycles where there are none."""

from collections.abc import Iterable

import numpy as np
from numba import njit
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


def short_cycles(n: int, arcs: np.ndarray, limit: int) -> list[list[int]]:
    """Up to `limit` different cycles, each a list of vertices: a shortest one through each vertex that lies on any.

    Args:
        n: vertices.  arcs: (m, 2) int64, before and after; repetitions do no harm.  limit: how many cycles at most.

    An acyclic graph has none. Cycles are told apart up to rotation and start at their smallest vertex."""
    if not len(arcs):
        return []
    graph = csr_array((np.ones(len(arcs), dtype=np.int32), (arcs[:, 0], arcs[:, 1])), shape=(n, n))
    _, component = connected_components(graph, directed=True, connection="strong")
    inside = arcs[component[arcs[:, 0]] == component[arcs[:, 1]]]
    if not len(inside):
        return []
    codes = np.unique(inside[:, 0] * n + inside[:, 1])  # sorted by tail
    first = np.searchsorted(codes, n * np.arange(n + 1))
    heads = codes % n
    parent, stamp = np.empty(n, dtype=np.int64), np.full(n, -1, dtype=np.int64)
    queue, cycle = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    found: dict[tuple[int, ...], None] = {}
    for start in np.flatnonzero(np.diff(first)).tolist():
        length = _shortest_cycle(start, first, heads, parent, stamp, queue, cycle)
        vertices = cycle[:length].tolist()
        turn = vertices.index(min(vertices))
        found[tuple(vertices[turn:] + vertices[:turn])] = None
        if len(found) == limit:
            break
    return [list(vertices) for vertices in found]


@njit(cache=True)
def _shortest_cycle(start, first, heads, parent, stamp, queue, cycle):
    """Breadth-first search back to `start`; fills `cycle` and returns its length, 0 if there is none. `stamp` tells visits apart."""
    stamp[start] = start
    queue[0] = start
    begin, end = 0, 1
    while begin < end:
        u = queue[begin]
        begin += 1
        for a in range(first[u], first[u + 1]):
            v = heads[a]
            if v == start:
                length = 1
                w = u
                while w != start:
                    w = parent[w]
                    length += 1
                w = u
                for i in range(length - 1, -1, -1):
                    cycle[i] = w
                    if i:
                        w = parent[w]
                return length
            if stamp[v] != start:
                stamp[v] = start
                parent[v] = u
                queue[end] = v
                end += 1
    return 0
