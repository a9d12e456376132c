// The dashboard: one stream of states, and one view for each part of a state.

import { Admin } from './admin.ts';
import { CacheView } from './cache.ts';
import { CallersView } from './callers.ts';
import { DatasetsView } from './datasets.ts';
import { byId, text } from './dom.ts';
import { EventsView } from './events.ts';
import { ExplainView } from './explain.ts';
import { HeaderView } from './header.ts';
import { Live } from './live.ts';
import { MembersView } from './members.ts';
import { PipelineView } from './pipeline.ts';
import { QueuesView } from './queues.ts';
import { RanksView } from './ranks.ts';
import { Roster } from './roster.ts';
import type { State } from './schema.ts';
import { SessionsView } from './sessions.ts';
import { StallsView } from './stalls.ts';
import { startTheme } from './theme.ts';
import { publishTiles } from './tiles.ts';
import { VerdictView } from './verdict.ts';

publishTiles();
startTheme(byId('theme-toggle'));

const admin = new Admin();
const header = new HeaderView();
const verdict = new VerdictView();
const pipeline = new PipelineView();
const ranks = new RanksView();
const cache = new CacheView();
const stalls = new StallsView();
const queues = new QueuesView(admin);
const datasets = new DatasetsView();
const members = new MembersView();
const callers = new CallersView();
const events = new EventsView();
const explain = new ExplainView();
const sessions = new SessionsView({
  stalls(session) {
    stalls.showSession(session);
    byId('stalls').scrollIntoView({ block: 'start' });
    byId('stall-scope').focus({ preventScroll: true });
  },
  explain(session) {
    byId('explain').scrollIntoView({ block: 'start' });
    void explain.session(session);
  },
});
const roster = new Roster(drawSessions);

let startedAt: number | null = null;
let waiting: State | null = null;

function drawSessions(): void {
  const all = roster.all;
  sessions.update(all, roster.total);
  stalls.updateSessions(all);
}

function draw(state: State): void {
  const { overview } = state;
  if (startedAt !== null && overview.server.started_at !== startedAt) {
    events.clear();
    live.forgetEvents();
  }
  startedAt = overview.server.started_at;
  document.documentElement.dataset['ready'] = 'true';
  admin.set(overview.server.can_administer);
  header.update(overview);
  verdict.update(overview);
  pipeline.update(overview);
  ranks.update(overview.jobs);
  cache.update(overview.cache, overview.server.now);
  stalls.update(state.stalls);
  roster.update(state.sessions);
  drawSessions();
  queues.update(state.queues.queues);
  datasets.update(state.datasets.datasets);
  members.update(state.members);
  callers.update(state.callers);
  example(state);
}

/** Example of a client, with the address and a dataset of this server. */
function example(state: State): void {
  const dataset = state.datasets.datasets[0]?.name ?? 'NAME';
  const address = state.overview.server.grpc;
  text(
    byId('sessions-example'),
    `import forebay\n\nclient = forebay.connect(${JSON.stringify(address)})\nfor batch in client.train(${JSON.stringify(dataset)}, batch_size=4096):\n    ...`,
  );
}

const live = new Live({
  state(state) {
    // While the page is hidden only the newest state is kept, and drawn when it becomes visible.
    if (document.hidden) waiting = state;
    else draw(state);
  },
  events: (fresh) => events.add(fresh),
  link: (link, why) => header.link(link, why, performance.now()),
});

document.addEventListener('visibilitychange', () => {
  if (document.hidden || !waiting) return;
  draw(waiting);
  waiting = null;
});

live.start();
