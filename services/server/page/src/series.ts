// Time accounts per interval, and the stacked areas of the chart. Pure functions.

import type { Stalls } from './schema.ts';
import { BUCKETS } from './buckets.ts';
import type { Bucket } from './buckets.ts';

export const SPAN_SECONDS = 300;

export interface Interval {
  /** End of the interval, in Unix seconds. */
  time: number;
  wall: number;
  seconds: Record<Bucket, number>;
  computeFraction: number | null;
}

export function intervals(stalls: Stalls): Interval[] {
  return stalls.times.map((time, index) => ({
    time,
    wall: stalls.wall[index] ?? 0,
    seconds: Object.fromEntries(BUCKETS.map((bucket) => [bucket, stalls.seconds[bucket]?.[index] ?? 0])) as Interval['seconds'],
    computeFraction: stalls.compute_fraction[index] ?? null,
  }));
}

const key = (interval: Interval): number => Math.round(interval.time * 1000);

/** Merges intervals in order of time. New ones replace old ones of the same time; those older than the span are dropped. */
export function merge(old: readonly Interval[], fresh: readonly Interval[], span = SPAN_SECONDS): Interval[] {
  const last = fresh[fresh.length - 1];
  if (!last) return [...old];
  const replaced = new Set(fresh.map(key));
  const all = [...old.filter((interval) => !replaced.has(key(interval))), ...fresh];
  all.sort((one, other) => one.time - other.time);
  const newest = all[all.length - 1]!.time;
  return all.filter((interval) => interval.time > newest - span);
}

/** True if intervals are missing between the old and the new ones. */
export function hasGap(old: readonly Interval[], fresh: readonly Interval[], intervalSeconds: number): boolean {
  const last = old[old.length - 1];
  const first = fresh[0];
  return !!last && !!first && first.time - last.time > intervalSeconds * 1.5;
}

/** Fraction of each bucket in the time of an interval; null if no session was running. */
export function fractions(interval: Interval): Record<Bucket, number | null> {
  const share = (bucket: Bucket) => (interval.wall > 0 ? interval.seconds[bucket] / interval.wall : null);
  return Object.fromEntries(BUCKETS.map((bucket) => [bucket, share(bucket)])) as Record<Bucket, number | null>;
}

/** Times, and for each bucket from the bottom the upper edge of its area: the sum of the fractions up to it. */
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

/** Sum over the last intervals. */
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
