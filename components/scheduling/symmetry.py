"""Jobs that can change places without changing the problem; of those, one order is as good as any other."""

from collections import Counter, defaultdict

from components.scheduling.problem import Location, Option, ScheduleProblem


def interchangeable(problem: ScheduleProblem) -> list[list[int]]:
    """Groups of two or more jobs, each sorted, any two of which can be exchanged.

    Exchanging i and j maps each location that i enters or leaves to the one that j enters or leaves; the two are
    interchangeable if this maps the options of every job to those of its image."""
    by_location: dict[Location, list[int]] = defaultdict(list)
    used: list[list[int]] = [[] for _ in range(problem.n_jobs)]
    for index, location in enumerate(problem.locations):
        by_location[location].append(index)
        for job in {location.arrives, location.departs} - {None}:
            used[job].append(index)
    meets: list[set[int]] = [set() for _ in problem.locations]  # location -> jobs with an option that it blocks
    for job, options in enumerate(problem.options):
        for option in options:
            for index in option.blocked_by:
                meets[index].add(job)

    alike: dict[object, list[int]] = defaultdict(list)
    for job in range(problem.n_jobs):
        key = sorted((option.cost, len(option.blocked_by)) for option in problem.options[job])
        alike[tuple(key), len(used[job])].append(job)

    groups: list[list[int]] = []
    for jobs in alike.values():
        # Being interchangeable is transitive, so comparing with one member of each group is enough.
        mine: list[list[int]] = []
        for job in jobs:
            group = next((group for group in mine if _exchange(problem, group[0], job, used, by_location, meets)), None)
            if group is None:
                mine.append([job])
            else:
                group.append(job)
        groups += [group for group in mine if len(group) > 1]
    return groups


def _exchange(problem, i, j, used, by_location, meets) -> bool:
    swap = {i: j, j: i}
    image: dict[int, int] = {}
    for index in {*used[i], *used[j]}:
        location = problem.locations[index]
        goal = Location(swap.get(location.arrives, location.arrives), swap.get(location.departs, location.departs))
        twins, places = by_location[location], by_location.get(goal, [])
        if len(twins) != len(places):
            return False
        image[index] = places[twins.index(index)]

    def mapped(option: Option) -> Option:
        return Option(option.cost, frozenset(image.get(index, index) for index in option.blocked_by))

    touched = {i, j}.union(*(meets[index] for index in image))
    return all(Counter(map(mapped, problem.options[job])) == Counter(problem.options[swap.get(job, job)]) for job in touched)
