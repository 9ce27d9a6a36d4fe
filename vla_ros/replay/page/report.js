'use strict';
// All times are seconds from the start of a run. Runs share one axis, so that they can be compared.

const DATA = JSON.parse(document.getElementById('data').textContent);
const COLOURS = ['--a', '--b'];
const STATE_COLOURS = {
  active: '#2da44e', shadow: '#6639ba', holding: '#d4a72c', waiting: '#8c959f',
  stopping: '#e16f24', stopped: '#bc4c00', fault: '#cf222e',
};
const LANE = 18, GAP = 3, LABELS = 92;

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const number = (v) => (v === null || v === undefined ? '–'
  : Math.abs(v) >= 1000 ? v.toFixed(0) : String(Number(v.toPrecision(4))));

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === 'class') made.className = value; else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function decoded(text, Kind) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new Kind(bytes.buffer);
}

// --- the runs ------------------------------------------------------------------------------------

function opened(run, index) {
  const dimensions = run.dimensions.map((d) => ({
    ...d, values: decoded(d.values, Int16Array), recorded: decoded(d.recorded, Float32Array),
  }));
  return {
    ...run, index, colour: COLOURS[index], dimensions,
    plans: decoded(run.plans, Float64Array), inferences: decoded(run.inferences, Float64Array),
    frames: Object.fromEntries(Object.entries(run.frames).map(
      ([name, stamps]) => [name, decoded(stamps, Float64Array)])),
    recordedTimes: decoded(run.recorded_times, Float64Array),
  };
}

const RUNS = DATA.runs.map(opened);
const LENGTH = Math.max(...RUNS.map((run) => run.length));
const view = { from: 0, to: LENGTH, cursor: null };

// The first of sorted times, `stride` numbers apart, that is not before `time`.
function first(times, time, stride = 1, offset = 0) {
  let low = 0, high = times.length / stride;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle * stride + offset] < time) low = middle + 1; else high = middle;
  }
  return low;
}

// --- verdicts, figures, faults -------------------------------------------------------------------

function verdicts() {
  const place = document.getElementById('verdicts');
  for (const run of RUNS) {
    const failed = run.gates.filter((gate) => !gate.passed);
    const line = element('p', { class: 'verdict' });
    if (RUNS.length > 1) line.append(element('span', { class: 'ab'[run.index] }, `${run.name}: `));
    if (!run.gates.length) line.append(element('span', { class: 'dim' }, 'no gates given'));
    else if (failed.length) {
      line.append(element('span', { class: 'bad' },
        `✗ ${failed.length} of ${run.gates.length} gates failed`));
    } else line.append(element('span', { class: 'good' }, `✓ all ${run.gates.length} gates passed`));
    place.append(line);
    for (const gate of failed) place.append(element('p', { class: 'bad' }, gate.line));
    if (!run.repeatable) {
      place.append(element('p', { class: 'warn' }, 'Delays were measured: not repeatable.'));
    }
    const states = element('p', { class: 'dim' }, Object.entries(run.figures.seconds).filter(
      ([, s]) => s > 0).map(([state, s]) => `${state} ${s.toFixed(1)} s`).join(' · '));
    place.append(states);
  }
}

function cards() {
  const place = document.getElementById('cards');
  for (const [label, name, unit] of DATA.cards) {
    const values = RUNS.map((run) => run.flat[name]);
    if (values.every((v) => v === null || v === undefined)) continue;
    const shown = element('b');
    values.forEach((v, i) => shown.append(i ? ' · ' : '', element(
      'span', RUNS.length > 1 ? { class: 'ab'[i] } : {}, `${number(v)}${unit}`)));
    place.append(element('div', { class: 'card' }, shown,
      element('span', { class: 'dim' }, label)));
  }
}

function figuresTable() {
  const head = element('tr', {}, element('th', {}, 'figure'));
  for (const run of RUNS) head.append(element('th', { class: `n ${'ab'[run.index]}` }, run.name));
  if (RUNS.length > 1) head.append(element('th', { class: 'n' }, 'difference'));
  const table = document.getElementById('figures');
  table.append(head);
  const names = [...new Set(RUNS.flatMap((run) => Object.keys(run.flat)))];
  for (const name of names) {
    const values = RUNS.map((run) => run.flat[name]);
    const row = element('tr', {}, element('td', {}, name));
    for (const value of values) {
      row.append(element('td', { class: 'n' }, typeof value === 'string' ? value : number(value)));
    }
    if (RUNS.length > 1) {
      const both = values.every((v) => typeof v === 'number');
      row.append(element('td', { class: 'n' }, both ? number(values[1] - values[0]) : '–'));
    }
    table.append(row);
  }
}

