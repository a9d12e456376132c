// Colours and patterns of the buckets, for canvases and as CSS properties.

import { ABOUT, BUCKETS } from './buckets.ts';
import type { Bucket } from './buckets.ts';

const SIZE = 8;

function tile(bucket: Bucket, scale: number): HTMLCanvasElement {
  const canvas = document.createElement('canvas');
  canvas.width = canvas.height = Math.round(SIZE * scale);
  const context = canvas.getContext('2d')!;
  context.scale(canvas.width / SIZE, canvas.height / SIZE);
  context.fillStyle = ABOUT[bucket].colour;
  context.fillRect(0, 0, SIZE, SIZE);
  context.strokeStyle = 'rgba(0, 0, 0, 0.34)';
  context.lineWidth = bucket === 'gather' ? 1.6 : 1;
  const path = new Path2D();
  const lines = new Path2D(ABOUT[bucket].pattern);
  // Repeated at each side, so that slanted lines meet at the corners of the tiles.
  for (const dx of [-SIZE, 0, SIZE]) path.addPath(lines, new DOMMatrix().translate(dx, 0));
  context.stroke(path);
  return canvas;
}

const patterns = new Map<string, CanvasPattern>();

/** Fill pattern of a canvas with `scale` device pixels per pixel. */
export function pattern(bucket: Bucket, scale: number): CanvasPattern | string {
  const key = `${bucket} ${scale}`;
  const made = patterns.get(key) ?? document.createElement('canvas').getContext('2d')!.createPattern(tile(bucket, scale), 'repeat');
  if (!made) return ABOUT[bucket].colour;
  patterns.set(key, made);
  return made;
}

/** Sets the CSS properties `--tile-BUCKET`. */
export function publishTiles(): void {
  for (const bucket of BUCKETS) {
    const url = tile(bucket, 2).toDataURL();
    document.documentElement.style.setProperty(`--tile-${bucket}`, `url("${url}")`);
  }
}
