"""Histogram boosting as a federation: the trees equal those of the pooled rows for any
partition, participation, failure or lie.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from flwr.app import RecordDict
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from fedapps.algorithms.boosting.bins import widths
from fedapps.algorithms.boosting.forest import GROW, NAMES, Forest, Growth, merged
from fedapps.algorithms.contract.wire import read
from fedapps.clients import (
    DiskStore,
    HistogramBoostingClient,
    LocalBoostingClient,
    MessageStore,
    to_client_app,
)
from fedapps.clients.base.data import ArrayData, ArraySplit
from fedapps.engines.inline import InlineGrid
from fedapps.engines.node_app import answer_for_many
from fedapps.engines.node_grid import NodeGrid
from fedapps.runs.assembly import build_client, build_task
from fedapps.settings.reading import read_settings
from fedapps.strategies import (
    ClientGrid,
    HistogramBoosting,
    HistogramBoostingOptions,
    LocalBoosting,
    LocalBoostingOptions,
    SiteBoosting,
)
from fedapps.strategies.secure import SecureOptions, check_sums
from tests.helpers import arrays_of, assert_arrays, refused, simulate, write_csv

OPTIONS = {"depth": 2, "bins": 16}


def rows(n, seed=0):
    """Return x (n, 5) with missing values, one binary and one skewed column, and labels
    that need more than a line.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 5)).astype(np.float32)
    x[:, 3], x[:, 4] = rng.integers(0, 2, n), np.exp(3 * x[:, 4])
    logits = 1.5 * x[:, 0] + 2 * np.abs(x[:, 1]) + x[:, 3] * x[:, 2] + 0.5 * np.log(x[:, 4]) - 1.5
    x[rng.random(x.shape) < 0.05] = np.nan
    return x, (logits + rng.logistic(size=n) > 0).astype(np.int64)


def dealt(x, y, owner):
    parts = [ArraySplit(x[owner == k], y[owner == k]) for k in range(owner.max() + 1)]
    return [ArrayData(part, part, part) for part in parts]


class Federation:
    """Clients that keep their state; ``spoil(client, round, reply)`` may change a
    reply, or raise.
    """

    def __init__(self, datas, spoil=None, kind=HistogramBoosting):
        self.datas, self.spoil, self.kind = datas, spoil, kind
        self.states = [RecordDict() for _ in datas]

    def client(self, number):
        outer = self

        class Watched(HistogramBoostingClient):
            def fit(self, parameters, config):
                reply = super().fit(parameters, config)
                return outer.spoil(number, config["server-round"], reply) if outer.spoil else reply

        return Watched(self.datas[number], number, MessageStore(self.states[number]))

    def run(self, rounds, options=None, nodes=0, start=None, sampled=0, **more):
        options = HistogramBoostingOptions(**{**OPTIONS, **(options or {})})
        strategy = self.kind(self.datas[0].train.x.shape[1], options)
        app = to_client_app(
            lambda context: self.client(int(context.node_config["partition-id"])), writable=False
        )
        grid = InlineGrid(answer_for_many(app) if nodes else app, nodes or len(self.datas))
        if nodes:
            grid = NodeGrid(grid, len(self.datas), grid.get_node_ids())
        outer = ClientGrid(grid, seed=3, clients_per_round=sampled)
        more |= {"grid": outer, "callbacks": [(seen := []).append]}
        result = simulate(strategy, None, 0, start or {}, rounds, {"seed": 5}, **more)
        self.rounds, self.used = seen, [list(now.trained.clients) for now in seen]
        return arrays_of(result)


def same(one, other):
    assert_arrays(one, other)
    assert [array.dtype for array in one.values()] == [array.dtype for array in other.values()]


def three(n):
    """Return ``n`` rows dealt to three clients at random."""
    return dealt(*rows(n), np.random.default_rng(2).integers(0, 3, n))


def replayed(datas, rounds, used, options=None):
    """Return the arrays after rounds in which the pooled rows of the clients
    ``used[round]`` took the step.
    """
    o = HistogramBoostingOptions(**{**OPTIONS, **(options or {})})
    forest = Forest.new(datas[0].train.x.shape[1], o.depth)
    for who in used[:rounds]:
        if parts := [datas[k].train for k in who]:
            x, y = (np.concatenate([getattr(part, name) for part in parts]) for name in "xy")
            forest.step(forest.sums(x, y, forest.values(x), o.loss), o.growth, o.loss, o.bins)
    return forest.to_arrays()


