import assert from 'node:assert/strict';
import { test } from 'node:test';

import type { BatchRowRange, Job, Session } from '../src/schema.ts';
import { formatValue, jobOf, labelText, queryOf, rowsOf, titles } from '../src/explanation.ts';

const job = (id: string, name: string, rest: Partial<Job> = {}): Job =>
  ({ id, job_name: name, dataset: 'clicks', snapshot: 's', world_size: 2, ...rest }) as Job;

test('a query identifies the batch and escapes the job name', () => {
  const batch = { job_name: 'a b&c=ü', epoch: 0, step: 81_234, rank: 7 };
  assert.equal(queryOf(batch), 'explain?job_name=a+b%26c%3D%C3%BC&epoch=0&step=81234&rank=7');
  assert.equal(queryOf({ ...batch, job_name: 'j' }, { format: 'parquet' }), 'explain?job_name=j&epoch=0&step=81234&rank=7&format=parquet');
});

test('the newest job of a name has no id in its title', () => {
  const jobs = [job('1', 'ctr'), job('2', 'rank'), job('3', 'ctr', { dataset: 'old' }), job('4', '')];
  assert.deepEqual(titles(jobs), ['ctr · clicks', 'rank · clicks', 'ctr · old · 3', 'unnamed · clicks · 4']);
});

test('the job of a session matches its name, dataset, snapshot and world size', () => {
  const session = { job_name: 'ctr', dataset: 'clicks', snapshot: 's', world_size: 2 } as Session;
  const others = [job('1', 'rank'), job('2', 'ctr', { snapshot: 't' }), job('3', 'ctr', { world_size: 4 }), job('4', 'ctr', { dataset: 'old' })];
  assert.equal(jobOf(session, others), undefined);
  assert.equal(jobOf(session, [...others, job('5', 'ctr'), job('6', 'ctr')])?.id, '5');
});

test('formatted values remain distinguishable', () => {
  const all = [null, true, 'inf', 'a name', 0, -3, 8_226_818, 26.18, 4_321_525.625, 0.1 + 0.2, 1 / 3, 0.00001234, -1.5e300, 2.5e9 + 0.5];
  assert.deepEqual(all.map(formatValue), [
    '–', 'true', 'inf', 'a name', '0', '-3', '8226818', '26.18', '4321525.625', '0.3', '0.333333', '1.2340e-5', '-1.5e+300', '2.5000e+9',
  ]);
});

test('row numbers that are not listed are counted', () => {
  const range = (rows: number[], row_count: number) => ({ rows, row_count }) as BatchRowRange;
  assert.equal(rowsOf(range([26_232, 71_906], 2)), '26232 71906');
  assert.equal(rowsOf(range([5, 3], 2000)), '5 3 and 1,998 more');
  assert.equal(rowsOf(range([], 0)), '');
});

test('a label shows its mean, range and nulls', () => {
  assert.equal(labelText({ column: 'click', mean: 0.125, min: false, max: true, nulls: 1 }), 'mean 0.125, false to true, 1 null');
  assert.equal(labelText({ column: 'click', mean: null, min: null, max: null, nulls: 8 }), 'mean –, – to –, 8 nulls');
});
