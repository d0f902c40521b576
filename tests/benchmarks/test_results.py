"""The file of benchmark results: sections stay apart and in their places whatever is written again."""

from benchmarks.results import write_section


def test_sections_are_replaced_in_place(tmp_path):
    path = tmp_path / "RESULTS.md"
    for title, value in (("one", "1"), ("two", "2"), ("three", "3"), ("two", "22"), ("one", "11"), ("three", "33")):
        write_section(title, f"python -m {title}", ["a", "b"], [[value, "x"]], path)
    text = path.read_text()
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## one", "## two", "## three"]
    assert [line for line in text.splitlines() if line.endswith("| x |")] == ["| 11 | x |", "| 22 | x |", "| 33 | x |"]
    assert text.count("\n\n## ") == 3 and "\n\n\n" not in text and text.endswith("|\n")
