import assert from 'node:assert/strict';
import { test } from 'node:test';

import { begin, pause, STALE_MS, step } from '../src/link.ts';
import type { Act, Link, News } from '../src/link.ts';

/** Applies news at their times and returns the actions. */
function play(...news: [number, News][]): { link: Link; acts: [number, Act][] } {
  let link = begin(0);
  const acts: [number, Act][] = [];
  for (const [at, what] of news) {
    const [next, act] = step(link, what, at);
    link = next;
    if (act) acts.push([at, act]);
  }
  return { link, acts };
}

test('the stream opens immediately and is live with the first state', () => {
  const { link, acts } = play([0, 'tick'], [50, 'state'], [1050, 'state'], [1300, 'tick']);
  assert.deepEqual(acts, [[0, 'open']]);
  assert.equal(link.stale, false);
});

test('data is stale after three seconds without a state', () => {
  const silent: [number, News][] = [[0, 'tick'], [50, 'state'], [50 + STALE_MS - 1, 'tick']];
  assert.equal(play(...silent).link.stale, false);
  assert.equal(play(...silent, [50 + STALE_MS, 'tick']).link.stale, true);
  assert.equal(play(...silent, [50 + STALE_MS, 'tick'], [5000, 'state']).link.stale, false);
});

test('a failed stream is stale immediately and reopened with backoff', () => {
  const { link, acts } = play([0, 'tick'], [10, 'state'], [20, 'failed'], [519, 'tick'], [520, 'tick'], [530, 'failed'], [1529, 'tick'], [1530, 'tick']);
  assert.deepEqual(acts, [[0, 'open'], [20, 'close'], [520, 'open'], [530, 'close'], [1530, 'open']]);
  assert.equal(link.stale, true);
  assert.deepEqual([1, 2, 3, 4, 5, 6, 100].map(pause), [500, 1000, 2000, 4000, 8000, 8000, 8000]);
});

test('a state resets the backoff', () => {
  const { link } = play([0, 'tick'], [1, 'failed'], [600, 'tick'], [601, 'failed'], [1700, 'tick'], [1701, 'state']);
  assert.equal(link.failures, 0);
});

test('a silent stream is closed and reopened', () => {
  const { acts } = play([0, 'tick'], [50, 'state'], [10_049, 'tick'], [10_050, 'tick'], [10_550, 'tick']);
  assert.deepEqual(acts, [[0, 'open'], [10_050, 'close'], [10_550, 'open']]);
});

test('a late error of a closed stream changes nothing', () => {
  const { acts } = play([0, 'tick'], [1, 'failed'], [2, 'failed'], [3, 'failed']);
  assert.deepEqual(acts, [[0, 'open'], [1, 'close']]);
});

test('a hidden page closes the stream and reopens it when it becomes visible', () => {
  const { link, acts } = play([0, 'tick'], [50, 'state'], [60_000, 'sleep'], [90_000, 'tick'], [120_000, 'wake'], [120_010, 'state']);
  assert.deepEqual(acts, [[0, 'open'], [60_000, 'close'], [120_000, 'open']]);
  assert.equal(link.stale, false);
  assert.deepEqual(play([0, 'tick'], [1, 'wake']).acts, [[0, 'open']]);
});
