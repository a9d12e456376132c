// The pipeline as one box per stage; the bottleneck is highlighted.

import type { Overview, Stage } from './schema.ts';
import { attribute, byId, Figure, h, place, property, show, text } from './dom.ts';
import { levelOf } from './verdict.ts';
import { bytesPerSecond, number, percent, perSecond } from './format.ts';

const DESCRIPTIONS: Record<string, string> = {
  storage: 'reads bytes from the store',
  decode: 'decodes Parquet into columns',
  gather: 'gathers rows into batches',
  send: 'sends batches to trainers',
  trainers: 'compute',
};

class Box {
  readonly root: HTMLElement;
  private readonly mark: HTMLElement;
  private readonly fill = h('span', { class: 'meter-fill' });
  private readonly busy = h('span', { class: 'meter', role: 'img' }, this.fill);
  private readonly figures: Map<string, Figure>;

  constructor(name: string, mark: string, labels: readonly string[]) {
    this.mark = h('strong', { class: 'bottleneck-mark' }, mark);
    this.figures = new Map(labels.map((label) => [label, new Figure(label)]));
    this.root = h(
      'li',
      { class: 'stage', id: `pipeline-${name}`, 'data-testid': `pipeline-${name}` },
      h('div', { class: 'stage-head' }, h('h3', {}, name), this.mark),
      h('p', { class: 'muted' }, DESCRIPTIONS[name] ?? ''),
      this.busy,
      h('dl', { class: 'figures' }, ...[...this.figures.values()].map((figure) => figure.root)),
    );
  }

  /** `level` is that of the verdict, if the stage is the bottleneck. */
  set(level: string | null, busy: number | null, values: Record<string, string>): void {
    const limiting = level !== null;
    attribute(this.root, 'data-level', level);
    this.root.classList.toggle('limiting', limiting);
    attribute(this.root, 'data-limiting', limiting);
    show(this.mark, limiting);
    property(this.fill, 'width', `${(Math.min(1, Math.max(0, busy ?? 0)) * 100).toFixed(1)}%`);
    attribute(this.busy, 'aria-label', `busy ${percent(busy)}`);
    for (const [label, value] of Object.entries(values)) this.figures.get(label)?.set(value);
  }
}

export class PipelineView {
  private readonly list = byId('pipeline-stages');
  private readonly stages = new Map<string, Box>();
  private readonly trainers = new Box('trainers', 'sets the pace', ['compute', 'wait', 'sessions']);
  private readonly note = byId('pipeline-note');

  update({ pipeline, verdict }: Overview): void {
    const { key } = levelOf(verdict);
    const boxes = pipeline.map((stage) => this.box(stage, key));
    const trainersLimit = verdict.bottleneck === 'compute' && !pipeline.some((stage) => stage.limiting);
    this.trainers.set(trainersLimit ? key : null, verdict.compute_fraction, {
      compute: percent(verdict.compute_fraction),
      wait: percent(verdict.wait_fraction),
      sessions: number(verdict.sessions),
    });
    place(this.list, [...boxes, this.trainers].map((box) => box.root));
    const limit = pipeline.find((stage) => stage.limiting);
    text(this.note, limit ? `Bottleneck: ${limit.stage}.` : trainersLimit ? 'The trainers set the pace.' : 'No stage is the bottleneck.');
  }

  private box(stage: Stage, level: string): Box {
    let box = this.stages.get(stage.stage);
    if (!box) {
      box = new Box(stage.stage, 'bottleneck', ['rate', 'rows', 'capacity', 'busy', 'in flight', 'threads', 'queued']);
      this.stages.set(stage.stage, box);
    }
    box.set(stage.limiting ? level : null, stage.busy, {
      rate: bytesPerSecond(stage.bytes_per_second),
      rows: perSecond(stage.rows_per_second),
      capacity: bytesPerSecond(stage.capacity_bytes_per_second),
      busy: percent(stage.busy),
      'in flight': number(stage.in_flight),
      threads: number(stage.threads),
      queued: number(stage.queue_depth),
    });
    return box;
  }
}
