// Throughput-latency curve: forecasts for each batch size, for the current settings and for edited settings.

import uPlot from 'uplot';

import { axis, chart } from './chart.ts';
import { number, short } from './format.ts';
import type { Forecast, QueueCurve } from './schema.ts';
import { colour } from './theme.ts';

type Column = (number | null | undefined)[];

interface Point {
  x: number;
  y: number | null;
  rows: number;
  of: 'points' | 'current' | 'draft';
}

function point(of: Point['of'], rows: number, forecast: Forecast | null): Point[] {
  if (!forecast || !(forecast.capacity_rows_per_second > 0)) return [];
  const latency = forecast.latency_seconds;
  return [{ of, rows, x: forecast.capacity_rows_per_second, y: latency === null ? null : latency * 1000 }];
}

/** Points in order of x, as uPlot requires: undefined where a series has no point, null where its line is interrupted. */
export function columns(curve: QueueCurve, draft: { rows: number; forecast: Forecast | null } | null): { data: Column[]; points: Point[] } {
  const points = [
    ...curve.points.flatMap(({ max_batch_rows, forecast }) => point('points', max_batch_rows, forecast)),
    ...point('current', curve.current.max_batch_rows, curve.current.forecast),
    ...(draft ? point('draft', draft.rows, draft.forecast) : []),
  ].sort((one, other) => one.x - other.x);
  const column = (of: Point['of']): Column => points.map((each) => (each.of === of ? each.y : undefined));
  return { data: [points.map((each) => each.x), column('points'), column('current'), column('draft')], points };
}

/** Range of the drawn values with a margin. Logarithmic scales have no 0. */
export function range(values: (number | null | undefined)[], fallback: [number, number]): [number, number] {
  const some = values.filter((value): value is number => typeof value === 'number' && value > 0);
  if (some.length === 0) return fallback;
  return [Math.min(...some) / 1.6, Math.max(...some) * 1.6];
}

/** Ticks at 1, 2, 5, 10 and so on: powers of ten alone are too few on a short logarithmic scale. */
export function ticks(from: number, to: number): number[] {
  const made: number[] = [];
  for (let power = Math.floor(Math.log10(from)); power <= Math.ceil(Math.log10(to)); power += 1) {
    for (const digit of [1, 2, 5]) {
      const tick = Number((digit * 10 ** power).toPrecision(2));
      if (tick >= from && tick <= to) made.push(tick);
    }
  }
  return made;
}

export class CurveChart {
  private readonly plot: uPlot;
  private points: Point[] = [];
  private timeout: number | null = null;
  private values: number[] = [];

  constructor(box: HTMLElement) {
    const logarithmic = (fallback: [number, number], of: (self: CurveChart) => (number | null | undefined)[]): uPlot.Scale => ({
      time: false,
      distr: 3,
      range: () => range(of(this), fallback),
    });
    const marks = (name: string, size: number, width: number) => ({ show: true, size, width, stroke: () => colour(name), fill: () => colour('--surface') });
    const options: Omit<uPlot.Options, 'width' | 'height'> = {
      scales: {
        x: logarithmic([100, 100_000], (self) => self.drawn().map((each) => each.x)),
        y: logarithmic([1, 1000], (self) => [...self.values, self.timeout]),
      },
      series: [
        {},
        { stroke: () => colour('--accent'), width: 2, points: marks('--accent', 6, 2) },
        { stroke: () => colour('--text'), width: 0, paths: () => null, points: { ...marks('--text', 13, 3) } },
        { stroke: () => colour('--warning'), width: 0, paths: () => null, points: { ...marks('--warning', 13, 3), fill: () => colour('--warning') } },
      ],
      axes: [
        axis({ label: 'capacity, rows/s', labelSize: 18, size: 36, splits: (_, __, min, max) => ticks(min, max), values: (_, all) => all.map(short), filter: (_, all) => all }),
        axis({ label: 'latency, ms', labelSize: 18, size: 48, splits: (_, __, min, max) => ticks(min, max), values: (_, all) => all.map(number), filter: (_, all) => all }),
      ],
      cursor: { show: false },
      padding: [14, 18, 0, 0],
      hooks: { draw: [(u) => this.marks(u)] },
    };
    this.plot = chart(box, 280, options, [[], [], [], []]);
  }

  /** Overloaded points have no latency and are only drawn for the current and the edited settings. */
  private drawn(): Point[] {
    return this.points.filter((each) => each.y !== null || each.of !== 'points');
  }

  update(curve: QueueCurve, draft: { rows: number; forecast: Forecast | null } | null): void {
    const { data, points } = columns(curve, draft);
    this.points = points;
    this.values = points.flatMap((each) => (each.y === null ? [] : [each.y]));
    this.timeout = curve.default_timeout_seconds * 1000;
    this.plot.setData(data as unknown as uPlot.AlignedData);
  }

  /** Draws the line of the default timeout and the labels of the points. */
  private marks(u: uPlot): void {
    const { ctx, bbox } = u;
    const scale = devicePixelRatio;
    ctx.save();
    ctx.font = `${12 * scale}px system-ui, sans-serif`;
    if (this.timeout !== null) {
      const y = u.valToPos(this.timeout, 'y', true);
      ctx.strokeStyle = ctx.fillStyle = colour('--error');
      ctx.lineWidth = 1.5 * scale;
      ctx.setLineDash([6 * scale, 4 * scale]);
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
      ctx.textAlign = 'left';
      ctx.setLineDash([]);
      ctx.fillText(`default timeout ${number(this.timeout)} ms`, bbox.left + 6 * scale, y - 5 * scale);
    }
    const place = (each: Point) => ({
      x: u.valToPos(each.x, 'x', true),
      // Points without a latency are drawn at the upper edge.
      y: each.y === null ? bbox.top + 10 * scale : u.valToPos(each.y, 'y', true),
    });
    const draft = this.points.find((each) => each.of === 'draft');
    const near = draft ? place(draft) : null;
    let last = -Infinity;
    for (const each of this.drawn()) {
      const { x, y } = place(each);
      if (each.of === 'points') {
        const covered = near !== null && Math.hypot(near.x - x, near.y - y) < 36 * scale;
        if (covered || x - last < 14 * scale) continue;
        last = x;
        ctx.textAlign = 'left';
        ctx.font = `${12 * scale}px system-ui, sans-serif`;
        ctx.fillStyle = colour('--muted');
        ctx.fillText(number(each.rows), x + 7 * scale, y + 14 * scale);
        continue;
      }
      const name = each.of === 'current' ? 'current' : 'edited';
      const atLeft = x - bbox.left < 120 * scale;
      ctx.textAlign = atLeft ? 'left' : 'right';
      ctx.font = `600 ${12 * scale}px system-ui, sans-serif`;
      ctx.fillStyle = colour('--text');
      ctx.fillText(each.y === null ? `${name}: overloaded` : name, x + (atLeft ? 11 : -11) * scale, y + (name === 'current' ? -4 : 14) * scale);
      if (each.y !== null) continue;
      ctx.textAlign = 'center';
      ctx.fillText('×', x, y + 4 * scale);
    }
    ctx.restore();
  }
}
