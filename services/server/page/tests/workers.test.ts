import assert from 'node:assert/strict';
import { test } from 'node:test';

import { workerNotes, workersText } from '../src/workers.ts';

test('overdue and suspended workers stand next to those that get batches', () => {
  assert.equal(workersText({ workers: 3, overdue_workers: 0, suspended_workers: 0 }), '3');
  assert.equal(workersText({ workers: 2, overdue_workers: 0, suspended_workers: 1 }), '2, 1 suspended');
  assert.equal(workersText({ workers: 0, overdue_workers: 2, suspended_workers: 12 }), '0, 2 overdue, 12 suspended');
});

test('a worker that does not answer is named with the time since its last answer', () => {
  const load = { workers: 1, overdue_workers: 3, suspended_workers: 1 };
  const silent_workers = [
    { worker: 3, name: "worker 3 (token 'ranker-gpu', 10.0.0.7:40312)", silent_seconds: 127.2 },
    { worker: 0, name: 'worker 0 (Unix socket)', silent_seconds: 1.4 },
  ];
  const suspended_workers = [{ worker: 5, name: 'worker 5 (10.0.0.8:40318)', remaining_seconds: 12 }];
  assert.deepEqual(workerNotes({ load, silent_workers, suspended_workers }), [
    "Worker 3 (token 'ranker-gpu', 10.0.0.7:40312) has not answered for 2 min 7 s.",
    'Worker 0 (Unix socket) has not answered for 1 s.',
    '1 more overdue worker.',
    'Worker 5 (10.0.0.8:40318) is suspended: other workers computed the batches that it failed. Next attempt in 12 s.',
  ]);
});

test('nothing is noted about workers that get batches', () => {
  const load = { workers: 3, overdue_workers: 0, suspended_workers: 0 };
  assert.deepEqual(workerNotes({ load, silent_workers: [], suspended_workers: [] }), []);
});
