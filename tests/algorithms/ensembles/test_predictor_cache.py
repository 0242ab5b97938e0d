from collections import OrderedDict

import numpy as np

from fedapps.algorithms.ensembles.predictor_cache import remember


def test_equals_a_plain_least_recently_used_cache():
    rng = np.random.default_rng(0)
    held, cache = [], OrderedDict()
    for _ in range(300):
        used = [str(k) for k in rng.choice(12, rng.integers(0, 6), replace=False)]
        held = remember(held, used, 5)
        for key in used:
            cache[key] = True
            cache.move_to_end(key)
        while len(cache) > 5:
            cache.popitem(last=False)
        assert held == list(cache)


def test_a_cache_of_nothing():
    assert remember(["a"], ["b"], 0) == []