function faultsTable() {
  const all = RUNS.flatMap((run) => run.figures.injected.map((fault) => ({ run, fault })));
  if (!all.length) { document.getElementById('faults-part').remove(); return; }
  const table = document.getElementById('faults');
  table.append(element('tr', {}, ...['fault', 'what the watchdog did', 'after', 'active again',
    'expected', 'counted meanwhile'].map((h) => element('th', {}, h))));
  for (const { run, fault } of all) {
    const did = fault.reaction ? `${fault.reaction}: ${fault.cause}` : `nothing; ${fault.before}`;
    const counted = Object.entries(fault.counted).map(([k, n]) => `${n} × ${k}`).join('; ');
    const name = element('button', {}, fault.fault);
    name.addEventListener('click', () => look(fault.at_s - 1, Math.max(
      fault.until_s + 2, fault.at_s + 4)));
    table.append(element('tr', {},
      element('td', { class: RUNS.length > 1 ? 'ab'[run.index] : '' }, name),
      element('td', {}, did), element('td', { class: 'n' }, seconds(fault.after_s)),
      element('td', { class: 'n' }, seconds(fault.active_again_s)),
      element('td', { class: 'dim' }, fault.expects), element('td', { class: 'dim' }, counted)));
  }
}

const seconds = (v) => (v === null ? '–' : `${v.toFixed(2)} s`);

function pictures() {
  const place = document.getElementById('frames');
  for (const run of RUNS) {
    if (!run.moments.length) continue;
    if (RUNS.length > 1) place.append(element('p', { class: 'ab'[run.index] }, run.name));
    const strip = element('div', { class: 'frames' });
    for (const moment of run.moments) {
      const image = element('img', {
        src: `data:image/jpeg;base64,${moment.jpeg}`, loading: 'lazy',
        alt: `camera at ${moment.time.toFixed(1)} s`,
      });
      const figure = element('figure', {}, image, element('figcaption', {},
        `${moment.time.toFixed(1)} s, ${moment.why}: “${moment.instruction}”`));
      figure.addEventListener('click', () => look(moment.time - 2, moment.time + 4, moment.time));
      strip.append(figure);
    }
    place.append(strip);
  }
}

function histograms() {
  const place = document.getElementById('histograms');
  for (const stage of DATA.stages) {
    const canvas = element('canvas', { height: 110 });
    place.append(element('div', {}, element('div', {}, stage.label), canvas));
    const draw = () => {
      const { context, width, height } = prepared(canvas, 110);
      const shown = RUNS.map((run) => run.histograms[stage.name]).filter((h) => h);
      const most = Math.max(1, ...shown.flatMap((h) => h.counts));
      const end = Math.max(1e-9, ...shown.map((h) => h.end));
      shown.forEach((h, i) => {
        context.fillStyle = css(COLOURS[i]);
        context.globalAlpha = shown.length > 1 ? 0.55 : 0.9;
        h.counts.forEach((count, k) => {
          const x = (h.start + (k * (h.stop - h.start)) / h.counts.length) / end * width;
          const w = Math.max(2, (h.stop - h.start) / h.counts.length / end * width - 1);
          const tall = count / most * (height - 32);
          context.fillRect(x, height - 16 - tall, w, tall);
        });
      });
      context.globalAlpha = 1;
      context.fillStyle = css('--dim');
      context.font = '11px system-ui';
      context.textAlign = 'left';
      context.fillText('0', 0, height - 3);
      context.textAlign = 'right';
      context.fillText(`${number(end)} ms`, width, height - 3);
      shown.forEach((h, i) => context.fillText(
        `p50 ${number(h.p50)}  p99 ${number(h.p99)}`, width, 10 + 12 * i));
    };
    drawers.push(draw);
  }
}

// --- the timeline --------------------------------------------------------------------------------

const drawers = [];
let pending = false;

function redraw() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; for (const draw of drawers) draw(); });
}

function prepared(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

const place = (time, width) => LABELS + (time - view.from) / (view.to - view.from)
  * (width - LABELS);
const timeAt = (x, width) => view.from + (x - LABELS) / (width - LABELS) * (view.to - view.from);

function axis(context, width, y) {
  const span = view.to - view.from, rough = span / Math.max(3, (width - LABELS) / 90);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= rough);
  context.fillStyle = css('--dim');
  context.strokeStyle = css('--line');
  context.font = '11px system-ui';
  context.textAlign = 'center';
  for (let t = Math.ceil(view.from / step) * step; t <= view.to; t += step) {
    const x = place(t, width);
    context.beginPath(); context.moveTo(x, 0); context.lineTo(x, y); context.stroke();
    context.fillText(`${Number(t.toFixed(6))} s`, x, y + 12);
  }
}

