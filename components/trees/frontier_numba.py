"""The dynamic program over row sets, compiled. Same requests in the same order as `frontier_python`, on arrays of words.

Everything lives in preallocated arrays. When one is full, the search unwinds with a code that says which, Python makes that one
twice as large, and the search is asked again: what it had finished is in memory, so it goes on where it stopped.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from components.trees.bitset import _bits
from components.trees.costs import (
    BUDGET,
    CAP,
    EQUIVALENT,
    LEAF_SIDE,
    NO_TREE,
    TWO_LEAVES,
    Costs,
    count_bound,
    leaf_cost,
)
from components.trees.frontier import (
    BUDGET_CUT,
    CAP_CUT,
    EQUIVALENT_CUT,
    LEAVES_CUT,
    LOSS_CUT,
    REASONS,
    SIDE_CUT,
    SUPPORT_CUT,
    Frontiers,
    Options,
    Problem,
    SearchBudgetExceeded,
    Stats,
)

NOTHING = 0  # the entry with empty frontiers
# What a search returns instead of an entry.
ENTRIES_FULL, POOL_FULL, SCRATCH_FULL, TOO_MANY = -1, -2, -3, -4
# Places in the counters.
_ENTRIES, _POOL, _SUBPROBLEMS, _HITS = 0, 1, 2, 3


class Setting(NamedTuple):
    """Problem as the compiled code takes it."""

    features: np.ndarray  # (p, W) uint64
    firsts: np.ndarray  # (W,) uint64
    group_costs: np.ndarray  # (64 W,) int64
    positive_words: int
    min_leaf: int
    branching: int
    levels: int
    unlimited: bool
    ordered: bool
    hands_down: bool
    trivial_risk: float
    flags: int
    max_subproblems: int
    costs: Costs


class Memory(NamedTuple):
    """Entries in an open-addressed table, their frontiers in one pool, and the working space of each depth."""

    counters: np.ndarray  # (4,) int64
    cut: np.ndarray  # (reasons,) int64, of finished expansions
    cut_here: np.ndarray  # (D + 2, reasons) int64, of the one in work at each depth
    table: np.ndarray  # (power of two,) int64, entry or -1
    keys: np.ndarray  # (entries, W) uint64
    depths: np.ndarray  # (entries,) int64
    caps: np.ndarray  # (entries,) float64
    budgets: np.ndarray  # (entries,) int64
    starts: np.ndarray  # (entries, levels) int64
    lengths: np.ndarray  # (entries, levels) int64
    pool_risk: np.ndarray  # (pool,) float64
    pool_cost: np.ndarray  # (pool,) int64
    sides: np.ndarray  # (D + 2, 2, W) uint64
    risk: np.ndarray  # (D + 2, levels, room) float64, the frontier in work
    cost: np.ndarray  # (D + 2, levels, room) int64
    length: np.ndarray  # (D + 2, levels) int64
    joined_risk: np.ndarray  # (room,) float64
    joined_cost: np.ndarray  # (room,) int64
    merged_risk: np.ndarray  # (room,) float64
    merged_cost: np.ndarray  # (room,) int64


@njit(cache=True)
def _hash(words, depth):
    value = np.uint64(depth + 1) * np.uint64(0x9E3779B97F4A7C15)
    for w in range(words.shape[0]):
        value ^= words[w]
        value *= np.uint64(0xFF51AFD7ED558CCD)
        value ^= value >> np.uint64(32)
    return value ^ (value >> np.uint64(29))


@njit(cache=True)
def _slot(words, depth, m):
    """Where (words, depth) stands in the table, or the free place where it would."""
    mask = np.uint64(m.table.shape[0] - 1)
    at = _hash(words, depth) & mask
    while True:
        entry = m.table[at]
        if entry < 0:
            return np.int64(at)
        if m.depths[entry] == depth:
            same = True
            for w in range(words.shape[0]):
                if m.keys[entry, w] != words[w]:
                    same = False
                    break
            if same:
                return np.int64(at)
        at = (at + np.uint64(1)) & mask


@njit(cache=True)
def _best(entry, level, cap, m):
    """The least cost of the entry's trees whose risks are at most `cap`."""
    low, high = m.starts[entry, level], m.starts[entry, level] + m.lengths[entry, level]
    first = low
    while low < high:
        middle = (low + high) // 2
        if m.pool_risk[middle] <= cap:
            low = middle + 1
        else:
            high = middle
    return m.pool_cost[low - 1] if low > first else NO_TREE


