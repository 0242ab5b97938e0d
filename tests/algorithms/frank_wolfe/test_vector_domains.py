import itertools
from unittest.mock import Mock

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.linalg import aslinearoperator

from fedapps.algorithms.frank_wolfe.domain import Entry, Product
from fedapps.algorithms.frank_wolfe.matrix_domains import (
    Birkhoff,
    GroupL1,
    NuclearBall,
    Spectrahedron,
    smallest_eigenvector,
)
from fedapps.algorithms.frank_wolfe.vector_domains import L1Ball, L2Ball
from tests.domains import ALL, POLYTOPES, ROUND
from tests.helpers import refused


def vertices(domain) -> list[np.ndarray]:
    """Every extreme point of a polytope, by enumeration."""
    if isinstance(domain, L1Ball):
        return [
            (sign * domain.radius * row).reshape(domain.shape)
            for row in np.eye(np.prod(domain.shape))
            for sign in (1, -1)
        ]
    if isinstance(domain, GroupL1):
        rows, columns = domain.shape
        one = [sign * domain.radius * row for row in np.eye(rows) for sign in (1, -1)]
        return [np.stack(choice, axis=1) for choice in itertools.product(one, repeat=columns)]
    if isinstance(domain, Birkhoff):
        return [
            np.eye(len(order))[list(order)]
            for order in itertools.permutations(range(domain.shape[0]))
        ]
    return [domain.join(parts) for parts in itertools.product(*map(vertices, domain.domains))]


