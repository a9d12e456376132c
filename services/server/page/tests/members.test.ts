import assert from 'node:assert/strict';
import { test } from 'node:test';

import { entries, summary, trouble } from '../src/members.ts';
import type { MemberInfo, MemberList } from '../src/schema.ts';

const member = (about: Partial<MemberInfo>): MemberInfo => ({
  name: 'a:1', this_server: false, state: 'ready', version: '1.0.0', zone: null, addresses: ['10.0.0.1:1'],
  heard_seconds_ago: 2, listed: true, ...about,
});

const list = (about: Partial<MemberList>): MemberList => ({
  sources: 'file:/members', members: [], others: [], held: null, list_error: null, ...about,
});

test('servers that need attention come first', () => {
  const found = entries(list({
    members: [
      member({ name: 'a:1', this_server: true, addresses: [], heard_seconds_ago: null }),
      member({ name: 'b:1', state: 'draining' }),
      member({ name: 'c:1', state: 'silent' }),
      member({ name: 'd:1', listed: false }),
    ],
    others: [
      { address: 'e:1', refused: true, reason: 'it has another state' },
      { address: 'f:1', refused: false, reason: null },
      { address: 'g:1', refused: false, reason: 'no answer within 2s' },
    ],
  }));
  assert.deepEqual(found.map(({ name, state }) => `${name} ${state}`), [
    'c:1 silent', 'e:1 refused', 'g:1 no answer', 'b:1 draining', 'd:1 ready, not listed', 'f:1 not greeted yet', 'a:1 ready, this server',
  ]);
  assert.equal(found[1]!.trouble, 'it has another state');
  assert.deepEqual(found[6]!.values, ['–', '1.0.0', '–', '–']);
});

test('at most 100 servers are shown', () => {
  const members = Array.from({ length: 150 }, (_, index) => member({ name: `a:${index + 1}` }));
  members.push(member({ name: 'z:1', state: 'silent' }));
  const found = entries(list({ members }));
  assert.equal(found.length, 100);
  assert.equal(found[0]!.name, 'z:1');
});

test('the note counts the servers by state', () => {
  assert.equal(summary(list({ members: [member({})] })), '1 server: 1 ready');
  const members = [member({}), member({}), member({ state: 'silent' })];
  assert.equal(summary(list({ members })), '3 servers: 2 ready, 1 silent');
});

test('trouble with the list is explained', () => {
  assert.equal(trouble(list({})), '');
  assert.match(trouble(list({ list_error: "can't open the file" })), /the last one holds: can't open the file$/);
  const held = { lost: 3, of: 4, adopted_in_seconds: 42 };
  assert.equal(trouble(list({ held })), 'The list lacks 3 of 4 addresses. They are kept for another 42 s.');
});
