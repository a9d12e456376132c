import assert from 'node:assert/strict';
import { test } from 'node:test';

import { delay, rows } from '../src/scale.ts';

test('values grow with the position and map back to it', () => {
  for (const scale of [rows, delay]) {
    for (let position = 1; position <= scale.positions; position += 1) {
      assert.ok(scale.value(position) >= scale.value(position - 1), `${position}`);
    }
    for (let position = scale === rows ? 48 : 0; position <= scale.positions; position += 1) {
      assert.equal(scale.position(scale.value(position)), position);
    }
  }
});

test('powers of two are exact positions of the rows slider', () => {
  for (let count = 1; count <= 65_536; count *= 2) assert.equal(rows.value(rows.position(count)), count);
  assert.equal(rows.value(rows.positions), 65_536);
});

test('delays start at 0 and are round', () => {
  assert.equal(delay.value(0), 0);
  for (const seconds of [0, 0.0001, 0.001, 0.01, 0.1, 1]) assert.equal(delay.value(delay.position(seconds)), seconds);
});

test('values beyond the range map to its ends', () => {
  assert.equal(rows.position(0), 0);
  assert.equal(rows.position(1e9), rows.positions);
  assert.equal(delay.position(60), delay.positions);
});