def directions(domain, seed=0, count=12):
    """Random gradients, some with ties, zeros and single entries, and 0 itself."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield from (
            rng.normal(size=domain.shape),
            rng.integers(-2, 3, domain.shape).astype(float),
            rng.normal(size=domain.shape) * rng.integers(0, 2, domain.shape),
        )
    yield from (
        np.zeros(domain.shape),
        np.ones(domain.shape),
        -np.ones(domain.shape, np.float32),
        1e200 * rng.normal(size=domain.shape),
        1e-200 * rng.normal(size=domain.shape),
    )


@pytest.mark.parametrize("domain", POLYTOPES, ids=str)
def test_no_vertex_is_better_than_the_oracles(domain):
    every = vertices(domain)
    for g in directions(domain):
        atom = domain.lmo(g).dense()
        assert np.vdot(g, atom) == pytest.approx(
            min(float(np.vdot(g, vertex)) for vertex in every),
            rel=1e-12,
            abs=1e-12 * float(np.abs(g).max()),
        )
        assert any(np.array_equal(atom, vertex) for vertex in every)


@pytest.mark.parametrize("domain", [d for d in ROUND if isinstance(d, NuclearBall)], ids=str)
def test_the_nuclear_oracle_finds_the_top_singular_value(domain):
    for g in directions(domain):
        atom = domain.lmo(g)
        top = np.linalg.norm(np.asarray(g, float), 2)
        assert np.vdot(g / max(top, 1e-300), atom.dense()) == pytest.approx(
            -domain.radius * (top > 0), rel=1e-6
        )
        assert np.linalg.norm(atom.dense(), "nuc") == pytest.approx(domain.radius)


def test_the_spectrahedrons_oracle_finds_the_smallest_eigenvalue():
    domain = Spectrahedron((7, 7), 3.0, tolerance=1e-9)
    for g in directions(domain):
        least = np.linalg.eigvalsh((np.asarray(g, float) + np.asarray(g, float).T) / 2)[0]
        atom = domain.lmo(g).dense()
        assert np.vdot(g, atom) == pytest.approx(
            3 * least, rel=1e-6, abs=1e-9 * float(np.abs(g).max())
        )
        assert domain.contains(atom)


def test_the_l2_oracle_is_the_opposite_direction():
    for g in directions(domain := L2Ball((3, 4), 2.0)):
        atom = domain.lmo(g).dense()
        assert np.linalg.norm(atom) == pytest.approx(2.0)
        if g.any():
            np.testing.assert_allclose(
                atom, -2.0 * (g / np.abs(g).max()) / np.linalg.norm(g / np.abs(g).max()), atol=1e-7
            )


@pytest.mark.parametrize(
    ("domain", "g", "expected"),
    [
        (L1Ball(4, 2.0), [1, -3, 3, -3], [0, 2, 0, 0]),
        (L1Ball(3, 2.0), [0, 0, 0], [-2, 0, 0]),
        (L2Ball(3, 2.0), [0, 0, 0], [-2, 0, 0]),
        (NuclearBall((2, 3), 2.0), np.zeros((2, 3)), [[-2, 0, 0], [0, 0, 0]]),
        (Spectrahedron((2, 2), 2.0), np.zeros((2, 2)), [[2, 0], [0, 0]]),
        (Birkhoff((3, 3)), np.zeros((3, 3)), np.eye(3)),
        (GroupL1((2, 2), 1.0), [[1, 0], [-1, 0]], [[-1, -1], [0, 0]]),
    ],
    ids=str,
)
def test_ties_go_to_the_lowest_index(domain, g, expected):
    np.testing.assert_array_equal(domain.lmo(np.asarray(g, float)).dense(), expected)


@pytest.mark.parametrize("domain", ALL, ids=str)
def test_an_atom_is_the_same_dense_packed_or_added(domain):
    rng = np.random.default_rng(1)
    for g in directions(domain, seed=2, count=4):
        atom = domain.lmo(g)
        packed = atom.pack()
        assert len(packed) == domain.num_arrays
        assert atom.num_bytes == sum(array.nbytes for array in packed)
        np.testing.assert_array_equal(domain.unpack(packed).dense(), atom.dense())
        assert atom.shape == domain.shape == atom.dense().shape
        assert domain.contains(atom.dense())
        x = rng.normal(size=domain.shape)
        expected = x + 0.3 * atom.dense()
        atom.add_to(x, 0.3)
        np.testing.assert_allclose(x, expected, atol=1e-6 if g.dtype == np.float32 else 1e-12)
        if float(np.abs(g).max()) < 1e100:
            assert atom.inner(g) == pytest.approx(
                float(np.vdot(g, atom.dense())), rel=1e-5, abs=1e-9
            )


@pytest.mark.parametrize("order", ["C", "F", "sliced", "float32"])
def test_adding_works_in_place_whatever_the_memory_layout(order):
    rng = np.random.default_rng(3)
    for domain in (
        NuclearBall((3, 4), 2.0),
        L1Ball((3, 4), 1.0),
        GroupL1((3, 4), 1.0),
    ):
        whole = np.zeros(
            (6, 4),
            np.float32 if order == "float32" else np.float64,
            order="F" if order == "F" else "C",
        )
        x = whole[::2] if order in ("F", "sliced") else whole[:3]
        atom = domain.lmo(rng.normal(size=(3, 4)))
        atom.add_to(x, 2.0)
        np.testing.assert_allclose(x, 2 * atom.dense(), rtol=1e-6)
        assert np.shares_memory(x, whole)


def test_bytes_of_atoms():
    """Those of l1 balls are twelve, whatever the dimension."""
    g = np.random.default_rng(0).normal(size=(12, 12))
    sizes = {
        L1Ball((12, 12), 2.5): 12,
        GroupL1((12, 12), 1.0): 12 * 12,
        Birkhoff((12, 12)): 12 * 4,
        NuclearBall((12, 12), 1.0): 24 * 8,
        Spectrahedron((12, 12)): 12 * 8,
    }
    assert {domain: domain.lmo(g).num_bytes for domain in sizes} == sizes
    assert NuclearBall((12, 12), 1.0).lmo(g.astype(np.float32)).num_bytes == 24 * 4
    assert Entry(7, -2.5, (10_000_000,)).num_bytes == 12


I32 = np.int32
HOSTILE = [
    (L1Ball(4, 2.0), [np.array([4], I32), np.array([2.0])]),
    (L1Ball(4, 2.0), [np.array([-1], I32), np.array([2.0])]),
    (L1Ball(4, 2.0), [np.array([1], I32), np.array([1e9])]),
    (L1Ball(4, 2.0), [np.array([1], I32), np.array([np.nan])]),
    (L1Ball(4, 2.0), [np.array([1.0]), np.array([2.0])]),
    (L1Ball(4, 2.0), [np.zeros(10**7, I32), np.zeros(10**7)]),
    (L1Ball(4, 2.0), [np.array(1, I32), np.array(2.0)]),
    (L1Ball(4, 2.0), [np.array([1], I32)]),
    (L1Ball(4, 2.0), []),
    (L1Ball(4, 2.0), [np.array(["1"]), np.array([2.0])]),
    (L1Ball(4, 2.0), [np.array([2**60]), np.array([2.0])]),
    (L2Ball(3, 1.0), [np.ones(3)]),
    (L2Ball(3, 1.0), [np.array([1, 0, np.inf])]),
    (L2Ball((3, 1), 1.0), [np.ones((1, 3)) / np.sqrt(3)]),
    (GroupL1((3, 2), 1.0), [np.array([0, 2], I32), np.ones(2)]),
    (GroupL1((3, 2), 1.0), [np.array([0, 7], I32), np.ones(2)]),
    (GroupL1((3, 2), 1.0), [np.array([0, 1], I32), np.array([1.0, 2.0])]),
    (NuclearBall((2, 3), 1.0), [np.array([1.0, 0.0]), np.array([2.0, 0.0, 0.0])]),
    (NuclearBall((2, 3), 1.0), [np.array([1.0, 0.0]), np.array([np.nan, 0.0, 0.0])]),
    (NuclearBall((2, 3), 1.0), [np.array([1.0, 0.0, 0.0]), np.array([1.0, 0.0])]),
    (NuclearBall((2, 3), 1.0), [np.array([[1.0, 0.0]]), np.array([1.0, 0.0, 0.0])]),
    (Spectrahedron((2, 2)), [np.zeros(2)]),
    (Birkhoff((3, 3)), [np.array([0, 1, 1], I32)]),
    (Birkhoff((3, 3)), [np.array([0, 1, 3], I32)]),
    (Birkhoff((3, 3)), [np.array([0, 1], I32)]),
    (Birkhoff((3, 3)), [np.eye(3)]),
    (Product((L1Ball(2, 1.0), Birkhoff((1, 1)))), [np.array([0], I32), np.array([1.0])]),
    (
        Product((L1Ball(2, 1.0), Birkhoff((1, 1)))),
        [np.array([0], I32), np.array([3.0]), np.zeros(1, I32)],
    ),
]


@pytest.mark.parametrize(("domain", "arrays"), HOSTILE, ids=lambda value: str(value)[:40])
def test_what_is_no_atom_is_refused(domain, arrays):
    refused(lambda: domain.unpack(arrays), r"atom|entry")


@pytest.mark.parametrize("domain", [d for d in ALL if d.projects], ids=str)
def test_projections_satisfy_the_optimality_condition(domain):
    # P is the projection of v onto a convex set exactly if <v - P, z - P> <= 0 for all
    # z in it: the oracle finds the worst z.
    rng = np.random.default_rng(6)
    for scale in (0.01, 1.0, 100.0):
        v = scale * rng.normal(size=domain.shape)
        projected = domain.project(v)
        assert domain.contains(projected, 1e-9)
        assert np.vdot(v - projected, domain.lmo(projected - v).dense() - projected) <= 1e-8 * max(
            1, scale
        ) * max(1, domain.diameter)
        np.testing.assert_allclose(domain.project(projected), projected, atol=1e-9)


@pytest.mark.parametrize("domain", [d for d in ALL if d.projects], ids=str)
def test_a_domain_contains_what_its_projection_leaves_alone(domain):
    rng = np.random.default_rng(15)
    for scale in np.geomspace(0.02, 2, 40):
        v = domain.start() + scale * domain.diameter * rng.uniform(-1, 1, domain.shape) / np.sqrt(
            np.prod(domain.shape)
        )
        assert domain.contains(v) == np.allclose(
            domain.project(v), v, rtol=0, atol=1e-6 * (1 + domain.diameter)
        )


@pytest.mark.parametrize("domain", ALL, ids=str)
def test_the_start_lies_inside_and_a_little_more_than_a_vertex_outside(domain):
    assert domain.contains(domain.start())
    vertex = domain.lmo(np.random.default_rng(7).normal(size=domain.shape)).dense()
    assert domain.contains(vertex)
    if domain.diameter > 0:
        assert not domain.contains(vertex + 1e-3 * (vertex - domain.start()))
    assert not domain.contains(np.full(domain.shape, np.nan))
    refused(lambda: domain.contains(np.zeros((*domain.shape, 2))), "shape")


@pytest.mark.parametrize("domain", POLYTOPES, ids=str)
def test_the_diameter_is_the_largest_distance_of_two_vertices(domain):
    every = np.array([vertex.ravel() for vertex in vertices(domain)])
    assert domain.diameter == pytest.approx(
        max(np.linalg.norm(every - vertex, axis=1).max() for vertex in every), abs=1e-12
    )


@pytest.mark.parametrize("domain", ROUND, ids=str)
def test_no_two_atoms_are_further_apart_than_the_diameter(domain):
    atoms = [
        domain.lmo(sign * g).dense()
        for g in np.random.default_rng(8).normal(size=(30, *domain.shape))
        for sign in (1, -1)
    ]
    largest = max(np.linalg.norm(one - other) for one in atoms for other in atoms)
    assert largest <= domain.diameter * (1 + 1e-9)
    assert largest >= 0.7 * domain.diameter


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("domain", ALL, ids=str)
def test_a_gradient_that_is_not_finite_is_refused(domain, value):
    for place in (0, -1):
        g = np.random.default_rng(9).normal(size=domain.shape)
        g.flat[place] = value
        with np.errstate(all="ignore"), pytest.raises(ValueError, match="not finite"):
            domain.lmo(g)


@pytest.mark.parametrize("domain", ALL, ids=str)
def test_a_gradient_of_another_shape_is_refused(domain):
    for shape in ((*domain.shape, 1), (np.prod(domain.shape) + 1,), ()):
        refused(lambda: domain.lmo(np.zeros(shape)), "shape")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: L1Ball(3, 0.0), "radius = 0.0"),
        (lambda: L1Ball(3, np.nan), "radius = nan"),
        (lambda: L1Ball(3, -1.0), "radius = -1.0"),
        (lambda: L2Ball(3, np.inf), "radius = inf"),
        (lambda: L1Ball(0, 1.0), "shape = 0"),
        (lambda: L1Ball((2**20, 2**20), 1.0), "fewer than 2"),
        (lambda: GroupL1((3,), 1.0), "rows, columns"),
        (lambda: NuclearBall((3, 3), 0.0), "radius = 0.0"),
        (lambda: NuclearBall((3,), 1.0), "rows, columns"),
        (lambda: Spectrahedron((2, 3)), r"\(q, q\)"),
        (lambda: Birkhoff((2, 3)), r"\(q, q\)"),
        (lambda: Birkhoff((2, 2, 2)), r"\(q, q\)"),
        (lambda: Product(()), "at least one"),
        (lambda: Birkhoff((3, 3)).project(np.eye(3)), "use a Frank-Wolfe"),
    ],
)
def test_a_domain_that_makes_no_sense_is_refused(make, message):
    refused(make, message)


def test_a_product_goes_between_layers_and_one_row():
    domain = Product((L1Ball((2, 3), 1.0), L2Ball(2, np.sqrt(2))))
    layers = [np.arange(6.0).reshape(2, 3), np.array([6.0, 7.0])]
    row = domain.join(layers)
    np.testing.assert_array_equal(row, np.arange(8.0))
    for layer, part in zip(layers, domain.split(row), strict=True):
        np.testing.assert_array_equal(layer, part)
        assert np.shares_memory(part, row)
    assert domain.diameter == pytest.approx(np.sqrt(4 + 8))
    assert domain.projects
    assert not Product((Birkhoff((2, 2)), L1Ball(2, 1.0))).projects
    refused(lambda: domain.join(layers[:1]), "1 arrays for a Product of 2")
    refused(lambda: domain.join(layers[::-1]), "shape")
    np.testing.assert_array_equal(L1Ball(3, 1.0).join(L1Ball(3, 1.0).split(np.ones(3))), np.ones(3))


@pytest.mark.parametrize("shape", [(60, 90), (90, 60)])
def test_the_nuclear_oracle_takes_operators_and_float32(shape):
    rng = np.random.default_rng(10)
    dense = rng.normal(size=shape) * (rng.random(shape) < 0.2)
    top = np.linalg.norm(dense, 2)
    domain = NuclearBall(shape, 3.0, tolerance=1e-6)
    for g in (
        dense,
        aslinearoperator(csr_array(dense)),
        dense.astype(np.float32),
    ):
        atom = domain.lmo(g)
        assert atom.inner(g) == pytest.approx(-3 * top, rel=1e-5)
        assert atom.u.dtype == atom.v.dtype == g.dtype
        # the same atom every time
        np.testing.assert_array_equal(domain.lmo(g).dense(), atom.dense())


@pytest.mark.parametrize("tolerance", [0.3, 0.1, 0.01])
def test_the_oracles_tolerance_bounds_what_it_loses(tolerance):
    # A residual of r relative to sigma^2 leaves an eigenvalue of G G' within r sigma^2,
    # in practice the top one.
    rng = np.random.default_rng(11)
    lost = []
    for _ in range(20):
        g = rng.normal(size=(50, 70))
        lost.append(1 + NuclearBall(g.shape, 1.0, tolerance).lmo(g).inner(g) / np.linalg.norm(g, 2))
    assert min(lost) > -1e-12
    assert max(lost) < tolerance


def test_a_warm_start_saves_products_and_one_that_is_orthogonal_does_no_harm():
    g = np.random.default_rng(12).normal(size=(80, 100))
    u, sizes, vt = np.linalg.svd(g)
    domain = NuclearBall(g.shape, 1.0, tolerance=1e-6)
    exact = domain.lmo(g)
    products = []
    for warm in (None, exact):
        counted = Mock(wraps=aslinearoperator(g), shape=g.shape, dtype=g.dtype)
        domain.lmo(counted, warm)
        products.append(counted.matvec.call_count)
    assert products[1] < products[0]
    # a singular pair: Lanczos started from it alone would end there
    second = type(exact)(u[:, 1], vt[1], -1.0)
    assert domain.lmo(g, second).inner(g) == pytest.approx(-sizes[0], rel=1e-5)
    assert domain.lmo(g, L1Ball(3, 1.0).lmo(np.zeros(3))).inner(g) == pytest.approx(
        -sizes[0], rel=1e-5
    )


def test_lanczos_finds_the_smallest_eigenvalue_of_a_large_matrix_with_few_products():
    rng = np.random.default_rng(13)
    q = 300
    basis, _ = np.linalg.qr(rng.normal(size=(q, q)))
    matrix = (basis * np.concatenate([[-5.0], rng.uniform(-1, 1, q - 1)])) @ basis.T
    theta, vector, products = smallest_eigenvector(
        lambda v: matrix @ v, rng.normal(size=q), 1e-8, 200
    )
    assert (theta, abs(vector @ basis[:, 0])) == (pytest.approx(-5), pytest.approx(1))
    assert products < 30
    theta, vector, products = smallest_eigenvector(
        lambda v: matrix @ v, rng.normal(size=q), 1e-8, 5
    )
    assert (products, theta) == (5, pytest.approx(vector @ matrix @ vector))


def test_lanczos_with_full_length_is_exact_and_stops_where_the_space_is_used_up():
    rng = np.random.default_rng(14)
    half = rng.normal(size=(12, 12))
    matrix = half + half.T
    theta, _, products = smallest_eigenvector(lambda v: matrix @ v, rng.normal(size=12), 0.0, 100)
    assert (theta, products) == (pytest.approx(np.linalg.eigvalsh(matrix)[0], abs=1e-12), 12)
    # what is left of a product becomes as small as its rounding errors
    steep = np.diag(-np.geomspace(1e-15, 1, 40))
    theta, vector, _ = smallest_eigenvector(lambda v: steep @ v, np.ones(40), 0.0, 40)
    assert (theta, abs(vector[-1])) == (pytest.approx(-1, abs=1e-13), pytest.approx(1, abs=1e-13))
    # two eigenvalues: two products span all that can be reached
    projector = np.diag([0.0, 0, 0, -1, -1])
    assert smallest_eigenvector(lambda v: projector @ v, np.ones(5), 0.0, 100)[2] == 2
