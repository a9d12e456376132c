import assert from 'node:assert/strict';
import { test } from 'node:test';

import type { Settings } from '../src/api.ts';
import type { Forecast } from '../src/schema.ts';
import { compare, difference, isEmpty } from '../src/tuning.ts';

const batching = { max_batch_rows: 1024, max_batch_delay: '5ms', eager_dispatch: true, default_timeout: '40ms' } as Settings;
const forecast = (capacity: number, latency: number | null): Forecast => ({
  capacity_rows_per_second: capacity,
  utilization: 0.5,
  batch_rows: 100,
  batch_seconds: 0.01,
  latency_seconds: latency,
});

test('only changed settings are sent', () => {
  assert.ok(isEmpty(difference(batching, { rows: 1024, delay: 0.005, eager: true })));
  assert.deepEqual(difference(batching, { rows: 512, delay: 0.005, eager: true }), { max_batch_rows: 512 });
  assert.deepEqual(difference(batching, { rows: 1024, delay: 0.0025, eager: false }), { max_batch_delay: '2500us', eager_dispatch: false });
});

test('a comparison shows both forecasts and checks the default timeout', () => {
  const changed = { name: 'q', dry_run: true, batching, forecast: forecast(55_000, 0.018), forecast_before: forecast(41_000, 0.012) };
  const summary = compare(changed, 0.04);
  assert.match(summary, /41\.0 k|41 k/);
  assert.match(summary, /latency 12 ms → 18 ms/);
  assert.match(summary, /Within the default timeout of 40 ms/);
  assert.match(compare({ ...changed, forecast: forecast(1, 0.05) }, 0.04), /Exceeds the default timeout/);
  assert.match(compare({ ...changed, forecast: forecast(1, null) }, 0.04), /overloaded.*Exceeds the default timeout/);
  assert.match(compare({ ...changed, forecast: null }, 0.04), /No forecast yet/);
});
