"""What the demo came to: successes counted, the graph's figures, warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from vla_ros.tools.demo_course import Course
from vla_ros.tools.demo_view import BY_US, MARKS
from vla_ros.tools.summary import Summary, figure_rows, labelled


def course_notes(course: Course, warnings: Sequence[str]) -> dict[str, Any]:
    """For `summary.json`, first of all: the sentences and their count."""
    return {'done': course.done, 'judged': course.judged,
            'sentences': [turn.json() for turn in course.turns], 'warnings': list(warnings)}


def not_by_us(stops: Mapping[str, tuple[int, float]]) -> dict[str, tuple[int, float]]:
    """The stops that nobody asked for."""
    return {cause: stop for cause, stop in stops.items() if not cause.startswith(BY_US)}


def course_table(course: Course, summary: Summary, warnings: Sequence[str],
                 files: Sequence[str]) -> RenderableType:
    """The summary for people."""
    rows = labelled(f'What the demo came to: {course.score}')
    for index, turn in enumerate(course.turns):
        mark, style = MARKS[turn.end] if turn.end is not None else ('', '')
        rows.add_row('' if index else 'sentences', Text(f'{mark} ', style) + Text(
            turn.cue.sentence, '') + Text(f'  {turn.news}', 'bright_black'))
    for label, text in figure_rows(summary):
        rows.add_row(label, text)
    infer = summary.latencies_ms.get('infer')
    if infer:
        rows.add_row('policy', f'p50 {infer["p50"]:.1f} ms, p99 {infer["p99"]:.1f} ms for one '
                     'inference')
    for line in warnings:
        rows.add_row('warning', Text(line, 'yellow'))
    for file in files:
        rows.add_row('file', Text(file))
    return Group(Text(), rows)
