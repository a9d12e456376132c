import assert from 'node:assert/strict';
import { test } from 'node:test';

import { lookupError, phaseText } from '../src/datasets.ts';
import type { OnlineDataset } from '../src/schema.ts';

const phase = (online: Partial<OnlineDataset> | null): string => {
  const none = { snapshot: null, previous_snapshot: null, pinned: false, keys: null, index_bytes: null, views: null, rows_indexed: null, rows_to_index: null, error: null };
  return phaseText({ phase: 'open', files: 1, files_done: 1, silent_seconds: null, snapshot: 'abcdef0123', online: online === null ? null : { ...none, ...online } });
};

test('a store that does not answer is named in the state of its dataset', () => {
  const dataset = { files: null, files_done: null, online: null, silent_seconds: 27.4, snapshot: null };
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

test('lookups that cannot follow their dataset name the snapshot that answers and the reason', () => {
  const online = { snapshot: '0123456789', previous_snapshot: null, pinned: false, keys: 3, index_bytes: 1, views: 0, rows_indexed: null, rows_to_index: null, error: 'the key 7 is in two rows' };
  const dataset = { phase: 'open' as const, files: 1, files_done: 1, silent_seconds: null, snapshot: 'abcdef0123', online };
  assert.equal(phaseText(dataset), 'open, lookups outdated, from snapshot 01234567');
  assert.equal(lookupError(dataset), 'lookups answer from the old snapshot, because the key 7 is in two rows');
  // A pinned snapshot is old on purpose, and the first index has no old one.
  for (const other of [{ ...online, pinned: true }, { ...online, snapshot: null }, { ...online, snapshot: dataset.snapshot }]) {
    assert.equal(lookupError({ ...dataset, online: other }), online.error);
    assert.ok(!phaseText({ ...dataset, online: other }).includes('outdated'));
  }
  assert.equal(lookupError({ ...dataset, online: { ...online, error: null } }), null);
  assert.equal(lookupError({ ...dataset, online: null }), null);
});
