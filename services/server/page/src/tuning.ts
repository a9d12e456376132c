// What a person turned at a queue's sliders, against what the queue has. Pure.

import type { Batching, Change, Forecast, Tuned } from './api.ts';
import { durationSetting, milliseconds, parseDuration, percent, rowsPerSecond } from './format.ts';

/** Only what differs is sent. */
export function difference(from: Batching, to: { rows: number; delay: number; idle: boolean }): Change {
  const change: Change = {};
  if (to.rows !== from.max_batch_rows) change.max_batch_rows = to.rows;
  const before = parseDuration(from.max_queue_delay) ?? 0;
  if (Math.abs(to.delay - before) > 5e-7) change.max_queue_delay = durationSetting(to.delay);
  if (to.idle !== from.idle) change.idle = to.idle;
  return change;
}

export function isEmpty(change: Change): boolean {
  return Object.keys(change).length === 0;
}

function latency(forecast: Forecast): string {
  return forecast.latency_seconds === null ? 'more comes than it takes' : milliseconds(forecast.latency_seconds);
}

export function describe(forecast: Forecast): string {
  return `capacity ${rowsPerSecond(forecast.capacity_rows_per_second)}, latency ${latency(forecast)}, ${percent(forecast.utilization)} busy`;
}

/** What a change brings, in a sentence. */
export function compare(tuned: Tuned, sloSeconds: number | null): string {
  const { forecast: after, forecast_before: before } = tuned;
  if (!after) return 'Nothing to go by yet: the queue has no worker, or has not seen enough batches.';
  if (!before) return `Then: ${describe(after)}.`;
  const parts = [
    `capacity ${rowsPerSecond(before.capacity_rows_per_second)} → ${rowsPerSecond(after.capacity_rows_per_second)}`,
    `latency ${latency(before)} → ${latency(after)}`,
    `busy ${percent(before.utilization)} → ${percent(after.utilization)}`,
  ];
  const words = `Forecast: ${parts.join(', ')}.`;
  if (sloSeconds === null) return words;
  const late = after.latency_seconds === null || after.latency_seconds > sloSeconds;
  return late ? `${words} That misses the SLO of ${milliseconds(sloSeconds)}.` : `${words} Within the SLO of ${milliseconds(sloSeconds)}.`;
}
