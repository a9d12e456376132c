// Which batch is asked for, and how what is said of it is put. Pure.

import type { Asked, BatchLabel, BatchPiece, Job, Session, Value } from './api.ts';
import { number, plural, UNKNOWN } from './format.ts';

export function queryOf({ job, epoch, step, rank }: Asked, more: Record<string, string> = {}): string {
  return `explain?${new URLSearchParams({ job, epoch: `${epoch}`, step: `${step}`, rank: `${rank}`, ...more })}`;
}

/** What to call each job: the newest of a name by that, the others, which have it too, also by their id. */
export function titles(jobs: readonly Job[]): string[] {
  const taken = new Set(['']);
  return jobs.map(({ id, job, dataset }) => {
    const title = `${job || 'without a name'} · ${dataset}${taken.has(job) ? ` · ${id}` : ''}`;
    taken.add(job);
    return title;
  });
}

/** The job that a session streams. Two may differ in nothing that a session tells; then it is the newer one. */
export function jobOf(session: Session, jobs: readonly Job[]): Job | undefined {
  return jobs.find(
    ({ job, dataset, snapshot, world_size }) =>
      job === session.job && dataset === session.dataset && snapshot === session.snapshot && world_size === session.world_size,
  );
}

/** Whole numbers as they are, others with six decimals, or an exponent where these would say nothing. */
export function spelled(value: Value): string {
  if (value === null) return UNKNOWN;
  if (typeof value !== 'number' || Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  return size < 1e-4 || size >= 1e9 ? value.toExponential(4) : String(Number(value.toFixed(6)));
}

/** Row numbers to be looked up, so without commas; `row_count` of them are not all listed. */
export function rowsOf({ rows, row_count }: BatchPiece): string {
  const left = row_count - rows.length;
  return `${rows.join(' ')}${left > 0 ? ` and ${number(left)} more` : ''}`;
}

export function labelWords({ mean, min, max, nulls }: BatchLabel): string {
  return `mean ${spelled(mean)}, ${spelled(min)} to ${spelled(max)}, ${plural(nulls, 'null')}`;
}
