import itertools

from fedapps.algorithms.common.seeds import derived_seed, generator


def test_every_part_of_the_name_counts():
    names = list(itertools.product([0, 1], ["batches", "lambda"], [0, 1, "0", "1"], [1, 2]))
    assert len({generator(*name).random() for name in names}) == len(names)


def test_derived_seeds_fit_torch_and_differ():
    seeds = {derived_seed(0, "model", client) for client in range(1000)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)
