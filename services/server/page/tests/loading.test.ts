import assert from 'node:assert/strict';
import { test } from 'node:test';

import { loadingText } from '../src/loading.ts';

const loading = { blocks: 95, blocks_done: 40, waits_for_memory: false };

test('a session tells how far its window is loaded', () => {
  assert.equal(loadingText({ loading, batches: 0 }), 'loading the first window: 40 of 95 blocks');
  assert.equal(loadingText({ loading, batches: 7 }), 'loading the next window: 40 of 95 blocks');
  assert.equal(loadingText({ loading: { ...loading, blocks_done: 0, waits_for_memory: true }, batches: 0 }), 'the first window waits for memory');
  assert.equal(loadingText({ loading: null, batches: 7 }), '');
});
