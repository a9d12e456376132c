// Identity of the server, state of the connection, and shutdown notice.

import type { Overview } from './schema.ts';
import { attribute, byId, show, text } from './dom.ts';
import { bytes, clock, duration, number } from './format.ts';
import type { Link } from './link.ts';
import { labelOf } from './buckets.ts';

export class HeaderView {
  private readonly stale = byId('stale-banner');
  private readonly staleText = byId('stale-text');
  private readonly drain = byId('drain-banner');
  private readonly pulse = byId('pulse');
  private at: number | null = null;

  update({ server, verdict, process }: Overview): void {
    this.at = Date.now() / 1000;
    text(byId('server-version'), server.version);
    text(byId('server-grpc'), server.grpc);
    text(byId('server-uptime'), `up ${duration(server.uptime_seconds)}`);
    show(this.drain, server.draining);
    const about = process
      ? `${bytes(process.resident_bytes)} of memory, ${duration(process.cpu_seconds)} of CPU time, ${number(process.threads)} threads, ${number(process.open_files)} open files`
      : '';
    text(byId('process'), about);
    const waits = verdict.wait_fraction === null ? '' : `, ${Math.round(verdict.wait_fraction * 100)}% waiting`;
    const title = `${labelOf(verdict.bottleneck)}${waits} · Forebay`;
    if (document.title !== title) document.title = title;
  }

  /** Shows the age of the data and dims it when it is stale. */
  link(link: Link, why: string, now: number): void {
    const stale = link.stale;
    attribute(document.documentElement, 'data-stale', stale);
    show(this.stale, stale);
    text(byId('stale-spoken'), stale ? 'No update from the server' : '');
    text(this.pulse, stale ? 'stale' : link.heardAt === null ? 'connecting' : 'live');
    attribute(this.pulse, 'data-state', stale ? 'stale' : link.heardAt === null ? 'connecting' : 'live');
    if (!stale) return;
    const silent = Math.floor((now - (link.heardAt ?? link.openedAt)) / 1000);
    const below = this.at === null ? 'No data was received yet.' : `The data below is from ${clock(this.at)}.`;
    text(this.staleText, `No update from the server for ${number(silent)} s. ${below}${why ? ` ${why}` : ''}`);
  }
}
