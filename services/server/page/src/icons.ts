// Severity by shape in addition to colour: a dot, a triangle, an octagon with a cross.

import { svg } from './dom.ts';

export type Sign = 'info' | 'warning' | 'error' | 'ok' | 'busy';

const SHAPES: Record<Sign, [string, string]> = {
  info: ['M8 2a6 6 0 1 0 .01 0z', 'M8 7v4M8 4.6v.8'],
  warning: ['M8 1.5L15.2 14.5H.8z', 'M8 6v4M8 11.6v.8'],
  error: ['M5 1h6l4 4v6l-4 4H5l-4-4V5z', 'M5.4 5.4l5.2 5.2M10.6 5.4l-5.2 5.2'],
  ok: ['M8 2a6 6 0 1 0 .01 0z', 'M5 8.2l2.2 2.2L11.2 6'],
  busy: ['M3 1.5h10L9.3 8l3.7 6.5H3L6.7 8z', 'M6 12.5h4'],
};

export function icon(sign: Sign): SVGElement {
  const [shape, mark] = SHAPES[sign];
  return svg(
    'svg',
    { class: `icon icon-${sign}`, viewBox: '0 0 16 16', width: 16, height: 16, role: 'img', 'aria-label': sign },
    svg('path', { d: shape, class: 'icon-shape' }),
    svg('path', { d: mark, class: 'icon-mark' }),
  );
}