SPLITS = {
    "at random": lambda x, y, rng: rng.integers(0, 7, len(y)),
    "by label": lambda x, y, rng: y.copy(),
    "by value": lambda x, y, rng: np.searchsorted(
        np.nanquantile(x[:, 0], [0.2, 0.4, 0.9]), np.nan_to_num(x[:, 0])
    ),
    "one row a client": lambda x, y, rng: np.where(np.arange(len(y)) < 10, np.arange(len(y)), 10),
}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("loss", ["cross-entropy", "square"])
def test_any_split_of_the_rows_gives_the_trees_of_the_pooled_run_to_the_bit(split, loss):
    x, y = rows(500)
    grown = Federation(dealt(x, y, SPLITS[split](x, y, np.random.default_rng(2)))).run(
        10, {"loss": loss}, evaluate_every=0
    )
    assert grown["stage"][0] == 2
    assert (grown["feature"] >= 0).sum() == 4 * 3
    same(grown, replayed(dealt(x, y, np.zeros(len(y), int)), 10, [[0]] * 10, {"loss": loss}))


@pytest.mark.parametrize("nodes", [1, 3])
def test_clients_that_share_nodes_give_the_same_trees(nodes):
    datas = dealt(*rows(500), np.random.default_rng(2).integers(0, 7, 500))
    same(Federation(datas).run(8, nodes=nodes), Federation(datas).run(8))

    def lies(number, server_round, reply):
        if number != 2:
            return reply
        return ([reply[0][0].astype(float)] if server_round % 2 else [reply[0][0][:-1]], *reply[1:])

    same(
        Federation(datas, lies).run(8, nodes=nodes),
        replayed(datas, 8, [[0, 1, 3, 4, 5, 6]] * 8),
    )


def test_the_trees_are_as_good_as_those_of_scikit_learn():
    (x, y), (x_test, y_test) = rows(4000), rows(4000, 1)
    owner = np.random.default_rng(2).integers(0, 5, len(y))
    arrays = Federation(dealt(x, y, owner)).run(
        2 + 3 * 30, {"depth": 3, "bins": 64, "learning_rate": 0.2, "l2": 0.0}, evaluate_every=0
    )
    theirs = HistGradientBoostingClassifier(
        max_iter=30,
        max_depth=3,
        learning_rate=0.2,
        max_bins=64,
        min_samples_leaf=20,
        early_stopping=False,
    ).fit(x, y)
    ours, wanted = Forest.from_arrays(arrays).values(x_test), theirs.decision_function(x_test)
    assert roc_auc_score(y_test, ours) == pytest.approx(roc_auc_score(y_test, wanted), abs=0.005)
    assert np.corrcoef(ours, wanted)[0, 1] > 0.98
    assert roc_auc_score(y_test, ours) > 0.85


def test_a_round_of_sampled_clients_takes_the_step_of_their_pooled_rows():
    federation = Federation(dealt(*rows(600), np.random.default_rng(2).integers(0, 6, 600)))
    arrays = federation.run(10, {"min_leaf": 10}, sampled=3)
    assert len({tuple(who) for who in federation.used}) > 5
    same(arrays, replayed(federation.datas, 10, federation.used, {"min_leaf": 10}))


def test_failing_clients_are_skipped_and_a_round_without_replies_is_repeated():
    def breaks(number, server_round, reply):
        if (number + server_round) % 3 == 0 or server_round in (2, 5):
            raise RuntimeError("the line broke")
        return reply

    federation = Federation(three(600), breaks)
    arrays = federation.run(12)
    assert federation.used[1] == federation.used[4] == []
    same(arrays, replayed(federation.datas, 12, federation.used))


def bad_replies(sums):
    changed = [
        sums + change * (np.arange(len(sums)) == place % len(sums))
        for place, change in ((0, -(10**9)), (3, 10**9), (-1, 1), (-1, -1))
    ]
    return [
        [np.full(sums.shape, np.nan)],
        [sums.astype(np.float64)],
        [sums[:-1]],
        [sums[None]],
        [np.append(sums, 0)],
        *([array.astype(np.int64)] for array in changed),
        [],
        [sums, sums],
        [np.full(sums.shape, 2**62)],
    ]


