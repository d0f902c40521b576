"""Shortest paths on a coarse hexagonal grid whose edges carry penalties.

Each node has 12 edges: six of length h and six of length sqrt(3) h. An edge costs its length times 1 plus its penalty. A* with
the straight-line distance as its bound searches only what can matter. Penalties belong to edges, because a long edge can pass
close by a point that is far from both of its nodes; the mean of two nodes' penalties is one of an edge, too.
"""

import math

import numpy as np
from numba import njit
from scipy.spatial import KDTree

from components.envs.hexagonal import to_position

_STEPS = np.array(
    [(1, 0), (0, 1), (-1, 1), (-1, 0), (0, -1), (1, -1), (1, 1), (-1, 2), (-2, 1), (-1, -1), (1, -2), (2, -1)], dtype=np.int64
)
TIE = 1e-4
"""Extra cost per nm of path and nm of distance from the straight line: among equally long ways the straightest one."""


class HexGrid:
    """Nodes of spacing `h` around `anchor` within `radius`; with `box`, only those in the square of that side about the origin.

    The grid is placed by its anchor, so it turns and shifts with the points that the anchor is computed from.

    Attributes: nodes (n, 2) float64, nm; neighbours (n, 12) int64, -1 where there is none.
    """

    def __init__(self, anchor: np.ndarray, radius: float, h: float, box: float | None = None) -> None:
        if not (0 < h < math.inf and 0 <= radius < math.inf):
            raise ValueError(f"the grid's spacing must be positive and its radius not negative, got {h} and {radius}")
        reach = math.ceil(radius / h / (math.sqrt(3) / 2)) + 1
        if reach > 2000:
            raise ValueError(f"a grid of spacing {h} nm over {radius:.4g} nm would have millions of nodes; use a coarser one")
        axis = np.arange(-reach, reach + 1)
        sites = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
        nodes = anchor + to_position(sites, h)
        inside = np.hypot(*(nodes - anchor).T) <= radius + h
        if box is not None:
            inside &= (np.abs(nodes) <= box / 2).all(axis=1)
        self.h = h
        self.nodes = np.ascontiguousarray(nodes[inside])
        index = np.full((2 * reach + 5, 2 * reach + 5), -1, dtype=np.int64)
        kept = sites[inside] + reach + 2
        index[kept[:, 0], kept[:, 1]] = np.arange(len(kept))
        around = kept[:, None] + _STEPS
        self.neighbours = index[around[..., 0], around[..., 1]]
        self._steps = h * np.repeat([1.0, math.sqrt(3)], 6)
        self._tree = KDTree(self.nodes)

    @property
    def n_edges(self) -> int:
        """Length of an array of penalties: 12 for each node, in the order of `neighbours` flattened, existing or not."""
        return self.neighbours.size

    def edges_near(self, point: np.ndarray, distance: float) -> np.ndarray:
        """The edges closer than `distance` to a point, as sorted indices into an array of penalties; both directions of each."""
        near = np.sort(self._tree.query_ball_point(point, distance + self._steps[-1]))
        node, k = np.nonzero(self.neighbours[near] >= 0)
        a, b = self.nodes[near[node]], self.nodes[self.neighbours[near[node], k]]
        share = np.clip(((point - a) * (b - a)).sum(axis=1) / self._steps[k] ** 2, 0, 1)
        close = np.hypot(*(a + share[:, None] * (b - a) - point).T) < distance
        return 12 * near[node[close]] + k[close]

    def edges_from(self, point: np.ndarray, distance: float) -> tuple[np.ndarray, np.ndarray]:
        """The edges with a node closer than `distance` to a point, as `edges_near`, and the share of their two nodes that are."""
        near = np.sort(self._tree.query_ball_point(point, distance + self._steps[-1]))
        node, k = np.nonzero(self.neighbours[near] >= 0)
        share = np.zeros(len(node))
        for end in (near[node], self.neighbours[near[node], k]):
            share += (np.hypot(*(self.nodes[end] - point).T) < distance) / 2
        return 12 * near[node[share > 0]] + k[share > 0], share[share > 0]

    def path(self, start: np.ndarray, goal: np.ndarray, penalty: np.ndarray) -> np.ndarray | None:
        """The cheapest path (m, 2) from `start` to `goal` (2,), which need not be nodes; None if there is none.

        The ends are joined to the nodes within 1.5 h. penalty: (n_edges,) float64 >= 0."""
        route = _astar(self.nodes, self.neighbours, self._steps, start, goal, penalty.reshape(-1, 12), 1.5 * self.h)
        return None if not len(route) else np.concatenate([start[None], self.nodes[route], goal[None]])


@njit(cache=True)
def _push(keys, items, size, key, item):
    k = size
    while k > 0:
        parent = (k - 1) >> 1
        if keys[parent] <= key:
            break
        keys[k], items[k] = keys[parent], items[parent]
        k = parent
    keys[k], items[k] = key, item
    return size + 1


@njit(cache=True)
def _pop(keys, items, size):
    item = items[0]
    size -= 1
    key, moved = keys[size], items[size]
    k = 0
    while True:
        child = 2 * k + 1
        if child >= size:
            break
        if child + 1 < size and keys[child + 1] < keys[child]:
            child += 1
        if keys[child] >= key:
            break
        keys[k], items[k] = keys[child], items[child]
        k = child
    keys[k], items[k] = key, moved
    return item, size


@njit(cache=True)
def _astar(nodes, neighbours, steps, start, goal, penalty, reach):
    """Indices of the nodes of the cheapest path; empty if there is none. Ends are joined to the nodes within `reach`."""
    n = len(nodes)
    cost = np.full(n, np.inf)
    parent = np.full(n, -1, dtype=np.int64)
    done = np.zeros(n, dtype=np.bool_)
    to_goal = np.empty(n)
    keys = np.empty(13 * n + 64)
    items = np.empty(13 * n + 64, dtype=np.int64)
    size = 0
    dx, dy = goal[0] - start[0], goal[1] - start[1]
    length = math.hypot(dx, dy)
    for v in range(n):
        to_goal[v] = math.hypot(nodes[v, 0] - goal[0], nodes[v, 1] - goal[1])
        first = math.hypot(nodes[v, 0] - start[0], nodes[v, 1] - start[1])
        if first <= reach:
            cost[v] = first
            size = _push(keys, items, size, cost[v] + to_goal[v], v)
    best, last = np.inf, -1
    while size > 0:
        if keys[0] >= best:
            break
        u, size = _pop(keys, items, size)
        if done[u]:
            continue
        done[u] = True
        if to_goal[u] <= reach:
            total = cost[u] + to_goal[u]
            if total < best:
                best, last = total, u
        for k in range(12):
            v = neighbours[u, k]
            if v < 0 or done[v]:
                continue
            across = 0.0
            if length > 0.0:
                across = abs((nodes[v, 0] - start[0]) * dy - (nodes[v, 1] - start[1]) * dx) / length
            new = cost[u] + steps[k] * (1.0 + penalty[u, k] + TIE * across)
            if new < cost[v]:
                cost[v] = new
                parent[v] = u
                size = _push(keys, items, size, new + to_goal[v], v)
    count = 0
    v = last
    while v >= 0:
        count += 1
        v = parent[v]
    route = np.empty(count, dtype=np.int64)
    v = last
    for k in range(count):
        route[count - 1 - k] = v
        v = parent[v]
    return route
