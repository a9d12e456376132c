// The way of the data as a picture: a box a stage, the limit with a frame and a word.

import type { Overview, Stage } from './api.ts';
import { attribute, byId, Figure, h, place, property, show, text } from './dom.ts';
import { bytesPerSecond, number, percent, perSecond, UNKNOWN } from './format.ts';

const WORDS: Record<string, string> = {
  storage: 'bytes from the store',
  decode: 'Parquet to columns',
  gather: 'rows to batches',
  send: 'batches to the trainers',
  trainers: 'compute',
};

class Box {
  readonly root: HTMLElement;
  private readonly limit = h('strong', { class: 'limit-word' }, 'limit');
  private readonly fill = h('span', { class: 'meter-fill' });
  private readonly busy = h('span', { class: 'meter', role: 'img' }, this.fill);
  private readonly figures: Map<string, Figure>;

  constructor(name: string, labels: readonly string[]) {
    this.figures = new Map(labels.map((label) => [label, new Figure(label)]));
    this.root = h(
      'li',
      { class: 'stage', id: `pipeline-${name}`, 'data-testid': `pipeline-${name}` },
      h('div', { class: 'stage-head' }, h('h3', {}, name), this.limit),
      h('p', { class: 'muted' }, WORDS[name] ?? ''),
      this.busy,
      h('dl', { class: 'figures' }, ...[...this.figures.values()].map((figure) => figure.root)),
    );
  }

  set(limiting: boolean, busy: number | null, values: Record<string, string>): void {
    this.root.classList.toggle('limiting', limiting);
    attribute(this.root, 'data-limiting', limiting);
    show(this.limit, limiting);
    property(this.fill, 'width', `${(Math.min(1, Math.max(0, busy ?? 0)) * 100).toFixed(1)}%`);
    attribute(this.busy, 'aria-label', `busy ${percent(busy)}`);
    for (const [label, value] of Object.entries(values)) this.figures.get(label)?.set(value);
  }
}

export class PipelineView {
  private readonly list = byId('pipeline-stages');
  private readonly stages = new Map<string, Box>();
  private readonly trainers = new Box('trainers', ['busy', 'wait', 'sessions']);
  private readonly note = byId('pipeline-note');

  update({ pipeline, verdict }: Overview): void {
    const boxes = pipeline.map((stage) => this.box(stage));
    // No stage is the limit when the trainers are.
    const trainersLimit = verdict.limit === 'consumer' && !pipeline.some((stage) => stage.limiting);
    this.trainers.set(trainersLimit, verdict.utilization, {
      busy: percent(verdict.utilization),
      wait: percent(verdict.stall),
      sessions: number(verdict.sessions),
    });
    place(this.list, [...boxes, this.trainers].map((box) => box.root));
    const limit = pipeline.find((stage) => stage.limiting);
    text(this.note, limit ? `The limit: ${limit.stage}.` : trainersLimit ? 'The limit: the trainers.' : 'No stage is the limit.');
  }

  private box(stage: Stage): Box {
    let box = this.stages.get(stage.stage);
    if (!box) {
      box = new Box(stage.stage, ['rate', 'rows', 'capacity', 'busy', 'at work', 'queue']);
      this.stages.set(stage.stage, box);
    }
    box.set(stage.limiting, stage.busy, {
      rate: bytesPerSecond(stage.bytes_per_second),
      rows: perSecond(stage.rows_per_second),
      capacity: bytesPerSecond(stage.capacity_bytes_per_second),
      busy: percent(stage.busy),
      'at work': number(stage.active),
      queue: queueWords(stage),
    });
    return box;
  }
}

function queueWords({ queue, queue_limit }: Stage): string {
  if (queue === null) return UNKNOWN;
  return queue_limit === null ? number(queue) : `${number(queue)} of ${number(queue_limit)}`;
}