@njit(cache=True)
def _add(depth, level, risk, cost, m):
    """Put one pair into the frontier in work. False where there is no room."""
    length = m.length[depth, level]
    risks, costs = m.risk[depth, level], m.cost[depth, level]
    low, high = 0, length
    while low < high:
        middle = (low + high) // 2
        if risks[middle] <= risk:
            low = middle + 1
        else:
            high = middle
    if low > 0 and costs[low - 1] <= cost:
        return True
    start = low
    if low > 0 and risks[low - 1] == risk:
        start = low - 1
    stop = low
    while stop < length and costs[stop] >= cost:
        stop += 1
    removed = stop - start
    if length + 1 - removed > risks.shape[0]:
        return False
    if removed == 0:
        for k in range(length, start, -1):
            risks[k] = risks[k - 1]
            costs[k] = costs[k - 1]
    elif removed > 1:
        for k in range(stop, length):
            risks[k - removed + 1] = risks[k]
            costs[k - removed + 1] = costs[k]
    risks[start] = risk
    costs[start] = cost
    m.length[depth, level] = length + 1 - removed
    return True


@njit(cache=True)
def _absorb(depth, level, other_risk, other_cost, other_length, m):
    """Merge a frontier into the one in work. False where there is no room."""
    length = m.length[depth, level]
    risks, costs = m.risk[depth, level], m.cost[depth, level]
    if length + other_length > m.merged_risk.shape[0]:
        return False
    a = b = kept = 0
    while a < length or b < other_length:
        own = b >= other_length or (
            a < length and (risks[a] < other_risk[b] or (risks[a] == other_risk[b] and costs[a] <= other_cost[b]))
        )
        if own:
            risk, cost = risks[a], costs[a]
            a += 1
        else:
            risk, cost = other_risk[b], other_cost[b]
            b += 1
        if kept == 0 or cost < m.merged_cost[kept - 1]:
            m.merged_risk[kept] = risk
            m.merged_cost[kept] = cost
            kept += 1
    for k in range(kept):
        risks[k] = m.merged_risk[k]
        costs[k] = m.merged_cost[k]
    m.length[depth, level] = kept
    return True


@njit(cache=True)
def _join(depth, a, b, first, second, target, cap, budget, m):
    """For every risk of either frontier, the cheapest trees on both sides. False where there is no room."""
    i, stop_i = m.starts[first, a], m.starts[first, a] + m.lengths[first, a]
    j, stop_j = m.starts[second, b], m.starts[second, b] + m.lengths[second, b]
    best_i = best_j = NO_TREE
    kept = 0
    while i < stop_i or j < stop_j:
        risk = 2.0
        if i < stop_i:
            risk = m.pool_risk[i]
        if j < stop_j and m.pool_risk[j] < risk:
            risk = m.pool_risk[j]
        if risk > cap:
            break
        if i < stop_i and m.pool_risk[i] == risk:
            best_i = m.pool_cost[i]
            i += 1
        if j < stop_j and m.pool_risk[j] == risk:
            best_j = m.pool_cost[j]
            j += 1
        if best_i < NO_TREE and best_j < NO_TREE and best_i + best_j <= budget:
            if kept == m.joined_risk.shape[0]:
                return False
            m.joined_risk[kept] = risk
            m.joined_cost[kept] = best_i + best_j
            kept += 1
    return _absorb(depth, target, m.joined_risk, m.joined_cost, kept, m)


@njit(cache=True)
def _equivalent(words, s):
    """No tree on these rows loses less than a leaf for each distinct feature vector would."""
    total = -np.int64(s.costs.slack)
    for w in range(words.shape[0]):
        left = words[w] & s.firsts[w]
        while left:
            lowest = left & (~left + np.uint64(1))
            total += s.group_costs[64 * w + _bits(lowest - np.uint64(1))]
            left ^= lowest
    return total if total > 0 else np.int64(0)


