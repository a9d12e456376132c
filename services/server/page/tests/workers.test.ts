import assert from 'node:assert/strict';
import { test } from 'node:test';

import { workersText } from '../src/workers.ts';

test('overdue and suspended workers stand next to those that get batches', () => {
  assert.equal(workersText({ workers: 3, overdue_workers: 0, suspended_workers: 0 }), '3');
  assert.equal(workersText({ workers: 2, overdue_workers: 0, suspended_workers: 1 }), '2, 1 suspended');
  assert.equal(workersText({ workers: 0, overdue_workers: 2, suspended_workers: 12 }), '0, 2 overdue, 12 suspended');
});
