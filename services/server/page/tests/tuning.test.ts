import assert from 'node:assert/strict';
import { test } from 'node:test';

import type { Batching, Forecast } from '../src/api.ts';
import { compare, difference, isEmpty } from '../src/tuning.ts';

const batching: Batching = { max_batch_rows: 1024, max_queue_delay: '5ms', idle: true, slo: '40ms' };
const forecast = (capacity: number, latency: number | null): Forecast => ({
  capacity_rows_per_second: capacity,
  utilization: 0.5,
  batch_rows: 100,
  batch_seconds: 0.01,
  latency_seconds: latency,
});

test('only what was turned is sent', () => {
  assert.ok(isEmpty(difference(batching, { rows: 1024, delay: 0.005, idle: true })));
  assert.deepEqual(difference(batching, { rows: 512, delay: 0.005, idle: true }), { max_batch_rows: 512 });
  assert.deepEqual(difference(batching, { rows: 1024, delay: 0.0025, idle: false }), { max_queue_delay: '2500us', idle: false });
});

test('a forecast says before, after, and whether the SLO holds', () => {
  const tuned = { name: 'q', dry_run: true, batching, forecast: forecast(55_000, 0.018), forecast_before: forecast(41_000, 0.012) };
  const words = compare(tuned, 0.04);
  assert.match(words, /41\.0 k|41 k/);
  assert.match(words, /latency 12 ms → 18 ms/);
  assert.match(words, /Within the SLO of 40 ms/);
  assert.match(compare({ ...tuned, forecast: forecast(1, 0.05) }, 0.04), /misses the SLO/);
  assert.match(compare({ ...tuned, forecast: forecast(1, null) }, 0.04), /more comes than it takes.*misses the SLO/);
  assert.match(compare({ ...tuned, forecast: null }, 0.04), /Nothing to go by yet/);
});