@njit(cache=True)
def _bound(words, ones, size, cap, s):
    bound = count_bound(ones, size, cap, s.flags, s.costs)
    if s.flags & EQUIVALENT:
        other = _equivalent(words, s)
        if s.flags & TWO_LEAVES:
            other += 2 * s.costs.lam
        bound = max(bound, other)
    return bound


@njit(cache=True)
def _side_counts(words, j, s):
    """Positives and rows with feature j."""
    ones = np.int64(0)
    for w in range(s.positive_words):
        ones += _bits(words[w] & s.features[j, w])
    size = ones
    for w in range(s.positive_words, words.shape[0]):
        size += _bits(words[w] & s.features[j, w])
    return ones, size


@njit(cache=True)
def _split(words, j, depth, s, m):
    """Write both sides of a split into the working space of a depth."""
    for w in range(words.shape[0]):
        one = words[w] & s.features[j, w]
        m.sides[depth, 1, w] = one
        m.sides[depth, 0, w] = words[w] ^ one


@njit(cache=True)
def _allowance(ones0, size0, ones1, size1, depth, cap, budget, s, m):
    """What side 0 of a branching may cost, or -1 where a side can have no tree."""
    if min(size0, size1) < 2 * s.min_leaf:
        m.cut_here[depth, SUPPORT_CUT] += 1
        return np.int64(-1)
    if s.ordered and s.flags & CAP and max(ones0 / size0, ones1 / size1) > cap:
        m.cut_here[depth, CAP_CUT] += 1
        return np.int64(-1)
    if not s.flags & BUDGET:
        return NO_TREE
    left = budget - _bound(m.sides[depth, 1], ones1, size1, cap if s.hands_down else 1.0, s)
    if left < 0:
        m.cut_here[depth, BUDGET_CUT] += 1
        return np.int64(-1)
    return left


