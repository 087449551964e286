import { expect, it } from 'vitest'
import { REASONS } from '../../src/core/terminal.ts'
import { stateOf } from '../../src/ops/sessions/labels.ts'

it('people read in a few words why a run was stopped', () => {
  const texts = Object.keys(REASONS).map((terminal_reason) => stateOf({ state: 'stopped', terminal_reason }).text)
  expect(texts).toEqual([
    'stopped: iterations',
    'stopped: tool calls',
    'stopped: tokens',
    'stopped: cost',
    'stopped: time',
    'stopped: loop',
    'stopped: operator',
  ])
})