function bands(context, width, y, height, items, colour, label) {
  for (const item of items) {
    if (item.end < view.from || item.begin > view.to) continue;
    const x = Math.max(LABELS, place(item.begin, width));
    const w = Math.max(1, Math.min(width, place(item.end, width)) - x);
    context.fillStyle = colour(item);
    context.fillRect(x, y, w, height);
    const text = label(item);
    if (text && w > 40) {
      context.save();
      context.beginPath(); context.rect(x, y, w, height); context.clip();
      context.fillStyle = '#fff';
      context.textAlign = 'left';
      context.fillText(text, x + 4, y + height - 5);
      context.restore();
    }
  }
}

// Marks of sorted times; where there are more than pixels, each pixel once.
function marks(context, width, y, height, times, colour) {
  context.fillStyle = colour;
  let last = -1;
  for (let i = first(times, view.from); i < times.length && times[i] <= view.to; i++) {
    const x = Math.floor(place(times[i], width));
    if (x !== last) context.fillRect(x, y, 1, height);
    last = x;
  }
}

function lanes(run) {
  const made = [];
  made.push(['state', LANE, (c, w, y) => bands(c, w, y, LANE, run.spans,
    (s) => STATE_COLOURS[s.state], (s) => (s.cause ? `${s.state}: ${s.cause}` : s.state))]);
  if (run.faults.length) {
    made.push(['faults', LANE, (c, w, y) => bands(c, w, y, LANE, run.faults,
      () => css('--bad'), (f) => f.fault)]);
  }
  made.push(['instruction', LANE, (c, w, y) => bands(c, w, y, LANE, run.said,
    (s) => (s.index % 2 ? '#57606a' : '#424a53'), (s) => s.text)]);
  for (const [camera, stamps] of Object.entries(run.frames)) {
    made.push([camera, LANE - 6, (c, w, y) => marks(c, w, y, LANE - 6, stamps, css('--dim'))]);
  }
  made.push(['inferences', LANE, (c, w, y) => {
    const count = run.inferences.length / 3, begin = first(run.inferences, view.from - 10, 3);
    let last = -1;
    for (let i = begin; i < count && run.inferences[3 * i] <= view.to; i++) {
      const [from, to, failed] = run.inferences.subarray(3 * i, 3 * i + 3);
      const x = Math.max(LABELS, place(from, w));
      const end = place(to < 0 ? run.length : to, w);
      if (end < LABELS || (Math.floor(end) === last && !failed)) continue;
      c.fillStyle = failed || to < 0 ? css('--bad') : css(run.colour);
      c.fillRect(x, y, Math.max(1, end - x - 0.5), LANE);
      last = Math.floor(end);
    }
  }]);
  made.push(['plans', 4 * 9, (c, w, y) => {
    const count = run.plans.length / 7, begin = first(run.plans, view.from - 30, 7);
    const perPixel = (view.to - view.from) / (w - LABELS);
    let last = -1;
    for (let i = begin; i < count && run.plans[7 * i] <= view.to; i++) {
      const [stamp, , , arrived, , end] = run.plans.subarray(7 * i, 7 * i + 6);
      if (end < view.from || (perPixel > 0.05 && Math.floor(place(arrived, w)) === last)) continue;
      last = Math.floor(place(arrived, w));
      const row = y + 9 * (i % 4), a = Math.max(LABELS, place(arrived, w));
      c.fillStyle = css(run.colour);
      c.globalAlpha = 0.25;
      const s = Math.max(LABELS, place(stamp, w));
      c.fillRect(s, row + 2, Math.max(0, a - s), 4);
      c.globalAlpha = 0.75;
      c.fillRect(a, row, Math.max(1, place(end, w) - a), 8);
      c.globalAlpha = 1;
    }
  }]);
  return made;
}