@pytest.mark.parametrize("which", range(12))
def test_a_reply_that_is_no_sum_over_rows_does_not_count(which):
    def lie(number, server_round, reply):
        return (bad_replies(reply[0][0])[which], *reply[1:]) if number == 1 else reply

    same(Federation(three(300), lie).run(6), replayed(three(300), 6, [[0, 2]] * 6))


def test_more_rows_than_num_examples_do_not_count():
    """A client that multiplies its sums weighs as much as before, to the bit."""

    def boast(number, server_round, reply):
        return ([reply[0][0].astype(np.int64) * 10**6], *reply[1:]) if number == 1 else reply

    same(Federation(three(300), boast).run(8), replayed(three(300), 8, [[0, 1, 2]] * 8))


def test_a_resumed_run_and_clients_without_state_give_the_same_trees():
    datas = three(400)
    whole, first = Federation(datas).run(11), Federation(datas)
    half = first.run(7)  # in the middle of a tree
    assert half["stage"][0] == 3
    same(Federation(datas).run(11, start=half, first_round=8), whole)  # no client has kept anything
    first.states[1].clear()
    same(first.run(11, start=half, first_round=8), whole)
    other = Federation(datas)  # which kept the values of other trees
    other.run(7, {"learning_rate": 0.5})
    same(other.run(11, start=half, first_round=8), whole)


def test_kept_values_are_used_and_are_those_of_the_trees():
    x, y = rows(300)
    federation = Federation(dealt(x, y, np.zeros(len(y), int)))
    # trees 1 to 3 are finished, values are kept when a round asks
    forest = Forest.from_arrays(federation.run(9))
    facts, values = MessageStore(federation.states[0]).load("values", {}, False)
    assert facts[0] == forest.finished == 3
    np.testing.assert_array_equal(values, forest.values(x))


def test_the_run_ends_after_its_trees_and_another_model_is_refused():
    federation = Federation(three(300))
    arrays = federation.run(50, {"trees": 2})
    assert len(federation.used) == 2 + 2 * 2
    assert len(arrays["feature"]) == 2
    refused(
        lambda: federation.run(3, {"depth": 3}, start=arrays),
        "trees of depth 2 and 1 outputs, but this run has 5 features, depth = 3",
    )


def test_evaluation_scores_the_finished_trees():
    federation = Federation(three(500))
    forest = Forest.from_arrays(federation.run(8))
    scores = federation.rounds[-1].evaluated.metrics
    for number, data in enumerate(federation.datas):
        values = forest.values(data.test.x)
        assert (scores[number]["auroc"], scores[number]["loss"]) == pytest.approx(
            (
                roc_auc_score(data.test.y, values),
                np.logaddexp(0, np.where(data.test.y == 1, -values, values)).mean(),
            )
        )


def test_huge_values_are_accepted():
    x, y = rows(300)
    x[5, 0], x[6, 0] = np.inf, -np.inf
    found = Federation(dealt(x, y, np.zeros(len(y), int))).run(6)
    assert all(np.isfinite(array).all() for array in found.values())


def test_a_client_of_several_classes_is_scored():
    x, y = rows(60)
    (data,) = dealt(x, y + (x[:, 3] > 0), np.zeros(60, int))
    client, model = HistogramBoostingClient(data, outputs=3), Forest.new(5, 1, 3).to_arrays()
    _, n, scores = client.evaluate(list(model.values()), {"loss": "cross-entropy"})
    assert (n, scores["loss"], scores["accuracy"]) == (
        60,
        pytest.approx(np.log(3)),
        pytest.approx((data.test.y == 0).mean()),
    )


def test_sites_of_one_class_give_the_trees_of_the_pooled_rows(tmp_path):
    pytest.importorskip("datasets", reason="needs the extra 'app'")
    x, y = rows(300)
    table = [
        {"client": str(label), "label": label, **{f"x{f}": value for f, value in enumerate(row)}}
        for row, label in zip(x, y, strict=True)
    ]
    given = {"task": "tabular", "data.source": str(write_csv(tmp_path / "table.csv", table, {}))}
    given |= {"data.partition": "natural", "data.natural-id": "client", "data.label": "label"}
    task = build_task(read_settings(given))
    task.check(2)
    datas = [task.arrays(site, 2, scale=False) for site in range(2)]
    assert [(set(data.train.y), set(data.test.y)) for data in datas] == [({0}, {0}), ({1}, {1})]
    same(Federation(datas).run(8), replayed(datas, 8, [[0, 1]] * 8))


