import assert from 'node:assert/strict';
import { test } from 'node:test';

import { phaseText } from '../src/datasets.ts';
import type { OnlineDataset } from '../src/schema.ts';

const phase = (online: Partial<OnlineDataset> | null): string => {
  const none = { snapshot: null, previous_snapshot: null, pinned: false, keys: null, index_bytes: null, views: null, rows_indexed: null, rows_to_index: null, error: null };
  return phaseText({ phase: 'open', files: 1, files_done: 1, silent_seconds: null, online: online === null ? null : { ...none, ...online } });
};

test('a store that does not answer is named in the state of its dataset', () => {
  const dataset = { files: null, files_done: null, online: null, silent_seconds: 27.4 };
  assert.equal(phaseText({ ...dataset, phase: 'failed' }), 'failed, no answer from the store for 27 s');
  assert.equal(phaseText({ ...dataset, phase: 'open' }), 'open, no answer from the store for 27 s');
});

test('the state of a dataset includes the progress of its lookup index', () => {
  assert.equal(phase(null), 'open');
  assert.equal(phase({}), 'open, lookups not ready');
  assert.equal(phase({ rows_indexed: 25, rows_to_index: 100 }), 'open, lookups not ready, indexing the next snapshot: 25%');
  assert.equal(phase({ snapshot: 's' }), 'open, lookups ready');
  assert.equal(phase({ snapshot: '0123456789', pinned: true }), 'open, lookups ready from pinned snapshot 01234567');
  assert.equal(phase({ snapshot: 's', rows_indexed: 0, rows_to_index: 0 }), 'open, lookups ready, indexing the next snapshot: 0%');
});
