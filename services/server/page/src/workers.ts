// Workers of a batch queue.

import type { Load, SilentWorker, SuspendedWorker } from './schema.ts';
import { duration, number, plural } from './format.ts';

type Counts = Pick<Load, 'workers' | 'overdue_workers' | 'suspended_workers'>;

/** Workers that get batches, those that do not answer, and those that failed batches which other workers computed. */
export function workersText(load: Counts): string {
  const others: [number, string][] = [[load.overdue_workers, 'overdue'], [load.suspended_workers, 'suspended']];
  const idle = others.filter(([count]) => count > 0).map(([count, word]) => `, ${number(count)} ${word}`);
  return number(load.workers) + idle.join('');
}

/** The workers of a queue that get no batches. */
export type Unavailable = { load: Counts; silent_workers: SilentWorker[]; suspended_workers: SuspendedWorker[] };

/** One line for each worker that gets no batches, and one for those that are not listed. */
export function workerNotes({ load, silent_workers, suspended_workers }: Unavailable): string[] {
  const silent = silent_workers.map(({ name, silent_seconds }) => `${capitalized(name)} has not answered for ${duration(silent_seconds)}.`);
  const suspended = suspended_workers.map(
    ({ name, remaining_seconds }) => `${capitalized(name)} is suspended: other workers computed the batches that it failed. Next attempt in ${duration(remaining_seconds)}.`,
  );
  return [
    ...silent,
    ...more(load.overdue_workers - silent.length, 'overdue'),
    ...suspended,
    ...more(load.suspended_workers - suspended.length, 'suspended'),
  ];
}

function more(count: number, word: string): string[] {
  return count > 0 ? [`${plural(count, `more ${word} worker`)}.`] : [];
}

function capitalized(name: string): string {
  return name.charAt(0).toUpperCase() + name.slice(1);
}
