// All batch queues, and the refresh of their throughput-latency curves.

import type { Queue } from './schema.ts';
import type { Admin } from './admin.ts';
import { byId, keyed, show } from './dom.ts';
import { QueueView } from './queue.ts';

const CURVE_MS = 2000;

export class QueuesView {
  private readonly list = byId('queues-list');
  private readonly empty = byId('queues-empty');
  private readonly views = new Map<string, QueueView>();
  private readonly admin: Admin;
  private asked = -Infinity;

  constructor(admin: Admin) {
    this.admin = admin;
  }

  update(queues: Queue[]): void {
    show(this.empty, queues.length === 0);
    this.admin.show(queues.length > 0);
    keyed(this.list, this.views, queues, (queue) => queue.name, (queue) => new QueueView(queue.name, this.admin), (view, queue) => view.update(queue));
    if (performance.now() - this.asked < CURVE_MS) return;
    this.asked = performance.now();
    for (const view of this.views.values()) void view.refresh();
  }
}
