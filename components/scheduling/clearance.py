"""Which occupied sites block a path, and how far a path can be shortened without being blocked by more of them.

A path is a polyline. A point blocks it if it is closer than c (contact) to any of it, or closer than w (clearance, w >= c) to
its inner part: what lies more than w of arc length away from both of its ends. The ends are exempt from the clearance, or no
site beside an occupied one could be entered. Distances are exact, to segments. Lengths are in nm.
"""

import math

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

MARGIN = 1e-6
"""nm: a shortened path keeps this much more clearance than asked, so that rounding cannot turn touching into blocking."""


def blockers(path: ArrayLike, points: ArrayLike, w: float, c: float) -> np.ndarray:
    """Which points block a path.

    Args:
        path: (m, 2), m >= 1 vertices.
        points: (n, 2) occupied positions.
        w: clearance, for the inner part of the path.
        c: contact distance, for all of it, 0 <= c <= w.

    Returns (n,) bool. Raises ValueError for other shapes, values that are not finite, and w < c.
    """
    path, points = np.array(path, dtype=np.float64), np.array(points, dtype=np.float64)
    if path.ndim != 2 or path.shape[1] != 2 or not len(path):
        raise ValueError(f"a path must have shape (m, 2) with m >= 1, got {path.shape}")
    if points.ndim != 2 or points.shape[1] != 2:
        raise ValueError(f"points must have shape (n, 2), got {points.shape}")
    if not (np.isfinite(path).all() and np.isfinite(points).all()):
        raise ValueError("the path and the points must be finite")
    check_distances(w, c)
    return blocked(path, points, float(w), float(c))


def check_distances(w: float, c: float) -> None:
    """Raise ValueError unless 0 <= c <= w < inf, w > 0."""
    if not (0 <= c <= w < math.inf and w > 0):
        raise ValueError(f"the clearance w must be finite, positive and at least the contact distance c >= 0, got {w=}, {c=}")


@njit(cache=True)
def _distance2(ax, ay, bx, by, px, py):
    """Squared distance of a point from a segment."""
    dx, dy = bx - ax, by - ay
    length2 = dx * dx + dy * dy
    t = 0.0
    if length2 > 0.0:
        t = min(1.0, max(0.0, ((px - ax) * dx + (py - ay) * dy) / length2))
    x, y = ax + t * dx - px, ay + t * dy - py
    return x * x + y * y


@njit(cache=True)
def _blocks(ax, ay, bx, by, before, after, px, py, w, c):
    """Whether a point blocks a segment with so much path before and after it."""
    if px < min(ax, bx) - w or px > max(ax, bx) + w or py < min(ay, by) - w or py > max(ay, by) + w:
        return False
    distance2 = _distance2(ax, ay, bx, by, px, py)
    if distance2 >= w * w:
        return False
    if distance2 < c * c:
        return True
    length = math.hypot(bx - ax, by - ay)
    low, high = max(0.0, w - before), min(length, length + after - w)
    if not low < high:
        return False
    low, high = low / length, high / length
    dx, dy = bx - ax, by - ay
    return _distance2(ax + low * dx, ay + low * dy, ax + high * dx, ay + high * dy, px, py) < w * w


@njit(cache=True)
def arc_length(path):
    """Arc length of a polyline (m, 2) up to each vertex, (m,)."""
    arc = np.zeros(len(path))
    for k in range(1, len(path)):
        arc[k] = arc[k - 1] + math.hypot(path[k, 0] - path[k - 1, 0], path[k, 1] - path[k - 1, 1])
    return arc


@njit(cache=True)
def blocked(path, points, w, c):
    """`blockers` without its checks: contiguous float64 arrays, float distances."""
    result = np.zeros(len(points), dtype=np.bool_)
    arc = arc_length(path)
    low_x, high_x, low_y, high_y = path[:, 0].min() - w, path[:, 0].max() + w, path[:, 1].min() - w, path[:, 1].max() + w
    for n in range(len(points)):
        x, y = points[n, 0], points[n, 1]
        if x < low_x or x > high_x or y < low_y or y > high_y:
            continue
        if len(path) == 1:
            result[n] = (path[0, 0] - x) ** 2 + (path[0, 1] - y) ** 2 < c * c
        for k in range(len(path) - 1):
            a, b = path[k], path[k + 1]
            if _blocks(a[0], a[1], b[0], b[1], arc[k], arc[-1] - arc[k + 1], x, y, w, c):
                result[n] = True
                break
    return result


@njit(cache=True)
def _free(ax, ay, bx, by, before, after, obstacles, w, c):
    for n in range(len(obstacles)):
        if _blocks(ax, ay, bx, by, before, after, obstacles[n, 0], obstacles[n, 1], w, c):
            return False
    return True