@njit(cache=True)
def _request(words, ones, size, depth, cap, budget, s, m):
    """The entry of (words, depth), complete for cap and budget; NOTHING where a bound says that there is no tree; or a code."""
    up = depth + 1  # the requester's place in the working space
    if size < 2 * s.min_leaf:
        m.cut_here[up, SUPPORT_CUT] += 1
        return np.int64(NOTHING)
    if s.ordered and s.flags & CAP and ones / size > cap:
        m.cut_here[up, CAP_CUT] += 1
        return np.int64(NOTHING)
    if budget < 0:
        m.cut_here[up, BUDGET_CUT] += 1
        return np.int64(NOTHING)
    bound = count_bound(ones, size, cap, s.flags, s.costs)
    if bound > budget:
        alone = bound - 2 * s.costs.lam if s.flags & TWO_LEAVES else bound
        m.cut_here[up, LOSS_CUT if alone > budget else LEAVES_CUT] += 1
        return np.int64(NOTHING)
    at = _slot(words, depth, m)
    entry = m.table[at]
    if entry >= 0 and cap <= m.caps[entry] and budget <= m.budgets[entry]:
        m.counters[_HITS] += 1
        return entry
    if s.flags & EQUIVALENT and _bound(words, ones, size, cap, s) > budget:
        m.cut_here[up, EQUIVALENT_CUT] += 1
        return np.int64(NOTHING)
    if m.counters[_SUBPROBLEMS] >= s.max_subproblems:
        return np.int64(TOO_MANY)
    if entry >= 0:
        cap, budget = max(cap, m.caps[entry]), max(budget, m.budgets[entry])

    for level in range(s.levels):
        m.length[depth, level] = 0
    for reason in range(m.cut.shape[0]):
        m.cut_here[depth, reason] = 0
    for j in range(s.features.shape[0]):
        ones1, size1 = _side_counts(words, j, s)
        ones0, size0 = ones - ones1, size - size1
        if size0 < s.min_leaf or size1 < s.min_leaf:
            continue
        risk0, risk1 = ones0 / size0, ones1 / size1
        own0, own1 = leaf_cost(ones0, size0, s.costs), leaf_cost(ones1, size1, s.costs)
        highest = max(risk0, risk1) if s.ordered else 0.0
        if highest <= cap and own0 + own1 <= budget and not _add(depth, 0, highest, own0 + own1, m):
            return np.int64(SCRATCH_FULL)
        if depth < 2:
            continue
        _split(words, j, depth, s, m)
        for leaf in range(2):
            risk, own, beside = (risk0, own0, risk1) if leaf == 0 else (risk1, own1, risk0)
            limit = handed = 1.0
            if s.ordered:
                if s.flags & LEAF_SIDE and risk < beside:
                    m.cut_here[depth, SIDE_CUT] += 1
                    continue
                if risk > cap or risk <= s.trivial_risk:
                    continue
                limit = risk
                if s.hands_down:
                    handed = risk
            left = budget - own if s.flags & BUDGET else NO_TREE
            if leaf == 0:
                found = _request(m.sides[depth, 1], ones1, size1, depth - 1, handed, left, s, m)
            else:
                found = _request(m.sides[depth, 0], ones0, size0, depth - 1, handed, left, s, m)
            if found < 0:
                return found
            for level in range(s.levels):
                cost = _best(found, level, limit, m)
                if (
                    cost < NO_TREE
                    and cost + own <= budget
                    and not _add(depth, level, limit if s.ordered else 0.0, cost + own, m)
                ):
                    return np.int64(SCRATCH_FULL)
        if s.branching > 0:
            first = _allowance(ones0, size0, ones1, size1, depth, cap, budget, s, m)
            if first < 0:
                continue
            level = s.levels - 1 if s.unlimited else s.levels - 2
            handed = cap if s.hands_down else 1.0
            zero = _request(m.sides[depth, 0], ones0, size0, depth - 1, handed, first, s, m)
            if zero < 0:
                return zero
            least = _best(zero, level, cap, m)
            if least >= NO_TREE or least > first:
                m.cut_here[depth, BUDGET_CUT] += 1
                continue
            left = budget - least if s.flags & BUDGET else NO_TREE
            one = _request(m.sides[depth, 1], ones1, size1, depth - 1, handed, left, s, m)
            if one < 0:
                return one
            if s.unlimited:
                if not _join(depth, 0, 0, zero, one, 0, cap, budget, m):
                    return np.int64(SCRATCH_FULL)
                continue
            for a in range(s.levels - 1):
                for b in range(s.levels - 1 - a):
                    if not _join(depth, a, b, zero, one, a + b + 1, cap, budget, m):
                        return np.int64(SCRATCH_FULL)

    needed = 0
    for level in range(s.levels):
        if level > 0 and not _absorb(
            depth, level, m.risk[depth, level - 1], m.cost[depth, level - 1], m.length[depth, level - 1], m
        ):
            return np.int64(SCRATCH_FULL)
        needed += m.length[depth, level]
    if m.counters[_POOL] + needed > m.pool_risk.shape[0]:
        return np.int64(POOL_FULL)
    if entry < 0:
        entry = m.counters[_ENTRIES]
        if entry >= m.keys.shape[0]:
            return np.int64(ENTRIES_FULL)
        m.counters[_ENTRIES] += 1
        m.table[_slot(words, depth, m)] = entry
        m.depths[entry] = depth
        for w in range(words.shape[0]):
            m.keys[entry, w] = words[w]
    m.caps[entry], m.budgets[entry] = cap, budget
    for level in range(s.levels):
        start = m.counters[_POOL]
        m.starts[entry, level], m.lengths[entry, level] = start, m.length[depth, level]
        for k in range(m.length[depth, level]):
            m.pool_risk[start + k] = m.risk[depth, level, k]
            m.pool_cost[start + k] = m.cost[depth, level, k]
        m.counters[_POOL] += m.length[depth, level]
    m.counters[_SUBPROBLEMS] += 1
    for reason in range(m.cut.shape[0]):
        m.cut[reason] += m.cut_here[depth, reason]
    return entry


