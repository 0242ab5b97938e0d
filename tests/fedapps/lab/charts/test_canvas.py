"""Plots: ticks and limits by hand, the content of SVG, and the files that Matplotlib
draws.
"""

import io
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from fedapps.lab.charts import canvas
from fedapps.lab.charts.axes import Axis, Panel, plain, round_numbers
from fedapps.lab.charts.canvas import Area, Dots, Line, Text, text_width
from fedapps.lab.charts.drawing import (
    Figure,
    gradient,
    heat,
    heat_key,
    label_values,
    legend,
    line,
    one_panel,
    panels,
    percents,
    svg,
)
from fedapps.lab.charts.files import file
from fedapps.lab.charts.theme import THEME, Colour

SIZE = (36.0, 18.0)  # points: 80 x 40 pixels
BLACK, WHITE, RED, BLUE = (
    Colour(code, code) for code in ("#000000", "#ffffff", "#ff0000", "#0000ff")
)


def pixels(*shapes):
    """The colours (40, 80, 3) of a small white picture that Matplotlib has drawn."""
    figure = Figure(SIZE, 1, [Panel()])
    figure.shapes = lambda: shapes
    with Image.open(io.BytesIO(file(figure, "png"))) as picture:
        return np.asarray(picture.convert("RGB")).astype(int)


@pytest.mark.parametrize(
    ("low", "high", "most", "whole", "expected"),
    [
        (0, 1, 5, False, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0.31, 0.87, 4, False, [0.4, 0.6, 0.8]),
        (-3, 3, 4, False, [-2, 0, 2]),
        (0.8, 2.2, 8, True, [1, 2]),
        (1, 40, 8, True, [5, 10, 15, 20, 25, 30, 35, 40]),
        (0, 3e9, 3, False, [0, 1e9, 2e9, 3e9]),
    ],
)
def test_ticks_are_round_numbers_within_the_limits(low, high, most, whole, expected):
    assert round_numbers(low, high, most, whole) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("write", "ticks", "texts"),
    [
        (plain, [0.5, 0.75, 1.0], ["0.50", "0.75", "1.00"]),
        (plain, [-2.0, 0.0, 2.0], ["\N{MINUS SIGN}2", "0", "2"]),
        (plain, [0.0, 1e6], ["0", "1e+06"]),
        (plain, [0.0, 2e-5, 4e-5], ["0", "2e\N{MINUS SIGN}05", "4e\N{MINUS SIGN}05"]),
        (plain, [], []),
        (percents, [0.1, 0.2], ["10", "20"]),
        (percents, [0.99, 0.995], ["99.0", "99.5"]),
    ],
)
def test_texts_of_ticks(write, ticks, texts):
    assert write(ticks) == texts


def test_long_texts_of_ticks_have_room():
    axis = Axis()
    _, narrow = axis.marks(0, 700_000, 120, horizontal=True)
    assert sum(text_width(text, axis.size) for text in narrow) < 120
    assert len(axis.marks(0, 7, 240, horizontal=True)[0]) == 8


@pytest.mark.parametrize(
    ("axis", "values", "on_zero", "limits"),
    [
        (Axis(), [1.0, np.nan, 3.0, np.inf, 2.0], False, (0.9, 3.1)),
        (Axis(), [0.0, 2.0], True, (0, 2.1)),
        (Axis(low=0), [1.0, 3.0], False, (0, 3.1)),
        (Axis(), [5.0], False, (4.75, 5.25)),
        (Axis(low=0), [-5.0], False, (0, 1.0)),
    ],
)
def test_limits(axis, values, on_zero, limits):
    assert axis.limits([np.array(values)], on_zero) == pytest.approx(limits)


@pytest.mark.parametrize(
    "wild", [[np.nan], [1e308, -1e308], [1e16, 1e16 + 2], [0.0], [1e-320, 0.0], []]
)
def test_wild_values_have_limits_and_ticks(wild):
    low, high = Axis().limits([np.array(wild)], touches_zero=False)
    assert low < high
    assert len(plain(round_numbers(low, high, 5))) <= 6


