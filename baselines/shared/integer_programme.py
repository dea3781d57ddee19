"""The choice of calls for bfloat16 as an integer programme, against which the search is compared."""

from __future__ import annotations

import numpy as np
from scipy import optimize, sparse
from torch import fx

from torchrlopt.precision.assignment import Assignment


def optimal_us(assignment: Assignment, budget: float, seconds: float = 60.0) -> float:
    """Return the least time of all choices within an error budget, in microseconds.

    One variable for each call says whether it is lowered; one for each value whether it is converted, and one
    for each edge whether it is rounded for this reader alone. The latter two follow from the first.

    Args:
        assignment: the calls, their errors and times.
        budget: most relative error.
        seconds: limit; after that, the best that is known.
    """
    values, items = assignment.values, assignment.items
    number: dict[fx.Node | None, int] = {item: at for at, item in enumerate(items)}
    exact, lowered = ([values.of_item(each, is_low) for each in items] for is_low in (False, True))
    us = [low - high for (high, _), (low, _) in zip(exact, lowered, strict=True)]
    roundings = [values.found.results.get(each.name, 0.0) for each in items]
    error = [weights + result for (_, weights), result in zip(lowered, roundings, strict=True)]
    rows: list[dict[int, float]] = []  # each sum is at most 0

    def variable(of_us: float, of_error: float) -> int:
        us.append(of_us)
        error.append(of_error)
        return len(us) - 1

    for source, readers in values.readers.items():
        own = {number[source]: -1.0} if source in number else {}
        converted = variable(values.conversion_us(source), 0.0)
        for reader, rounding in readers.items():
            low = {number[reader]: 1.0} if reader is not None else {}
            rows.append({**low, **own, converted: -1.0})
            rows.append({**{at: -sign for at, sign in (low | own).items()}, converted: -1.0})
            if reader is not None:
                rows.append({**low, **own, variable(0.0, rounding): -1.0})
    matrix = sparse.lil_matrix((len(rows) + 1, len(us)))
    for at, row in enumerate(rows):
        for column, sign in row.items():
            matrix[at, column] = sign
    matrix[len(rows)] = np.asarray(error) / budget**2
    limits = np.zeros(len(rows) + 1)
    limits[-1] = 1.0
    found = optimize.milp(
        np.asarray(us),
        constraints=optimize.LinearConstraint(matrix.tocsr(), -np.inf, limits),
        integrality=[1] * len(items) + [0] * (len(us) - len(items)),
        bounds=optimize.Bounds(0, 1),
        options={"time_limit": seconds, "mip_rel_gap": 1e-3},
    )
    return float(sum(high for high, _ in exact) + (found.fun if found.x is not None else 0.0))
