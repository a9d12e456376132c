import assert from 'node:assert/strict';
import { test } from 'node:test';

import { increase, sampled } from '../src/recent.ts';
import type { Sample } from '../src/recent.ts';

const at = (time: number, hits: number): Sample<'hits'> => ({ time, counters: { hits } });

test('an increase covers the last ten seconds, also after a pause without states', () => {
  let samples: Sample<'hits'>[] = [];
  for (let second = 0; second <= 30; second += 1) samples = sampled(samples, at(second, second * 5));
  assert.equal(increase(samples, 'hits'), 50);
  samples = sampled(samples, at(300, 9000));
  assert.equal(increase(samples, 'hits'), null, 'nothing is known about the last ten seconds');
  samples = sampled(samples, at(301, 9007));
  assert.equal(increase(samples, 'hits'), 7);
});

test('a restarted server begins anew: no increase is negative', () => {
  let samples = sampled([at(1, 1000)], at(2, 1010));
  samples = sampled(samples, at(3, 4));
  assert.equal(increase(samples, 'hits'), null);
  samples = sampled(samples, at(4, 9));
  assert.equal(increase(samples, 'hits'), 5);
});

test('two states of one time do not divide by zero', () => {
  assert.equal(increase(sampled([at(1, 3)], at(1, 3)), 'hits'), null);
});
