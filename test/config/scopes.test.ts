import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { checkConfig, loadConfig } from '../../src/config/load.ts'
import { policiesOf } from '../../src/config/policies.ts'
import { temporaryFolder } from '../support/process.ts'

const scopesOf = (budget: object) => policiesOf(checkConfig({ budget }, 'test')).budget.settings.policy.scopes

describe('limits of scopes of time', () => {
  it('are one section, or a list of them, the shortest scope first', () => {
    const day = [{ max_cost_usd: 20 }, { per: 'header:X-Team', max_tokens: '2M', mode: 'observe' }]
    expect(scopesOf({ month: { max_runs: 9 }, day, hour: { max_iterations: 5 } })).toMatchObject([
      { scope: 'hour', per: 'all', limits: { iterations: 5, cost: 0 }, isObserved: false },
      { scope: 'day', per: 'all', limits: { cost: 20 } },
      { scope: 'day', per: 'header:x-team', limits: { tokens: 2_000_000 }, isObserved: true },
      { scope: 'month', limits: { runs: 9 } },
    ])
    expect(scopesOf({})).toEqual([])
    expect(scopesOf({ enabled: false, day })).toEqual([])
  })

  it.each([
    [{ day: {} }, /budget\.day: .*sets no limit: expected one of max_iterations, max_tokens, max_cost_usd, max_runs/],
    [{ day: { per: 'key' } }, /budget\.day: .*sets no limit/],
    [{ week: [{ max_runs: 1 }, { per: 'model' }] }, /budget\.week\.1: .*sets no limit/],
    [{ day: { max_cost_usd: -1 } }, /budget\.day\.max_cost_usd: found -1: expected at least 0/],
    [{ day: { max_dollars: 5 } }, /budget\.day\.max_dollars: unknown key: expected one of per, max_iterations/],
    [{ day: { max_runs: 1, per: 'team' } }, /budget\.day\.per: found "team": expected one of all, credential, key/],
    [{ day: { max_runs: 1, per: 'header:Authorization' } }, /budget\.day\.per: .*for a header with a key: credential/],
    [{ day: { max_runs: 1, per: 'header:X-User-Token' } }, /budget\.day\.per: .*for a header with a key: credential/],
    [{ day: { max_runs: 1, per: 'header:Helicone-Auth' } }, /budget\.day\.per: .*for a header with a key: credential/],
    [{ day: { max_runs: 1, per: 'header:Ocp-Apim-Subscription-Key' } }, /budget\.day\.per: .*with a key: credential/],
    [{ day: [{ max_runs: 1 }, { max_cost_usd: 2 }] }, /budget\.day\.1\.per: .*there is one already/],
    [{ day: 20 }, /budget\.day: found 20/],
    [{ time_zone: 'Mars/Olympus' }, /budget\.time_zone: found "Mars\/Olympus": no such time zone/],
  ])('say what is wrong with them, and where: %j', (budget, message) => {
    expect(() => checkConfig({ budget }, 'test')).toThrow(message)
  })

  it('take the flag for the limit of all requests, beside a list in the file', () => {
    const file = join(temporaryFolder(), 'governor.yaml')
    const scopes = (text: string, flags: object, env: object = {}) => {
      writeFileSync(file, text)
      const { config } = loadConfig({ config: file, ...flags }, env as Record<string, string>)
      return policiesOf(config).budget.settings.policy.scopes
    }
    const flag = { 'max-cost-per-day': '20' }
    expect(scopes('', flag)).toMatchObject([{ scope: 'day', per: 'all', limits: { cost: 20 } }])
    expect(scopes('', {}, { GOVERNOR_MAX_COST_PER_DAY: '7.5' })).toMatchObject([{ limits: { cost: 7.5 } }])
    expect(scopes('budget: { day: { max_cost_usd: 3, max_runs: 4 } }', flag)).toMatchObject([
      { limits: { cost: 20, runs: 4 } },
    ])
    expect(scopes('budget: { day: [{ per: key, max_cost_usd: 3 }] }', flag)).toMatchObject([
      { per: 'key', limits: { cost: 3 } },
      { per: 'all', limits: { cost: 20 } },
    ])
    expect(() => scopes('', { 'max-cost-per-day': 'much' })).toThrow(/--max-cost-per-day: budget\.day\.max_cost_usd/)
  })
})