# --- splits by site -------------------------------------------------------------------

SMALL = {"min_leaf": 1}


def by_site():
    """Return rows of three sites, one of which has the opposite labels."""
    x, y = rows(400)
    owner = np.random.default_rng(7).choice(3, 400, p=[0.5, 0.3, 0.2])
    return x, np.where(owner == 1, 1 - y, y), owner


@pytest.mark.parametrize(
    ("loss", "more"),
    [("cross-entropy", {}), ("cross-entropy", {"outputs": 3}), ("number", {"scale": 1.0})],
)
def test_splits_by_site_are_those_of_one_site_that_has_all_rows_and_a_column_for_each(loss, more):
    """A split by site of three sites parts one from the others, as a column of zeros
    and ones does. A newcomer has no value there.
    """
    x, y, owner = by_site()
    numbers, outputs = loss == "number", more.get("outputs", 1)
    y = 2.0 * y - 1 + owner / 4 if numbers else y + (outputs - 1) // 2 * (owner == 2)
    datas = dealt(x, y[:, None] if numbers else y, owner)
    clients = [HistogramBoostingClient(data, k, **more) for k, data in enumerate(datas)]
    app = to_client_app(lambda context: clients[int(context.node_config["partition-id"])])
    options = HistogramBoostingOptions(**OPTIONS, **SMALL)
    strategy = SiteBoosting(5, options, numbers, outputs)
    grid, seen = ClientGrid(InlineGrid(app, 3), seed=3), []
    simulate(strategy, None, 0, {}, 16, {"seed": 5}, grid=grid, callbacks=[seen.append])
    forest = Forest.from_arrays({n: read(a) for n, a in seen[-1].arrays.items()})
    known = np.column_stack([x, np.eye(3)[owner]]).astype(np.float32)
    new, pooled = known.copy(), Forest.new(8, options.depth, outputs)
    new[:, 5:] = np.nan
    for _ in range(16):
        sums = pooled.sums(known, y, pooled.values(known), loss)
        pooled.step(sums, options.growth, loss, options.bins)
    assert (forest.feature == 5).sum() == (pooled.feature >= 5).sum() > 1
    np.testing.assert_array_equal(forest.of_site("").values(x), pooled.values(new))
    for k, scores in seen[-1].evaluated.metrics.items():  # each is scored with its own trees
        own, mine = forest.of_site(str(k)), owner == k
        np.testing.assert_array_equal(own.values(x[mine]), pooled.values(known[mine]))
        for name, scored in (("loss", own), ("global-loss", forest)):
            assert scores[name] == clients[k].scores(scored, datas[k].test, {"loss": loss})["loss"]


@pytest.mark.parametrize("l2", [0.0, 1.0])
def test_sites_with_the_same_rows_are_not_told_apart(l2):
    """With G_k = a_k G and H_k = a_k H no split by site gains: without lambda the
    scores of the parts add up to that of the whole, with it to less.
    """
    x, y = rows(120)
    datas = dealt(np.tile(x, (3, 1)), np.tile(y, 3), np.repeat([0, 1, 2], 120))
    known = Federation(datas, kind=SiteBoosting).run(12, {**SMALL, "l2": l2})
    same({n: known[n] for n in NAMES}, Federation(datas).run(12, {**SMALL, "l2": l2}))


def test_sites_that_are_alike_are_split_by_their_names_whatever_the_order_of_replies():
    """Two sites with the same rows, and one with too few for a leaf of its own."""
    x, y = np.zeros((40, 5), np.float32), rows(40)[1]
    own = {"b": (x, y), "a": (x, y), "c": (x[:9], 1 - y[:9])}
    everything = [np.concatenate(parts) for parts in zip(*own.values(), strict=True)]
    growth, loss = Growth(min_leaf=30, l2=0.0), "cross-entropy"
    forests = [Forest.new(5, 1), Forest.new(5, 1)]
    for forest, order in zip(forests, ("bac", "cab"), strict=True):
        while forest.stage < GROW:
            forest.step(total_of(forest, *everything), growth, loss, 16)
        sites = {name: forest.of_leaves(total_of(forest, *own[name])) for name in order}
        forest.step(total_of(forest, *everything), growth, loss, 16, sites)
    assert forests[0].feature.tolist() == [[5]]
    same(*(forest.to_arrays() for forest in forests))


