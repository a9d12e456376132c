// Queries for a batch, and formatting of its explanation. Pure functions.

import type { BatchId } from './api.ts';
import type { BatchLabel, BatchRowRange, Job, Session } from './schema.ts';
import { number, plural, UNKNOWN } from './format.ts';

export function queryOf({ job_name, epoch, step, rank }: BatchId, more: Record<string, string> = {}): string {
  return `explain?${new URLSearchParams({ job_name, epoch: `${epoch}`, step: `${step}`, rank: `${rank}`, ...more })}`;
}

/** Titles of jobs. The newest job of a name has the name alone; older ones of the same name also have their id. */
export function titles(jobs: readonly Job[]): string[] {
  const taken = new Set(['']);
  return jobs.map(({ id, job_name, dataset }) => {
    const title = `${job_name || 'unnamed'} · ${dataset}${taken.has(job_name) ? ` · ${id}` : ''}`;
    taken.add(job_name);
    return title;
  });
}

/** Returns the job that a session streams; the newest one if several match. */
export function jobOf(session: Session, jobs: readonly Job[]): Job | undefined {
  return jobs.find(
    ({ job_name, dataset, snapshot, world_size }) =>
      job_name === session.job_name && dataset === session.dataset && snapshot === session.snapshot && world_size === session.world_size,
  );
}

/** Formats integers exactly, other numbers with six decimals, and very small or large ones with an exponent. */
export function formatValue(value: unknown): string {
  if (value === null || value === undefined) return UNKNOWN;
  if (typeof value !== 'number' || Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  return size < 1e-4 || size >= 1e9 ? value.toExponential(4) : String(Number(value.toFixed(6)));
}

/** Lists row numbers without separators, so that they can be searched, and counts those not listed. */
export function rowsOf({ rows, row_count }: BatchRowRange): string {
  const left = row_count - rows.length;
  return `${rows.join(' ')}${left > 0 ? ` and ${number(left)} more` : ''}`;
}

export function labelText({ mean, min, max, nulls }: BatchLabel): string {
  return `mean ${formatValue(mean)}, ${formatValue(min)} to ${formatValue(max)}, ${plural(nulls, 'null')}`;
}
