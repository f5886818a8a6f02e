"""The critical-difference diagram."""

from lit_fed.pictures.critical_difference import MOST, critical_difference_diagram, level_groups


def test_groups_are_the_largest_ones():
    assert level_groups([1.0, 1.2, 1.4, 3.0, 3.1], 0.5) == [(0, 2), (3, 4)]
    assert level_groups([1.0, 3.0], 0.5) == []


def test_the_diagram_has_the_names_the_best_first_and_a_bar_for_each_group():
    figure = critical_difference_diagram({"b_2": 2.0, "a": 1.0, "c": 4.0}, 1.5)
    (axes,) = figure.axes
    said = [text.get_text() for text in axes.texts]
    assert said == ["critical difference 1.50", "a 1.0", "b_2 2.0", "c 4.0"]
    thick = [
        line.get_xdata().tolist() if hasattr(line.get_xdata(), "tolist") else line.get_xdata() for line in axes.lines
    ]
    assert [1.0, 2.0] in [list(one) for one in thick]
    many = critical_difference_diagram({f"a{one}": float(one) for one in range(60)}, 9.0)
    assert len(many.axes[0].texts) == MOST + 1