@njit(cache=True)
def _shortcut(path, obstacles, w, c):
    """Replace runs of vertices by a segment, the longest run first, from the first vertex on.

    Only the new segment needs a look: what remains of the path comes nearer to the ends in arc length, so more of it is exempt."""
    arc = arc_length(path)
    kept = np.empty_like(path)
    kept[0] = path[0]
    count, here, before = 1, 0, 0.0
    last = len(path) - 1
    while here < last:
        there = last
        while there > here + 1:
            a, b = path[here], path[there]
            if _free(a[0], a[1], b[0], b[1], before, arc[last] - arc[there], obstacles, w, c):
                break
            there -= 1
        before += math.hypot(path[there, 0] - path[here, 0], path[there, 1] - path[here, 1])
        kept[count] = path[there]
        count += 1
        here = there
    return kept[:count].copy()


@njit(cache=True)
def _straighten(path, obstacles, w, c):
    """Move each inner vertex towards the chord of its neighbours as far as both of its segments stay free."""
    path = path.copy()
    arc = arc_length(path)
    before = 0.0
    for k in range(1, len(path) - 1):
        ux, uy, vx, vy, xx, xy = path[k - 1, 0], path[k - 1, 1], path[k, 0], path[k, 1], path[k + 1, 0], path[k + 1, 1]
        dx, dy = xx - ux, xy - uy
        length2 = dx * dx + dy * dy
        t = 0.5 if length2 == 0.0 else min(1.0, max(0.0, ((vx - ux) * dx + (vy - uy) * dy) / length2))
        tx, ty = ux + t * dx, uy + t * dy
        after = arc[-1] - arc[k + 1]
        low, high, share = 0.0, 1.0, 1.0
        for _ in range(10):
            px, py = vx + share * (tx - vx), vy + share * (ty - vy)
            first, second = math.hypot(px - ux, py - uy), math.hypot(xx - px, xy - py)
            if _free(ux, uy, px, py, before, second + after, obstacles, w, c) and _free(
                px, py, xx, xy, before + first, after, obstacles, w, c
            ):
                low = share
                if low == 1.0:
                    break
            else:
                high = share
            share = (low + high) / 2
        path[k, 0], path[k, 1] = vx + low * (tx - vx), vy + low * (ty - vy)
        before += math.hypot(path[k, 0] - ux, path[k, 1] - uy)
    return path


@njit(cache=True)
def _cut_corners(path, obstacles, w, c):
    """Replace each inner vertex by two, one on either side of it, as far apart as the segment between them stays free."""
    result = np.empty((2 * len(path), 2))
    result[0] = path[0]
    count = 1
    arc = arc_length(path)
    before = 0.0
    for k in range(1, len(path) - 1):
        vx, vy = path[k]
        ux, uy = vx - path[k - 1, 0], vy - path[k - 1, 1]
        xx, xy = path[k + 1, 0] - vx, path[k + 1, 1] - vy
        lead, tail = math.hypot(ux, uy), math.hypot(xx, xy)
        reach = min(lead, tail) / 2
        after = arc[-1] - arc[k + 1]
        to_corner = before + math.hypot(vx - result[count - 1, 0], vy - result[count - 1, 1])
        low, high, share = 0.0, 1.0, 1.0
        if lead > 0.0 and tail > 0.0:
            for _ in range(8):
                cut = reach * share
                if _free(
                    vx - ux / lead * cut, vy - uy / lead * cut, vx + xx / tail * cut, vy + xy / tail * cut,
                    to_corner - cut, tail - cut + after, obstacles, w, c,
                ):  # fmt: skip
                    low = share
                    if low == 1.0:
                        break
                else:
                    high = share
                share = (low + high) / 2
        cut = reach * low
        if cut > 1e-3:
            result[count] = vx - ux / lead * cut, vy - uy / lead * cut
            result[count + 1] = vx + xx / tail * cut, vy + xy / tail * cut
            before = (
                to_corner - cut + math.hypot(result[count + 1, 0] - result[count, 0], result[count + 1, 1] - result[count, 1])
            )
            count += 2
        else:
            result[count] = vx, vy
            before = to_corner
            count += 1
    result[count] = path[-1]
    return result[: count + 1].copy()


@njit(cache=True)
def tighten(path, points, w, c):
    """A path of the same ends, not longer, that no further point blocks (string pulling).

    Args: path (m, 2) and points (n, 2) contiguous float64, nm; w and c the distances of `blockers`.
    """
    open_points = points[~blocked(path, points, w, c)]
    near = np.zeros(len(open_points), dtype=np.bool_)
    low_x, high_x, low_y, high_y = path[:, 0].min() - w, path[:, 0].max() + w, path[:, 1].min() - w, path[:, 1].max() + w
    for n in range(len(open_points)):
        x, y = open_points[n, 0], open_points[n, 1]
        # The path and all that it can become lie inside its bounding box.
        near[n] = low_x - 1e-3 <= x <= high_x + 1e-3 and low_y - 1e-3 <= y <= high_y + 1e-3
    obstacles = open_points[near]
    w, c = w + MARGIN, c + MARGIN
    path = _shortcut(path, obstacles, w, c)
    for turn in range(6):
        if len(path) == 2:
            break
        length = arc_length(path)[-1]
        path = _shortcut(_straighten(path, obstacles, w, c), obstacles, w, c)
        if turn < 3:
            path = _cut_corners(path, obstacles, w, c)
        elif arc_length(path)[-1] > length - 1e-3:
            break
    return path