function timeline() {
  const canvas = document.getElementById('timeline');
  const all = RUNS.map((run) => ({ run, lanes: lanes(run) }));
  const height = 20 + all.reduce((sum, { lanes: l }) => sum + 8 + (RUNS.length > 1 ? 16 : 0)
    + l.reduce((s, [, h]) => s + h + GAP, 0), 0);
  const draw = () => {
    const { context, width } = prepared(canvas, height);
    axis(context, width, height - 16);
    context.font = '12px system-ui';
    let y = 2;
    for (const { run, lanes: list } of all) {
      if (RUNS.length > 1) {
        context.fillStyle = css(run.colour);
        context.textAlign = 'left';
        context.fillText(run.name, 0, y + 12);
        y += 16;
      }
      for (const [label, tall, paint] of list) {
        context.save();
        context.beginPath(); context.rect(LABELS, 0, width - LABELS, height); context.clip();
        paint(context, width, y);
        context.restore();
        context.fillStyle = css('--dim');
        context.textAlign = 'left';
        context.fillText(label, 0, y + Math.min(tall, LANE) - 4, LABELS - 6);
        y += tall + GAP;
      }
      y += 8;
    }
    cursor(context, width, height - 16);
  };
  drawers.push(draw);
  movable(canvas);
}

function cursor(context, width, height) {
  if (view.cursor === null || view.cursor < view.from || view.cursor > view.to) return;
  context.strokeStyle = css('--ink');
  context.beginPath();
  context.moveTo(place(view.cursor, width), 0);
  context.lineTo(place(view.cursor, width), height);
  context.stroke();
}

// --- the dimensions ------------------------------------------------------------------------------

const EMPTY = -32768;

function value(dimension, raw) {
  return raw === EMPTY ? null : dimension.low + (raw + 32767) / 65534
    * (dimension.high - dimension.low);
}

function dimensionPlots() {
  const around = document.getElementById('dimensions');
  RUNS[0].dimensions.forEach((_, index) => {
    const canvas = element('canvas');
    around.append(element('div', { class: 'plot' }, canvas));
    drawers.push(() => drawDimension(canvas, index));
    movable(canvas);
  });
}

function drawDimension(canvas, index) {
  const height = 92, { context, width } = prepared(canvas, height);
  const shown = RUNS.filter((run) => run.dimensions[index]
    && run.dimensions[index].name === RUNS[0].dimensions[index].name);
  const low = Math.min(...shown.map((r) => r.dimensions[index].low));
  const high = Math.max(...shown.map((r) => r.dimensions[index].high));
  const range = high - low || 1, top = 4, bottom = height - 4;
  const level = (v) => bottom - (v - low) / range * (bottom - top);
  context.strokeStyle = css('--line');
  context.strokeRect(LABELS, top, width - LABELS - 1, bottom - top);
  if (low < 0 && high > 0) {
    context.beginPath(); context.moveTo(LABELS, level(0)); context.lineTo(width, level(0));
    context.stroke();
  }
  const { name, unit } = RUNS[0].dimensions[index];
  context.fillStyle = css('--ink');
  context.font = '12px system-ui';
  context.textAlign = 'left';
  context.fillText(name, 0, 18, LABELS - 6);
  context.fillStyle = css('--dim');
  context.font = '10px system-ui';
  context.fillText(unit, 0, 32, LABELS - 6);
  context.textAlign = 'right';
  context.fillText(number(high), LABELS - 4, top + 9);
  context.fillText(number(low), LABELS - 4, bottom);
  context.save();
  context.beginPath(); context.rect(LABELS, 0, width - LABELS, height); context.clip();
  drawRecorded(context, width, shown[0], index, level);
  for (const run of shown) drawCommands(context, width, run, index, level);
  context.restore();
  cursor(context, width, height);
}

function drawCommands(context, width, run, index, level) {
  const dimension = run.dimensions[index], { values } = dimension;
  const from = Math.max(0, Math.floor((view.from - run.tick_start) / run.tick_period) - 1);
  const to = Math.min(values.length, Math.ceil((view.to - run.tick_start) / run.tick_period) + 1);
  context.strokeStyle = css(run.colour);
  context.lineWidth = 1.3;
  context.beginPath();
  let column = -1, low = 0, high = 0, down = false;
  for (let i = from; i < to; i++) {
    const v = value(dimension, values[i]);
    if (v === null) { down = false; continue; }
    const x = place(run.tick_start + i * run.tick_period, width), pixel = Math.floor(x);
    if (down && pixel === column) {  // several in a pixel: from the lowest to the highest
      if (v < low) { low = v; context.lineTo(x, level(v)); }
      else if (v > high) { high = v; context.lineTo(x, level(v)); }
      continue;
    }
    if (down) context.lineTo(x, level(v)); else context.moveTo(x, level(v));
    column = pixel; low = v; high = v; down = true;
  }
  context.stroke();
  context.lineWidth = 1;
}

