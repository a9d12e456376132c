// Shared by the charts: colours of the theme, the width of the container, and redrawing when either changes.

import uPlot from 'uplot';

import { colour, onTheme } from './theme.ts';

export const ink = (name: string) => () => colour(name);

export function axis(options: uPlot.Axis): uPlot.Axis {
  return {
    stroke: ink('--muted'),
    grid: { stroke: ink('--grid'), width: 1 },
    ticks: { stroke: ink('--grid'), width: 1, size: 4 },
    font: '12px system-ui, sans-serif',
    labelFont: '12px system-ui, sans-serif',
    ...options,
  };
}

export function chart(box: HTMLElement, height: number, options: Omit<uPlot.Options, 'width' | 'height'>, data: uPlot.AlignedData): uPlot {
  const width = () => Math.max(200, Math.floor(box.clientWidth));
  const made = new uPlot({ legend: { show: false }, ...options, width: width(), height }, data, box);
  new ResizeObserver(() => {
    if (made.width !== width()) made.setSize({ width: width(), height });
  }).observe(box);
  onTheme(() => made.redraw(false, true));
  return made;
}
