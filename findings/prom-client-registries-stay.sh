#!/usr/bin/env bash
# prom-client: registries with the metrics of the process, dropped or cleared.
#
# Seen with prom-client 15.1.3, Node 20.20: of 50 registries that a program drops, all stay for ever, with all metrics in them, if
# `collectDefaultMetrics` was called for each; `clear()` frees the metrics and not the registries. Without that call all are collected. What it
# starts (an observer of garbage collections, a sampler of the event loop's delay) has no end: with 1,500 of them an idle process took 0.2 s of
# CPU a second. So one registry for each tenant, test, or server that is started again in the same process costs more each time.
. "$(dirname "$0")/setup.sh"
npm install --no-audit --no-fund --loglevel=error "prom-client@15.1.3"
cat >run.mjs <<'JS'
import { setTimeout } from 'node:timers/promises'
import { collectDefaultMetrics, Gauge, Registry } from 'prom-client'
import { verdict } from './server.mjs'

function make({ withProcess, isCleared }) {
  const registry = new Registry()
  if (withProcess) collectDefaultMetrics({ register: registry })
  const gauge = new Gauge({ name: 'open', help: 'open', registers: [registry] })
  if (isCleared) registry.clear()
  return [new WeakRef(registry), new WeakRef(gauge)]
}

/** How many of 50 registries, and of a gauge in each, are still there after they were dropped. */
async function left(how) {
  const made = Array.from({ length: 50 }, () => make(how))
  for (let times = 0; times < 5; times++) {
    await setTimeout(100)
    gc()
  }
  const alive = (which) => made.filter((refs) => refs[which].deref() !== undefined).length
  return { registries: alive(0), gauges: alive(1) }
}

verdict(
  {
    without: await left({ withProcess: false }),
    dropped: await left({ withProcess: true }),
    cleared: await left({ withProcess: true, isCleared: true }),
  },
  {
    without: { registries: 0, gauges: 0 },
    dropped: { registries: 50, gauges: 50 },
    cleared: { registries: 50, gauges: 0 },
  },
)
JS
node --expose-gc run.mjs
