import assert from 'node:assert/strict';
import { test } from 'node:test';

import { greatest, mostUsed, nameOf } from '../src/callers.ts';
import type { CallerInfo, CallerUsage } from '../src/schema.ts';

const caller = (about: Partial<CallerInfo>): CallerInfo => ({
  token: null, address: null, streams: 0, exchanges: 0, workers: 0, calls: 0, subscribers: 0, incoming_bytes: 0, unsent_bytes: 0,
  ...about,
});

const usage = (...callers: CallerInfo[]): CallerUsage => ({
  callers,
  resources: (['streams', 'exchanges', 'workers', 'calls', 'unsent_bytes'] as const).map((resource) => ({
    resource,
    used: callers.reduce((sum, one) => sum + one[resource], 0),
    limit: resource === 'unsent_bytes' ? 1 << 28 : 16,
  })),
});

test('a caller has the name of its token, its address, or that of the socket', () => {
  assert.deepEqual([caller({ token: 'ctr' }), caller({ address: '10.0.0.1' }), caller({})].map(nameOf), ['ctr', '10.0.0.1', 'Unix socket']);
});

test('the callers that hold the greatest part of any resource come first', () => {
  const all = usage(
    caller({ token: 'few', streams: 2 }),
    caller({ token: 'bytes', unsent_bytes: 200 << 20 }),
    caller({ token: 'streams', streams: 14 }),
  );
  assert.deepEqual(greatest(all).map(nameOf), ['streams', 'bytes', 'few']);
  const many = usage(...Array.from({ length: 60 }, (_, index) => caller({ token: `t${index}`, calls: index })));
  assert.equal(greatest(many).length, 50);
  assert.equal(nameOf(greatest(many)[0]!), 't59');
});

test('the note names the most used resource', () => {
  assert.equal(mostUsed(usage()), '');
  assert.equal(mostUsed(usage(caller({ streams: 14, calls: 1 }))), 'most used: streams, 14 of 16 (88%)');
  assert.equal(mostUsed(usage(caller({ unsent_bytes: 128 << 20 }))), 'most used: unsent, 128 MiB of 256 MiB (50%)');
});
