import assert from 'node:assert/strict';
import { test } from 'node:test';

import type { Stalls } from '../src/schema.ts';
import { BUCKETS } from '../src/buckets.ts';
import { fractions, hasGap, intervals, merge, recent, stack } from '../src/series.ts';

function stalls(from: number, count: number, wall = 4): Stalls {
  const each = (value: number) => Array.from({ length: count }, () => value);
  const seconds = Object.fromEntries(BUCKETS.map((bucket) => [bucket, each(0)])) as Stalls['seconds'];
  seconds['compute'] = each(wall / 4);
  seconds['storage'] = each((wall / 4) * 3);
  return { interval_seconds: 1, times: each(0).map((_, index) => from + index), wall: each(wall), seconds, compute_fraction: each(0.25) };
}

test('the stack of an interval ends at 1', () => {
  const { times, edges } = stack(intervals(stalls(100, 3)));
  assert.deepEqual(times, [100, 101, 102]);
  assert.equal(edges.length, BUCKETS.length);
  assert.equal(edges[0]![0], 0.25);
  assert.equal(edges.at(-1)![2], 1);
  for (let level = 1; level < edges.length; level += 1) assert.ok(edges[level]![0]! >= edges[level - 1]![0]!);
});

test('an interval without a session is a gap, not 0', () => {
  const [idle] = intervals(stalls(100, 1, 0));
  assert.equal(fractions(idle!).storage, null);
  assert.deepEqual(stack([idle!]).edges.map((edge) => edge[0]), BUCKETS.map(() => null));
});

test('the order of the stack never changes', () => {
  assert.deepEqual([...BUCKETS], ['compute', 'compute_or_network', 'network', 'gather', 'decode', 'storage', 'queued']);
});

test('new intervals replace old ones of the same time and the oldest are dropped', () => {
  const old = intervals(stalls(100, 5));
  const fresh = intervals(stalls(103, 4, 8));
  const merged = merge(old, fresh, 5);
  assert.deepEqual(merged.map((interval) => interval.time), [102, 103, 104, 105, 106]);
  assert.deepEqual(merged.map((interval) => interval.wall), [4, 8, 8, 8, 8]);
  assert.deepEqual(merge(old, []), old);
});

test('a gap is detected', () => {
  const old = intervals(stalls(100, 5));
  assert.equal(hasGap(old, intervals(stalls(104, 2)), 1), false);
  assert.equal(hasGap(old, intervals(stalls(105, 2)), 1), false);
  assert.equal(hasGap(old, intervals(stalls(107, 2)), 1), true);
  assert.equal(hasGap([], intervals(stalls(107, 2)), 1), false);
});

test('recent shares are those of the last seconds, by time', () => {
  const mixed = [...intervals(stalls(100, 10, 100)), ...intervals(stalls(110, 10, 4))];
  const last = recent(mixed, 10)!;
  assert.equal(last.wall, 40);
  assert.equal(fractions(last).storage, 0.75);
  assert.equal(recent([], 10), null);
});
