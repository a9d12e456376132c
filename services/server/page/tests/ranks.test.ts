import assert from 'node:assert/strict';
import { test } from 'node:test';

import { jobText, waitText } from '../src/ranks.ts';
import type { JobRanks as Job } from '../src/schema.ts';
import { levelOf } from '../src/verdict.ts';
import type { Verdict } from '../src/schema.ts';

test('a rank shows how long it waits, and for what if that matters', () => {
  assert.equal(waitText({ wait_fraction: 0.85, bottleneck: 'storage' }), '85%, storage');
  assert.equal(waitText({ wait_fraction: 0.02, bottleneck: 'compute' }), '2%');
  assert.equal(waitText({ wait_fraction: null, bottleneck: 'idle' }), '–');
});

test('a job tells how many of its ranks are at this server', () => {
  const job = { job_name: 'ctr', dataset: 'clicks', running_ranks: 4, world_size: 8 } as Job;
  assert.equal(jobText(job), 'ctr, 4 of 8 ranks at this server');
  assert.equal(jobText({ ...job, running_ranks: 8, job_name: '' }), 'unnamed job on clicks, 8 ranks');
});

const verdict = { bottleneck: 'compute', level: 'none', sessions: 65, input_bound_sessions: 0, silent_seconds: null } as Verdict;

test('the level is never calm while a session is input-bound', () => {
  assert.deepEqual(levelOf(verdict), { key: 'none', word: 'Not input-bound' });
  const one = { ...verdict, input_bound_sessions: 1 };
  assert.deepEqual(levelOf(one), { key: 'input_bound', word: '1 of 65 sessions input-bound' });
  assert.equal(levelOf({ ...one, bottleneck: 'unknown' }).word, '1 of 65 sessions input-bound');
  const alone = { ...verdict, sessions: 1, level: 'input_bound', input_bound_sessions: 1, bottleneck: 'storage' } as Verdict;
  assert.equal(levelOf(alone).word, 'Input-bound');
});

test('a store that does not answer is named with the time since its last answer', () => {
  const silent = { ...verdict, bottleneck: 'storage', level: 'input_bound', silent_seconds: 27.4 } as Verdict;
  assert.deepEqual(levelOf(silent), { key: 'input_bound', word: 'No answer from the store for 27 s' });
});