function drawRecorded(context, width, run, index, level) {
  const { recorded } = run.dimensions[index], times = run.recordedTimes;
  if (!recorded.length) return;
  context.strokeStyle = css('--rec');
  context.lineWidth = 2;
  context.beginPath();
  for (let i = Math.max(0, first(times, view.from) - 1); i < times.length; i++) {
    if (times[i] > view.to) break;
    const until = Math.min(times[i] + run.policy_period, i + 1 < times.length ? times[i + 1]
      : Infinity);
    if (Number.isNaN(recorded[i])) continue;
    context.moveTo(place(times[i], width), level(recorded[i]));
    context.lineTo(place(until, width), level(recorded[i]));
  }
  context.stroke();
  context.lineWidth = 1;
}

// --- moving about --------------------------------------------------------------------------------

function look(from, to, at = view.cursor) {
  const span = Math.min(LENGTH, Math.max(0.05, to - from));
  const begin = Math.min(Math.max(0, from), LENGTH - span);
  Object.assign(view, { from: begin, to: begin + span, cursor: at });
  redraw();
  tell();
}

function zoom(factor, around = (view.from + view.to) / 2) {
  look(around - (around - view.from) * factor, around + (view.to - around) * factor);
}

function movable(canvas) {
  const pointers = new Map();
  let pinch = 0;
  canvas.addEventListener('wheel', (event) => {
    if (event.ctrlKey || event.altKey || event.shiftKey || event.metaKey) {
      event.preventDefault();
      const way = event.deltaY || event.deltaX;
      zoom(way > 0 ? 1.25 : 0.8, timeAt(event.offsetX, canvas.clientWidth));
    }
  }, { passive: false });
  canvas.addEventListener('dblclick', (event) => zoom(
    0.4, timeAt(event.offsetX, canvas.clientWidth)));
  canvas.addEventListener('pointerdown', (event) => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, event.offsetX);
  });
  canvas.addEventListener('pointermove', (event) => {
    const width = canvas.clientWidth;
    if (pointers.has(event.pointerId)) {
      const before = pointers.get(event.pointerId);
      pointers.set(event.pointerId, event.offsetX);
      const xs = [...pointers.values()];
      if (xs.length === 2) {
        const apart = Math.abs(xs[0] - xs[1]);
        if (pinch && apart) zoom(pinch / apart, timeAt((xs[0] + xs[1]) / 2, width));
        pinch = apart;
      } else {
        const moved = (event.offsetX - before) / (width - LABELS) * (view.to - view.from);
        look(view.from - moved, view.to - moved);
      }
    }
    view.cursor = timeAt(event.offsetX, width);
    redraw();
    tell();
  });
  for (const kind of ['pointerup', 'pointercancel']) {
    canvas.addEventListener(kind, (event) => { pointers.delete(event.pointerId); pinch = 0; });
  }
}

function tell() {
  const at = view.cursor;
  const out = document.getElementById('readout');
  document.getElementById('range').textContent = `${view.from.toFixed(2)} – ${
    view.to.toFixed(2)} s`;
  if (at === null || at < 0 || at > LENGTH) { out.textContent = ''; return; }
  const parts = [`${at.toFixed(2)} s`];
  for (const run of RUNS) {
    const span = run.spans.find((s) => s.begin <= at && at < s.end);
    const said = run.said.find((s) => s.begin <= at && at < s.end);
    const i = Math.round((at - run.tick_start) / run.tick_period);
    const values = run.dimensions.map((d) => {
      const v = i >= 0 && i < d.values.length ? value(d, d.values[i]) : null;
      return `${d.name} ${number(v)}`;
    });
    parts.push(`${RUNS.length > 1 ? `${run.name}: ` : ''}${span ? span.state : ''}${
      span && span.cause ? ` (${span.cause})` : ''}${said ? ` “${said.text}”` : ''} ${
      values.join('  ')}`);
  }
  out.textContent = parts.join('  |  ');
}

function buttons() {
  const on = (id, act) => document.getElementById(id).addEventListener('click', act);
  on('in', () => zoom(0.5));
  on('out', () => zoom(2));
  on('all', () => look(0, LENGTH));
  on('left', () => { const s = (view.to - view.from) / 3; look(view.from - s, view.to - s); });
  on('right', () => { const s = (view.to - view.from) / 3; look(view.from + s, view.to + s); });
  window.addEventListener('keydown', (event) => {
    const keys = { '+': 'in', '-': 'out', 0: 'all', ArrowLeft: 'left', ArrowRight: 'right' };
    if (keys[event.key]) document.getElementById(keys[event.key]).click();
  });
}

verdicts(); cards(); faultsTable(); timeline(); dimensionPlots(); histograms(); pictures();
figuresTable(); buttons();
window.addEventListener('resize', redraw);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
look(0, LENGTH);
document.documentElement.dataset.ready = 'yes';
