// Stacked areas of the time per bucket. Each area is filled down to the axis, highest first, so that only the fraction of its
// bucket remains visible.

import uPlot from 'uplot';

import { BUCKETS } from './buckets.ts';
import { axis, chart } from './chart.ts';
import { clock } from './format.ts';
import { SPAN_SECONDS, stack } from './series.ts';
import type { Interval } from './series.ts';
import { pattern } from './tiles.ts';

export class StallChart {
  private readonly plot: uPlot;

  /** `pointed` receives the index under the pointer, or null. */
  constructor(box: HTMLElement, pointed: (index: number | null) => void) {
    const series = [...BUCKETS].reverse().map((bucket): uPlot.Series => ({
      label: bucket,
      width: 0,
      points: { show: false },
      fill: () => pattern(bucket, devicePixelRatio),
      paths: uPlot.paths.stepped!({ align: -1 }),
    }));
    const options: Omit<uPlot.Options, 'width' | 'height'> = {
      series: [{ value: '' }, ...series],
      scales: {
        x: { time: true, range: (_, __, max) => [max - SPAN_SECONDS, max] },
        y: { range: [0, 1] },
      },
      axes: [
        axis({ size: 30, space: (u) => (u.width < 420 ? 44 : 70), values: (_, splits) => splits.map((time) => clock(time).replace(/:00$/, '')) }),
        axis({ size: 48, values: (_, splits) => splits.map((share) => `${Math.round(share * 100)}%`) }),
      ],
      cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
      padding: [8, 16, 0, 0],
      hooks: { setCursor: [(u) => pointed(u.cursor.idx ?? null)] },
    };
    this.plot = chart(box, 260, options, [[], ...BUCKETS.map(() => [])]);
  }

  update(intervals: readonly Interval[]): void {
    const { times, edges } = stack(intervals);
    this.plot.setData([times, ...edges.reverse()]);
  }
}
