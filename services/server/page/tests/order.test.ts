import assert from 'node:assert/strict';
import { test } from 'node:test';

import type { Session } from '../src/schema.ts';
import { arrange, pageOf } from '../src/order.ts';
import type { View } from '../src/order.ts';

const session = (id: string, rest: object): Session =>
  ({ id, job_name: 'job', dataset: 'd', snapshot: 's', rank: 0, started_at: 0, progress: null, label: null, verdict: { bottleneck: 'storage', wait_fraction: null }, ...rest }) as unknown as Session;

const view = (rest: Partial<View>): View => ({ key: 'started', ascending: true, filter: '', page: 0, ...rest });
const ids = (sessions: Session[]) => sessions.map(({ id }) => id).join('');

test('unknown values come last in both directions', () => {
  const all = [session('a', { progress: null }), session('b', { progress: 0.9 }), session('c', { progress: 0.1 })];
  assert.equal(ids(arrange(all, view({ key: 'progress' }))), 'cba');
  assert.equal(ids(arrange(all, view({ key: 'progress', ascending: false }))), 'bca');
});

test('equal rows keep the order of the server', () => {
  const all = ['a', 'b', 'c'].map((id) => session(id, {}));
  assert.equal(ids(arrange(all, view({ key: 'job' }))), 'abc');
  assert.equal(ids(arrange(all, view({ key: 'job', ascending: false }))), 'abc');
});

test('a filter requires all of its words', () => {
  const all = [session('a', { job_name: 'CTR' }), session('b', { job_name: 'ctr', rank: 3 }), session('c', { label: { skewed: true } })];
  assert.equal(ids(arrange(all, view({ filter: 'ctr ' }))), 'ab');
  assert.equal(ids(arrange(all, view({ filter: 'ctr rank 3' }))), 'b');
  assert.equal(ids(arrange(all, view({ filter: 'skewed' }))), 'c');
});

test('a page number stays within the number of pages', () => {
  const all = Array.from({ length: 1000 }, (_, index) => index);
  assert.deepEqual(pageOf(all, 19, 50).items.at(-1), 999);
  assert.equal(pageOf(all, 99, 50).page, 19);
  assert.equal(pageOf(all, -1, 50).from, 0);
  assert.deepEqual(pageOf([], 3, 50), { items: [], page: 0, pages: 1, from: 0 });
});
