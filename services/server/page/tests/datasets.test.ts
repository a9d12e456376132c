import assert from 'node:assert/strict';
import { test } from 'node:test';

import { phaseWords } from '../src/datasets.ts';
import type { Online } from '../src/api.ts';

const words = (online: Partial<Online> | null): string => {
  const none = { snapshot: null, keys: null, index_bytes: null, rows_indexed: null, rows_to_index: null, error: null };
  return phaseWords({ phase: 'open', files: 1, files_done: 1, online: online === null ? null : { ...none, ...online } });
};

test('a dataset that is looked up says how far its index is', () => {
  assert.equal(words(null), 'open');
  assert.equal(words({}), 'open, not yet online');
  assert.equal(words({ rows_indexed: 25, rows_to_index: 100 }), 'open, not yet online, reading keys of the next snapshot: 25 %');
  assert.equal(words({ snapshot: 's' }), 'open, online');
  assert.equal(words({ snapshot: 's', rows_indexed: 0, rows_to_index: 0 }), 'open, online, reading keys of the next snapshot: 0 %');
});