def total_of(forest, x, y):
    return forest.sums(x, y, forest.values(x), "cross-entropy")


def test_a_run_with_splits_by_site_is_resumed_and_clients_may_be_sampled():
    first = Federation(dealt(*by_site()), kind=SiteBoosting)
    whole, half = first.run(11, SMALL, sampled=2), first.run(7, SMALL, sampled=2)
    same(first.run(11, SMALL, start=half, first_round=8, sampled=2), whole)
    refused(lambda: Federation(first.datas).run(11, start=half), "run method = 'site-boosting'")


def test_secure_sums_refuse_splits_by_site():
    refused(
        lambda: check_sums(SiteBoosting(5), SecureOptions()), "looks at single clients' replies"
    )


# --- alone ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["labels", "numbers"])
def test_trees_alone_are_those_of_a_federation_of_one(kind, tmp_path):
    """Every client grows what histogram boosting grows where it is the only one."""
    x, y = rows(240)
    numbers = kind == "numbers"
    loss = "number" if numbers else "cross-entropy"
    if numbers:
        y = np.nan_to_num(x[:, 0:1] + y[:, None]).astype(np.float64)
    # tested on the next client's rows
    parts = [data.train for data in dealt(x, y, np.arange(240) % 3)]
    datas = [ArrayData(part, part, parts[k - 2]) for k, part in enumerate(parts)]
    stores = [DiskStore(tmp_path / str(k), 1) for k in range(3)]

    def client(k):
        return LocalBoostingClient(datas[k], k, stores[k], 1.0 if numbers else None)

    app = to_client_app(lambda context: client(int(context.node_config["partition-id"])))
    strategy = LocalBoosting(LocalBoostingOptions(depth=2, bins=16, min_leaf=8), numbers)
    # one of three is sampled, and all train
    grid = ClientGrid(InlineGrid(app, 3), seed=3, clients_per_round=1)
    assert not arrays_of(
        simulate(strategy, None, 3, {}, 8, {"seed": 5, "checkpoint-round": 7}, grid=grid)
    )
    asked = {"server-round": 8, **strategy.evaluate_options(8, 8)}
    for k, data in enumerate(datas):
        forest = Forest.new(5, 2)
        labels = data.train.y[:, 0] if numbers else data.train.y
        for _ in range(8):
            sums = forest.sums(data.train.x, labels, forest.values(data.train.x), loss)
            forest.step(sums, Growth(8, 1.0, 0.1), loss, 16)
        assert forest.finished == 3
        kept = stores[k].load("trees", asked, before=False)
        same(Forest.from_arrays(kept).to_arrays(), forest.to_arrays())
        # a message that comes twice grows once, and nothing is sent
        assert client(k).fit([], asked)[0] == []
        assert_arrays(stores[k].load("trees", asked, before=False), kept)
        _, count, scores = client(k).evaluate([], asked)
        assert count == scores["test-samples"] == len(data.test)
        values, target = forest.values(data.test.x), data.test.y
        if numbers:
            assert scores["rmse"] == pytest.approx(np.sqrt(np.square(values - target[:, 0]).mean()))
        else:
            assert scores["accuracy"] == pytest.approx(((values > 0) == target).mean())


# --- min-cell -------------------------------------------------------------------------

# No count or sum of histogram boosting is over too few rows of a client.

WAYS = ("as it is", "one value", "two values", "missing", "ties")


def column(way, rng, n):
    x = rng.normal(size=n).astype(np.float32)
    missing = rng.random(n) < rng.choice([0.1, 0.5, 1.0])
    return {
        "as it is": x,
        "one value": np.full_like(x, 3),
        "two values": (np.arange(n) < 2).astype(np.float32),
        "missing": np.where(missing, np.float32(np.nan), x),
        "ties": np.round(x),
    }[way]


