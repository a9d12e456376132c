import assert from 'node:assert/strict';
import { test } from 'node:test';

import { bytes, duration, durationSetting, milliseconds, number, parseDuration, percent, short, times } from '../src/format.ts';

test('unknown values are a dash, never 0', () => {
  for (const format of [number, short, bytes, percent, milliseconds, duration, times]) {
    assert.equal(format(null), '–');
    assert.equal(format(undefined), '–');
    assert.equal(format(Number.NaN), '–');
  }
  assert.equal(number(0), '0');
});

test('numbers have three significant digits', () => {
  const all = [0.1234, 1.234, 9.996, 12.34, 99.96, 123.4, 1234.5, 4, 1e6].map(number);
  assert.deepEqual(all, ['0.123', '1.23', '10.0', '12.3', '100', '123', '1,235', '4', '1,000,000']);
});

test('counts and bytes use the unit with the fewest digits', () => {
  assert.deepEqual([950, 1000, 999.9, 12_345, 1.2e6, 3e9].map(short), ['950', '1 k', '1.00 k', '12.3 k', '1.20 M', '3 G']);
  assert.deepEqual([0, 999, 1024, 1_048_576, 4.1e11].map(bytes), ['0 B', '999 B', '1 KiB', '1 MiB', '382 GiB']);
});

test('fractions below one percent keep a digit', () => {
  assert.deepEqual([0, 0.004, 0.0096, 0.5, 1].map(percent), ['0%', '0.4%', '1%', '50%', '100%']);
});

test('durations have at most two units', () => {
  const all = [0, 0.25, 4, 59.6, 125, 3600, 11_530, 90_000].map(duration);
  assert.deepEqual(all, ['0 s', '250 ms', '4 s', '1 min', '2 min 5 s', '1 h', '3 h 12 min', '1 d 1 h']);
});

test('durations have the format of the server', () => {
  assert.equal(parseDuration('5ms'), 0.005);
  assert.equal(parseDuration('1s 500ms'), 1.5);
  assert.equal(parseDuration('100us'), 0.0001);
  assert.equal(parseDuration('2m'), 120);
  assert.equal(parseDuration('0s'), 0);
  assert.equal(parseDuration('soon'), null);
  assert.equal(parseDuration('5 lightyears'), null);
  assert.equal(parseDuration(''), null);
  for (const setting of ['5ms', '2500us', '1s', '0s', '120ms']) {
    assert.equal(durationSetting(parseDuration(setting)!), setting);
  }
});