@njit(cache=True)
def _options(words, ones, size, depth, cap, budget, n1, n, ok, listed, branched, s, m):
    """Fill in `Options`; 0, or the code of a search that ended early."""
    last = s.levels - 1
    for j in range(s.features.shape[0]):
        ones1, size1 = _side_counts(words, j, s)
        ones0, size0 = ones - ones1, size - size1
        n1[j], n[j] = ones1, size1
        ok[j] = size0 >= s.min_leaf and size1 >= s.min_leaf
        if not ok[j] or depth < 2:
            continue
        _split(words, j, depth, s, m)
        for leaf in range(2):
            a1, a = (ones0, size0) if leaf == 0 else (ones1, size1)
            b1, b = (ones1, size1) if leaf == 0 else (ones0, size0)
            risk, own = a1 / a, leaf_cost(a1, a, s.costs)
            if own > budget or (s.ordered and (b1 / b > risk or risk > cap or risk <= s.trivial_risk)):
                continue
            limit = risk if s.ordered else 1.0
            left = budget - own if s.flags & BUDGET else NO_TREE
            found = _request(m.sides[depth, 1 - leaf], b1, b, depth - 1, limit if s.hands_down else 1.0, left, s, m)
            if found < 0:
                return found
            cost = _best(found, last, limit, m)
            if cost <= budget - own:
                listed[j, leaf] = cost
        if s.branching > 0:
            first = _allowance(ones0, size0, ones1, size1, depth, cap, budget, s, m)
            if first < 0:
                continue
            level = s.levels - 1 if s.unlimited else s.levels - 2
            handed = cap if s.hands_down else 1.0
            zero = _request(m.sides[depth, 0], ones0, size0, depth - 1, handed, first, s, m)
            if zero < 0:
                return zero
            least = _best(zero, level, cap, m)
            if least >= NO_TREE or least > first:
                m.cut_here[depth, BUDGET_CUT] += 1
                continue
            left = budget - least if s.flags & BUDGET else NO_TREE
            one = _request(m.sides[depth, 1], ones1, size1, depth - 1, handed, left, s, m)
            if one < 0:
                return one
            second = _best(one, level, cap, m)
            if second < NO_TREE and least + second <= budget:
                branched[j, 0], branched[j, 1] = least, second
    return np.int64(0)


def _memory(words: int, depth: int, levels: int, entries: int, pool: int, room: int) -> Memory:
    """Empty memory; entry 0 has no pairs and is in no table."""
    counters = np.array([1, 0, 0, 0], dtype=np.int64)
    table = np.full(1 << (2 * entries - 1).bit_length(), -1, dtype=np.int64)
    places, reasons = depth + 2, len(REASONS)
    return Memory(
        counters,
        np.zeros(reasons, np.int64),
        np.zeros((places, reasons), np.int64),
        table,
        np.zeros((entries, words), np.uint64),
        np.zeros(entries, np.int64),
        np.zeros(entries, np.float64),
        np.full(entries, -1, np.int64),
        np.zeros((entries, levels), np.int64),
        np.zeros((entries, levels), np.int64),
        np.zeros(pool, np.float64),
        np.zeros(pool, np.int64),
        np.zeros((places, 2, words), np.uint64),
        np.zeros((places, levels, room), np.float64),
        np.zeros((places, levels, room), np.int64),
        np.zeros((places, levels), np.int64),
        np.zeros(room, np.float64),
        np.zeros(room, np.int64),
        np.zeros(room, np.float64),
        np.zeros(room, np.int64),
    )


def _longer(array: np.ndarray, length: int, fill: int = 0) -> np.ndarray:
    larger = np.full((length, *array.shape[1:]), fill, dtype=array.dtype)
    larger[: len(array)] = array
    return larger