@pytest.mark.parametrize("way", WAYS)
def test_groups_are_of_neighbours_and_large_enough_on_both_sides(way):
    rng = np.random.default_rng(0)
    for _ in range(50):
        x, sides = column(way, rng, 30), np.sort(rng.integers(0, 2, 30))
        out = merged(x, sides, 4)
        np.testing.assert_array_equal(
            out[np.argsort(x)], np.sort(out)
        )  # neighbours, missing values last
        assert set(out[~np.isnan(out)]) <= set(x)
        for side in (0, 1):
            _, rows = np.unique(out[sides == side], return_counts=True)
            assert min(rows, default=4) >= 4


def test_groups_by_hand():
    none = np.zeros(8, int)
    x = np.array([5.0, 1, 2, 3, 9, 7, 8, np.nan])
    np.testing.assert_array_equal(merged(x, none, 3), [8, 2, 2, 2, 8, 8, 8, 8])
    np.testing.assert_array_equal(merged(x, none, 1), x)
    np.testing.assert_array_equal(merged(x[:0], none[:0], 3), [])
    # the last row is alone on its side, but for the first ones
    np.testing.assert_array_equal(merged(np.arange(5), np.array([1, 1, 0, 0, 1]), 2), [2] * 5)
    refused(lambda: merged(x[:2], none[:2], 3), "a group needs 3")


def sites(rng, count=6, rows=30):
    out = []
    for _ in range(count):
        x = np.stack([column(way, rng, rows) for way in (*WAYS, "as it is")], 1)
        part = ArraySplit(
            x, (np.nan_to_num(x[:, 0] + x[:, 5]) + rng.normal(size=rows) > 0).astype(np.int64)
        )
        out.append(ArrayData(part, part, part))
    return out


@pytest.mark.parametrize("least", [2, 5])
def test_no_number_that_leaves_a_site_is_over_fewer_rows(least):
    clients = [
        HistogramBoostingClient(data, min_cell=least) for data in sites(np.random.default_rng(1))
    ]
    forest, merges = Forest.new(6, 3), 0
    for now in range(2 + 3 * 5):
        config = {"loss": "cross-entropy", "sums": forest.length(), "server-round": now + 1}
        arrays = list(forest.to_arrays().values())
        sums = [client.fit(arrays, config)[0][0].astype(np.int64) for client in clients]
        assert not any(forest.fault(own, "cross-entropy") for own in sums)
        if forest.stage < GROW:
            rows = [own[2:] for own in sums]
        else:
            rows = [own.reshape(-1, 3, int(widths(forest.edges).sum()))[:, 2] for own in sums]
        assert all(np.all((own == 0) | (own >= least)) for own in rows)
        if forest.stage > GROW:  # rows that the level above reports together stay together
            for client in clients:
                above, wide = replace(forest, stage=forest.stage - 1).binned(client.inputs(), least)
                _, fine = forest.binned(client.inputs(), least)
                for leaf, f in product(np.unique(above), range(6)):
                    pairs = np.stack([wide[above == leaf, f], fine[above == leaf, f]])
                    assert len(np.unique(pairs, axis=1).T) == len(np.unique(pairs[0]))
                    merges += len(np.unique(pairs[1])) < len(np.unique(pairs[0]))
        forest.step(np.sum(sums, axis=0), Growth(5, 1.0, 0.3), "cross-entropy", 16)
    assert merges > 50


def test_a_client_with_fewer_rows_does_not_train():
    (data,) = sites(np.random.default_rng(1), 1)
    arrays = list(Forest.new(6, 3).to_arrays().values())
    refused(
        lambda: HistogramBoostingClient(data, min_cell=31).fit(arrays, {"loss": "cross-entropy"}),
        "30 training rows, but min-cell = 31",
    )


@pytest.mark.parametrize("task", ["tabular", "regression"])
def test_the_setting_reaches_the_client(task):
    settings = read_settings(
        {
            "task": task,
            "method": "histogram-boosting",
            "num-clients": 3,
            "histogram-boosting.min-cell": 7,
        }
    )
    for values in (
        build_client(settings, build_task(settings), 0, 3, MessageStore(RecordDict())).inputs().T
    ):
        assert np.unique(values, return_counts=True)[1].min() >= 7
