// Stall intervals over time, and the stack that a chart draws of them. Pure.

import type { Stalls } from './api.ts';
import { BUCKETS } from './buckets.ts';
import type { Bucket } from './buckets.ts';

export const SPAN_SECONDS = 300;

export interface Interval {
  /** Unix seconds, the end of the interval. */
  time: number;
  wall: number;
  seconds: Record<Bucket, number>;
  utilization: number | null;
}

export function intervals(stalls: Stalls): Interval[] {
  return stalls.times.map((time, index) => ({
    time,
    wall: stalls.wall[index] ?? 0,
    seconds: Object.fromEntries(BUCKETS.map((bucket) => [bucket, stalls.seconds[bucket]?.[index] ?? 0])) as Interval['seconds'],
    utilization: stalls.utilization[index] ?? null,
  }));
}

const key = (interval: Interval): number => Math.round(interval.time * 1000);

/** Old and new ones in order, the new in place of the old ones of the same time, and none older than the span. */
export function merge(old: readonly Interval[], fresh: readonly Interval[], span = SPAN_SECONDS): Interval[] {
  const last = fresh[fresh.length - 1];
  if (!last) return [...old];
  const replaced = new Set(fresh.map(key));
  const all = [...old.filter((interval) => !replaced.has(key(interval))), ...fresh];
  all.sort((one, other) => one.time - other.time);
  const newest = all[all.length - 1]!.time;
  return all.filter((interval) => interval.time > newest - span);
}

/** Whether something is missing between what is known and what came. */
export function hasGap(old: readonly Interval[], fresh: readonly Interval[], intervalSeconds: number): boolean {
  const last = old[old.length - 1];
  const first = fresh[0];
  return !!last && !!first && first.time - last.time > intervalSeconds * 1.5;
}

/** The share of each bucket in an interval's time; null where no session ran. */
export function shares(interval: Interval): Record<Bucket, number | null> {
  const share = (bucket: Bucket) => (interval.wall > 0 ? interval.seconds[bucket] / interval.wall : null);
  return Object.fromEntries(BUCKETS.map((bucket) => [bucket, share(bucket)])) as Record<Bucket, number | null>;
}

/** Times, and for each bucket from the bottom the upper edge of its area: the sum of the shares up to it. */
export function stack(of: readonly Interval[]): { times: number[]; edges: (number | null)[][] } {
  const edges: (number | null)[][] = BUCKETS.map(() => []);
  for (const interval of of) {
    let sum = 0;
    BUCKETS.forEach((bucket, level) => {
      sum += interval.wall > 0 ? interval.seconds[bucket] / interval.wall : 0;
      edges[level]!.push(interval.wall > 0 ? sum : null);
    });
  }
  return { times: of.map((interval) => interval.time), edges };
}

/** Means over the last intervals, by time. */
export function recent(of: readonly Interval[], seconds: number): Interval | null {
  const last = of[of.length - 1];
  if (!last) return null;
  const sum: Interval = { ...last, wall: 0, seconds: Object.fromEntries(BUCKETS.map((b) => [b, 0])) as Interval['seconds'] };
  for (const interval of of) {
    if (interval.time <= last.time - seconds) continue;
    sum.wall += interval.wall;
    for (const bucket of BUCKETS) sum.seconds[bucket] += interval.seconds[bucket];
  }
  return sum;
}