class NumbaFrontiers(Frontiers):
    """See `Frontiers`. A set of rows is the bytes of its words."""

    def __init__(self, problem: Problem, max_subproblems: int) -> None:
        self.problem, self.max_subproblems = problem, max_subproblems
        self._all = problem.rows.tobytes()
        self._setting = Setting(
            problem.features,
            problem.firsts,
            problem.group_costs,
            problem.positive_words,
            problem.min_leaf,
            problem.branching,
            problem.levels,
            problem.unlimited,
            problem.ordered,
            problem.hands_down_caps,
            problem.trivial_risk,
            problem.flags,
            max_subproblems,
            problem.costs,
        )
        self._memory = _memory(problem.rows.size, problem.depth, problem.levels, 1024, 1 << 14, 256)

    @property
    def everything(self) -> bytes:
        return self._all

    def _words(self, rows: bytes) -> np.ndarray:
        return np.frombuffer(rows, dtype=np.uint64)

    def children(self, rows: bytes, feature: int) -> tuple[bytes, bytes]:
        words = self._words(rows)
        ones = words & self.problem.features[feature]
        return (words ^ ones).tobytes(), ones.tobytes()

    def count(self, rows: bytes) -> tuple[int, int]:
        counts = np.bitwise_count(self._words(rows))
        return int(counts[: self.problem.positive_words].sum()), int(counts.sum())

    @property
    def stats(self) -> Stats:
        m = self._memory
        pruned = dict(zip(REASONS, (int(count) for count in m.cut), strict=True))
        return Stats(int(m.counters[_SUBPROBLEMS]), int(m.counters[_HITS]), pruned)

    def pairs(self, rows: bytes, depth: int, cap: float, budget: int) -> list[list[tuple[float, int]]]:
        entry = self._search(_request, depth + 1, self._words(rows).copy(), *self.count(rows), depth, float(cap), int(budget))
        found = []
        for level in range(self.problem.levels):
            start, length = self._memory.starts[entry, level], self._memory.lengths[entry, level]
            both = zip(
                self._memory.pool_risk[start : start + length].tolist(),
                self._memory.pool_cost[start : start + length].tolist(),
                strict=True,
            )
            found.append([(risk, cost) for risk, cost in both if risk <= cap and cost <= budget])
        return found

    def options(self, rows: bytes, depth: int, cap: float, budget: int) -> Options:
        p = self.problem.features.shape[0]
        result = Options(
            np.zeros(p, np.int64),
            np.zeros(p, np.int64),
            np.zeros(p, np.bool_),
            np.full((p, 2), NO_TREE, np.int64),
            np.full((p, 2), NO_TREE, np.int64),
        )
        arguments = (self._words(rows).copy(), *self.count(rows), depth, float(cap), int(budget), *result)
        self._search(_options, depth, *arguments)
        return result

    def _search(self, compiled, place: int, *arguments) -> int:
        """Call a compiled search until there is room for all that it finds. `place` holds the counts of the outermost call."""
        while True:
            m = self._memory
            m.cut_here[place] = 0
            hits = int(m.counters[_HITS])
            code = int(compiled(*arguments, self._setting, m))
            if code >= 0:
                m.cut[:] += m.cut_here[place]
                return code
            if code == TOO_MANY:
                raise SearchBudgetExceeded(f"more than {self.max_subproblems} subproblems", int(NO_TREE), 0)
            m.counters[_HITS] = hits
            self._grow(code)

    def _grow(self, code: int) -> None:
        m = self._memory
        if code == POOL_FULL:
            self._memory = m._replace(
                pool_risk=_longer(m.pool_risk, 2 * len(m.pool_risk)), pool_cost=_longer(m.pool_cost, 2 * len(m.pool_cost))
            )
        elif code == SCRATCH_FULL:
            fresh = _memory(m.keys.shape[1], self.problem.depth, self.problem.levels, 1, 1, 2 * len(m.merged_risk))
            names = ("risk", "cost", "length", "joined_risk", "joined_cost", "merged_risk", "merged_cost")
            self._memory = m._replace(**{name: getattr(fresh, name) for name in names})
        else:
            entries = 2 * len(m.keys)
            names = ("keys", "depths", "caps", "budgets", "starts", "lengths")
            larger = {name: _longer(getattr(m, name), entries) for name in names}
            self._memory = m._replace(table=np.full(2 * len(m.table), -1, np.int64), **larger)
            _fill_table(self._memory)


@njit(cache=True)
def _fill_table(m):
    for entry in range(1, m.counters[_ENTRIES]):
        m.table[_slot(m.keys[entry], m.depths[entry], m)] = entry
