// Workers of a batch queue.

import type { Load } from './schema.ts';
import { number } from './format.ts';

/** Workers that get batches, those that do not answer, and those that failed batches which other workers computed. */
export function workersText(load: Pick<Load, 'workers' | 'overdue_workers' | 'suspended_workers'>): string {
  const others: [number, string][] = [[load.overdue_workers, 'overdue'], [load.suspended_workers, 'suspended']];
  const idle = others.filter(([count]) => count > 0).map(([count, word]) => `, ${number(count)} ${word}`);
  return number(load.workers) + idle.join('');
}
