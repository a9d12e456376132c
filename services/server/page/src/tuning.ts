// Differences between edited and current settings of a queue. Pure functions.

import type { Change, Settings } from './api.ts';
import type { Forecast, SettingsChange } from './schema.ts';
import { durationSetting, milliseconds, parseDuration, percent, rowsPerSecond } from './format.ts';

/** Returns only the settings that differ. */
export function difference(from: Settings, to: { rows: number; delay: number; eager: boolean }): Change {
  const change: Change = {};
  if (to.rows !== from.max_batch_rows) change.max_batch_rows = to.rows;
  const before = parseDuration(from.max_batch_delay) ?? 0;
  if (Math.abs(to.delay - before) > 5e-7) change.max_batch_delay = durationSetting(to.delay);
  if (to.eager !== from.eager_dispatch) change.eager_dispatch = to.eager;
  return change;
}

export function isEmpty(change: Change): boolean {
  return Object.keys(change).length === 0;
}

function latency(forecast: Forecast): string {
  return forecast.latency_seconds === null ? 'overloaded' : milliseconds(forecast.latency_seconds);
}

export function describe(forecast: Forecast): string {
  return `capacity ${rowsPerSecond(forecast.capacity_rows_per_second)}, latency ${latency(forecast)}, ${percent(forecast.utilization)} utilization`;
}

/** Describes the effect of a change in a sentence. */
export function compare(changed: SettingsChange, timeout: number | null): string {
  const { forecast: after, forecast_before: before } = changed;
  if (!after) return 'No forecast yet: it requires a worker and some completed batches.';
  if (!before) return `Forecast: ${describe(after)}.`;
  const parts = [
    `capacity ${rowsPerSecond(before.capacity_rows_per_second)} → ${rowsPerSecond(after.capacity_rows_per_second)}`,
    `latency ${latency(before)} → ${latency(after)}`,
    `utilization ${percent(before.utilization)} → ${percent(after.utilization)}`,
  ];
  const forecast = `Forecast: ${parts.join(', ')}.`;
  if (timeout === null) return forecast;
  const late = after.latency_seconds === null || after.latency_seconds > timeout;
  return `${forecast} ${late ? 'Exceeds' : 'Within'} the default timeout of ${milliseconds(timeout)}.`;
}