def test_pixels_of_shapes():
    square = np.array([[4.5, 4.5], [13.5, 4.5], [13.5, 13.5], [4.5, 13.5]])
    seen = pixels(Area((square,), BLUE, 0.5), Line(np.array([[18.0, 9.0], [36.0, 9.0]]), RED, 1.8))
    assert seen[20, 20].tolist() == pytest.approx([127, 127, 255], abs=1)
    assert seen[20, 60].tolist() == [255, 0, 0]
    assert seen[4, 60].tolist() == [255, 255, 255]
    dotted = pixels(Line(np.array([[0.0, 9.0], [36.0, 9.0]]), RED, 1.8, (9.0, 9.0)))
    assert [dotted[20, x, 1] for x in (10, 30, 50, 70)] == [0, 255, 0, 255]
    # the ends of a disc, and of texts: above, below, left, right
    assert extent(Dots(np.array([[9.0, 9.0]]), BLACK, 9)) == pytest.approx((10, 30, 10, 30), abs=2)
    top, bottom, left, right = extent(Text(np.array([[4.5, 9.0]]), "lll", 9, BLACK))
    assert (9 <= left <= 14, bottom) == (True, pytest.approx(20, abs=1))
    assert right - left < 80 * text_width("lll", 9) / 36
    top, bottom, left, right = extent(Text(np.array([[18.0, 13.5]]), "lll", 9, BLACK, upright=True))
    assert (bottom, right) == (pytest.approx(29, abs=2), pytest.approx(40, abs=2))
    assert top > 10


def extent(shape):
    rows, columns = np.nonzero(pixels(shape)[:, :, 0] < 128)
    return rows.min(), rows.max(), columns.min(), columns.max()


def test_unprintable_characters_are_removed_from_texts():
    text = Text(np.array([[1.0, 9.0]]), "<a href='x'>&\x00\ud800\n\u202e$\\frac", 9, BLACK)
    assert pixels(text).min() < 128
    (element,) = ElementTree.fromstring(canvas.svg([text], SIZE, WHITE)).findall("{*}text")
    assert element.text == "<a href='x'>&    $\\frac"


def test_missing_numbers_leave_gaps():
    figure, axes = one_panel("Gaps")
    line(axes, range(6), [1, 2, np.nan, 4, np.inf, 6], THEME.series[0], label="seen once")
    legend(figure, axes)
    lines = [shape.points[:, 0].tolist() for shape in axes.shapes if isinstance(shape, Line)]
    assert lines == [[0, 1], [3], [5]]
    assert [label for label, _ in figure.legend] == ["seen once"]
    nothing, axes = one_panel("Nothing")
    line(axes, [1, 2], [np.nan, np.nan], THEME.series[0], label="a")
    label_values(axes, "accuracy", "")
    for drawn in (figure, nothing):
        assert file(drawn, "png")
        assert b"nan" not in svg(drawn)


def test_shapes_are_within_the_canvas_and_texts_do_not_cover_data():
    figure, axes = panels(2, 2, (6, 5))
    for panel in axes[:3]:
        line(
            panel,
            [1, 2],
            [1e5, 3e5],
            THEME.series[0],
            label="a rather long label in the legend below",
        )
        panel.x.label, panel.y.label, panel.heading = "x", "y", "two\nlines"
    axes[3].hidden = True
    legend(figure, axes[0])
    for shape in figure.shapes():
        points = np.concatenate(shape.rings) if isinstance(shape, Area) else shape.points
        assert ((points >= 0) & (points <= figure.size)).all()
    assert sum(isinstance(shape, Text) and shape.text == "lines" for shape in figure.shapes()) == 3


def test_heat_map_merges_equal_neighbours_and_omits_unknown_cells():
    figure, axes = one_panel("Heat")
    heat(axes, np.array([[0.0, 0.0, 1.0], [np.nan, 1.0, 1.0]]), (0, 1), ([0, 1, 2, 3], [0, 1, 2]))
    heat_key(axes, (0, 1), "key")
    rings = {shape.colour: [ring.tolist() for ring in shape.rings] for shape in axes.shapes}
    assert {colour: rings[colour] for colour in (THEME.grid, THEME.ink)} == {
        THEME.grid: [[[0, 1], [0, 0], [2, 0], [2, 1]]],
        THEME.ink: [[[2, 1], [2, 0], [3, 0], [3, 1]], [[1, 2], [1, 1], [3, 1], [3, 2]]],
    }
    assert "key" in [shape.text for shape in figure.shapes() if isinstance(shape, Text)]
    assert file(figure, "png")


def test_a_figure_as_a_file_has_the_colours_of_one_scheme():
    figure, axes = one_panel("Both")
    axes.line([0, 1], [0, 1], THEME.series[0])
    for dark in (False, True):
        drawing = svg(figure, dark).decode()
        for colour in (THEME.surface, THEME.ink, THEME.series[0]):
            assert colour.of(dark) in drawing
            assert colour.of(not dark) not in drawing
        with Image.open(io.BytesIO(file(figure, "png", dark))) as picture:
            corner = picture.convert("RGB").getpixel((0, 0))
        assert corner == tuple(bytes.fromhex(THEME.surface.of(dark)[1:]))


def test_gradient():
    assert gradient((BLACK, RED, Colour("#ffffff", "#000000")), 5) == [
        BLACK,
        Colour("#800000", "#800000"),
        RED,
        Colour("#ff8080", "#800000"),
        Colour("#ffffff", "#000000"),
    ]
