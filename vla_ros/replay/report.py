"""The report: one HTML file with everything in it, of one run or of two side by side."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_ros.core.types import NS_PER_S
from vla_ros.replay.figures import flat, stage_times_ms
from vla_ros.replay.job import PICTURES, TRACE, Done
from vla_ros.replay.trace import Trace

NAME = 'report.html'
EMPTY = -32768
BINS = 40
MOST_RUNS = 2
CARDS = (('of the time active', 'active_share', ''), ('held or starved', 'starved_s', ' s'),
         ('holds', 'holds.total', ''), ('clips', 'clips.total', ''),
         ('capture → command, p50', 'latency_ms.first_command.p50', ' ms'),
         ('capture → command, p99', 'latency_ms.first_command.p99', ' ms'),
         ('deadline misses', 'deadline_misses', ''), ('dropped', 'drops.total', ''),
         ('action error, of holding still', 'action_error.of_hold', ''),
         ('action error, of the mean action', 'action_error.of_mean', ''))
STAGES = {'receive': 'capture → received', 'queue': 'wait for the engine', 'infer': 'inference',
          'tick_wait': 'wait for the tick', 'first_command': 'capture → first command'}
STATES = {'active': '#2da44e', 'holding': '#d4a72c', 'waiting': '#8c959f', 'stopping': '#e16f24',
          'stopped': '#bc4c00', 'fault': '#cf222e'}


def write_report(runs: Sequence[Done], file: Path, names: Sequence[str] = ()) -> Path:
    """Write the report of one run, or of two that are compared. Raises ValueError, one line."""
    if not 1 <= len(runs) <= MOST_RUNS:
        raise ValueError(f'report: {len(runs)} runs; allowed are 1 or {MOST_RUNS}')
    traces = [Trace.load(run.folder / TRACE) for run in runs]
    if len(traces) > 1 and traces[0].names != traces[1].names:
        raise ValueError(f'report: {runs[0].folder} has the dimensions '
                         f'{", ".join(traces[0].names)}, {runs[1].folder} has '
                         f'{", ".join(traces[1].names)}; compare runs of the same robot')
    names = names or told_apart(runs)
    data = {'cards': CARDS, 'stages': [{'name': n, 'label': t} for n, t in STAGES.items()],
            'runs': [_run(run, trace, name)
                     for run, trace, name in zip(runs, traces, names, strict=True)]}
    about = traces[0].about
    title = (f'{about["bag"]}: {about["policy"]} on {about["robot"]}' if len(runs) == 1
             else ' against '.join(names))
    part = file.with_name(file.name + '.part')
    file.parent.mkdir(parents=True, exist_ok=True)
    part.write_text(_page({
        'title': html.escape(title), 'subtitle': html.escape(_subtitle(runs)),
        'css': page_part('report.css'), 'js': page_part('report.js'),
        'legend': ''.join(f'<span><i style="background: {colour}"></i>{state}</span>'
                          for state, colour in STATES.items()),
        'second': '' if len(runs) == 1 else '<span><i style="background: var(--b)"></i>command of '
                                            f'{html.escape(names[1])}</span>',
        # `<` is written so that nothing in it can end the script element.
        'data': json.dumps(data, separators=(',', ':'), allow_nan=False).replace('<', '\\u003c')}))
    part.replace(file)
    return file


def told_apart(runs: Sequence[Done]) -> list[str]:
    """Short names for runs, by what differs between them."""
    words = [{**run.result['job'], 'delay': run.result['about']['delay']} for run in runs]
    differing = [key for key in words[0] if any(w[key] != words[0][key] for w in words)]
    if len(runs) == 1 or not differing:
        return [run.folder.name for run in runs]
    return [', '.join(_word(key, w[key]) for key in differing[:3]) for w in words]


def _word(key: str, value: Any) -> str:
    if key == 'bag':
        return Path(value).name
    if isinstance(value, list):
        return f'{key} {", ".join(map(str, value)) or "none"}'
    return f'{key} {value if value not in ("", None) else "as usual"}'


def _subtitle(runs: Sequence[Done]) -> str:
    about = runs[0].result['about']
    faults = ', '.join(about['faults']) or 'no faults'
    return (f'{runs[0].result["figures"]["length_s"]:.1f} s of recording through the whole '
            f'runtime; an inference takes {about["delay"]}; {faults}')


def _run(run: Done, trace: Trace, name: str) -> dict[str, Any]:
    about, figures = trace.about, run.result['figures']
    shown = {key: value for key, value in figures.items() if key in ('seconds', 'injected')}
    return {
        'name': name, 'repeatable': about['repeatable'], 'gates': run.result['gates'],
        'figures': shown, 'flat': flat(figures), 'length': trace.length_ns / NS_PER_S,
        'tick_start': float(trace.ticks[0]) / NS_PER_S if len(trace.ticks) else 0.0,
        'tick_period': about['control_period_ns'] / NS_PER_S,
        'policy_period': about['policy_period_ns'] / NS_PER_S,
        'dimensions': _dimensions(trace), 'plans': _seconds(trace.plans),
        'inferences': _packed(_inferences(trace)),
        'frames': {camera: _seconds(np.sort(stamps)) for camera, stamps in trace.frames.items()},
        'recorded_times': _seconds(trace.recorded_stamps),
        'spans': [{'begin': s.begin_ns / NS_PER_S, 'end': s.end_ns / NS_PER_S, 'state': s.state,
                   'cause': s.cause} for s in trace.spans],
        'faults': [{'begin': f.begin_ns / NS_PER_S, 'end': f.end_ns / NS_PER_S, 'fault': f.fault}
                   for f in trace.faults],
        'said': _said(trace), 'moments': _moments(run, trace), 'histograms': _histograms(trace)}


def _dimensions(trace: Trace) -> list[dict[str, Any]]:
    """Commands as 16-bit numbers between the least and the greatest value that is shown."""
    period_s = trace.about['policy_period_ns'] / NS_PER_S
    policy = {d['name']: (i, d['kind']) for i, d in enumerate(trace.about['recorded'])}
    found = []
    for i, dimension in enumerate(trace.about['dimensions']):
        values = trace.commands[:, i].astype(np.float64)
        flows = dimension['kind'] in ('delta', 'velocity')
        recorded: NDArray[np.float32] = np.empty(0, np.float32)
        index, kind = policy.get(dimension['name'], (-1, ''))
        # What is recorded of a dimension that is anchored or relative is no command.
        if index >= 0 and kind == dimension['kind'] and len(trace.recorded):
            recorded = trace.recorded[:, index] / np.float32(period_s if kind == 'delta' else 1.0)
        everything = np.concatenate([values, recorded.astype(np.float64)])
        known = everything[np.isfinite(everything)]
        low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
        if high - low < 1e-9:
            low, high = low - 0.5, high + 0.5
        scaled = np.where(np.isfinite(values), (values - low) / (high - low) * 65534 - 32767,
                          EMPTY)
        found.append({
            'name': dimension['name'], 'unit': dimension['unit'] + ('/s' if flows else ''),
            'low': low, 'high': high, 'values': _packed(np.rint(scaled).astype('<i2')),
            'recorded': _packed(recorded.astype('<f4'))})
    return found


def _inferences(trace: Trace) -> NDArray[np.float64]:
    table = trace.inferences.astype(np.float64)
    ended = table[:, 1] >= 0
    table[:, 0] /= NS_PER_S
    table[ended, 1] /= NS_PER_S
    return table


def _said(trace: Trace) -> list[dict[str, Any]]:
    ends = [time for time, _ in trace.instructions[1:]] + [trace.length_ns]
    return [{'begin': begin / NS_PER_S, 'end': end / NS_PER_S, 'text': text, 'index': i}
            for i, ((begin, text), end) in enumerate(zip(trace.instructions, ends, strict=True))]


def _moments(run: Done, trace: Trace) -> list[dict[str, Any]]:
    found = []
    for file in sorted((run.folder / PICTURES).glob('*.jpg')):
        time, _, why = file.stem.partition('_')
        time_ns = int(time) * 1_000_000
        said = [text for begin, text in trace.instructions if begin <= time_ns + 1_000_000]
        found.append({'time': time_ns / NS_PER_S, 'why': why, 'instruction': said[-1] if said
                      else '', 'jpeg': base64.b64encode(file.read_bytes()).decode()})
    return found


def _histograms(trace: Trace) -> dict[str, Any]:
    found = {}
    for stage, values in stage_times_ms(trace).items():
        if not len(values):
            continue
        counts, edges = np.histogram(values, BINS)
        p50, p99 = np.percentile(values, [50, 99])
        found[stage] = {'counts': counts.tolist(), 'start': float(edges[0]),
                        'stop': float(edges[-1]), 'end': float(max(edges[-1], 1.0)),
                        'p50': float(p50), 'p99': float(p99)}
    return found


def _seconds(times_ns: NDArray[np.int64]) -> str:
    return _packed((times_ns / NS_PER_S).astype('<f8'))


def _packed(values: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def page_part(name: str) -> str:
    """A part of the page, as it lies beside this file."""
    return files('vla_ros.replay').joinpath('page', name).read_text(encoding='utf-8')


def _page(parts: Mapping[str, str]) -> str:
    page = page_part('report.html')
    for name, text in parts.items():
        page = page.replace('{{' + name + '}}', text)
    return page
