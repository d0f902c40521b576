"""What a model of the formula says: the option of each job, the arcs that these options need, the schedule.

Options and arcs lie in flat arrays, made anew only when the formula has got more options.
"""

import numpy as np

from components.scheduling.encodings import Encoding
from components.scheduling.graph import layers_of
from components.scheduling.problem import Schedule


def truth_of(model: list[int], n_variables: int) -> np.ndarray:
    """(n_variables + 1,) bool, by variable."""
    truth = np.zeros(n_variables + 1, dtype=bool)
    literals = np.asarray(model, dtype=np.int64)
    literals = literals[np.abs(literals) <= n_variables]
    truth[np.abs(literals)] = literals > 0
    return truth


class Decoder:
    """Reads models of one formula."""

    def __init__(self, formula: Encoding) -> None:
        self.formula = formula
        self._known = -1

    def choice(self, truth: np.ndarray) -> np.ndarray:
        """(n,) int64: the cheapest option that a model allows each job; -1 for none."""
        self._refresh()
        chosen = np.full(self.formula.n_jobs, -1, dtype=np.int64)
        true = truth[self._x[::-1]]  # dearest first, so that the cheapest has the last word
        chosen[self._job[::-1][true]] = self._k[::-1][true]
        return chosen

    def arcs(self, truth: np.ndarray, choice: np.ndarray) -> np.ndarray:
        """(m, 2) int64: the arcs (before, after) that the chosen options need, as a model has them."""
        self._refresh()
        taken = self._ways[choice[self._ways[:, 0]] == self._ways[:, 1]]
        first = truth[np.abs(taken[:, 2])] == (taken[:, 2] > 0)
        arcs = np.where(first[:, None], taken[:, 3:5], taken[:, 6:8])
        return np.concatenate([self._always, arcs])

    def schedule(self, truth: np.ndarray, required: np.ndarray | None = None) -> Schedule:
        """The schedule of a model without cycles. Jobs outside `required` ((n,) bool) get choice -1; None: all are required."""
        choice = self.choice(truth)
        if required is not None:
            choice[~required] = -1
        layer = layers_of(self.formula.n_jobs, self.arcs(truth, choice).tolist())
        order = np.lexsort((np.arange(self.formula.n_jobs), layer))
        cost = sum(self.formula.options[job][k].cost for job, k in enumerate(choice.tolist()) if k >= 0)
        return Schedule(order, layer, choice, cost)

    def _refresh(self) -> None:
        formula = self.formula
        n_options = sum(map(len, formula.x))
        if n_options == self._known:
            return
        self._known = n_options
        rows = sorted(
            (job, option.cost, k, x)
            for job, (literals, options) in enumerate(zip(formula.x, formula.options, strict=True))
            for k, (x, option) in enumerate(zip(literals, options, strict=True))
        )
        self._job, _, self._k, self._x = np.array(rows, dtype=np.int64).reshape(-1, 4).T
        # job, option, and twice literal, before, after; the second arc is the first where there is only one.
        ways = [
            (job, k, *arcs[0], *arcs[-1])
            for job, of_job in enumerate(formula.arcs_of)
            for k, of_option in enumerate(of_job)
            for arcs in of_option
        ]
        self._ways = np.array(ways, dtype=np.int64).reshape(-1, 8)
        self._always = np.array([(u, v) for _, u, v in formula.always], dtype=np.int64).reshape(-1, 2)
