import { describe, expect, it } from 'vitest'
import { demo } from '../../src/demo/demo.ts'
import { captureTerminal } from '../support/terminal.ts'

const LOOP_NOTICE =
  /You appear to be repeating the same action\. The last [23] tool calls were identical\. Try a different approach\./

describe('the demo', () => {
  it('shows how a run is cautioned, warned and stopped, gets its answer again and then a new budget', async () => {
    const terminal = captureTerminal()
    expect(await demo(terminal)).toBe(0)
    const story = terminal.printed.replace(/\s+/g, ' ')
    const steps = [...terminal.printed.matchAll(/^ +(\d+\/10) +([█░]{10}) +(\w+) +(\S.*)$/gm)]
    expect(steps.map(([, iteration, , label]) => `${iteration} ${label}`)).toEqual([
      ...[1, 2, 3, 4, 5, 6].map((number) => `${number}/10 allow`),
      '7/10 CAUTION',
      '8/10 WARNING',
      '9/10 WARNING',
      '10/10 WARNING',
      '10/10 STOP',
      '10/10 STOP',
      '1/10 allow',
    ])
    expect(steps[6]?.[2]).toBe('███████░░░')
    expect(new Set(steps.slice(0, 10).map(([, , , , does]) => does?.split('(')[0]))).toEqual(
      new Set(['web_search', 'fetch_page', 'take_note']),
    )
    expect(steps[10]?.[4]).toMatch(/^answers/)
    expect(story).toContain(
      'Governor said: [BUDGET: Iteration 7/10. You have 3 iterations left. Start consolidating your work and prepare to provide a final response.]',
    )
    expect(story).toContain('Governor said: [BUDGET: Iteration 10/10. You MUST provide your final response NOW.')
    expect(story).toContain("Governor said: You've reached the maximum number of tool-calling iterations allowed.")
    expect(story.match(/model: Of those I looked at, two have a free tier/g)).toHaveLength(2)
    expect(story).toContain('terminal_state "tool_limit_reached"')
    expect(story).toContain('has_final_answer true')
    expect(story).toContain('Calls to the provider for it: 0.')
    expect(terminal.complaints).toBe('')
    expect(terminal.printed).not.toContain('\u001b')
  })

  it('shows how a call is warned about twice and then blocked', async () => {
    const terminal = captureTerminal()
    await demo(terminal)
    const story = terminal.printed.replace(/\s+/g, ' ')
    const steps = [...terminal.printed.matchAll(/^ +(\d+\/30) +[█░]{10} +(\w+) +(\S.*)$/gm)]
    expect(steps.map(([, iteration, label]) => `${iteration} ${label}`)).toEqual([
      ...['1/30 allow', '2/30 allow', '3/30 allow', '4/30 LOOP', '5/30 allow', '6/30 LOOP', '7/30 BLOCK'],
    ])
    expect(steps.at(-1)?.[3]).toMatch(/^answers/)
    expect(story.split(LOOP_NOTICE)).toHaveLength(3)
    expect(story).toContain("Governor said: [LOOP GUARD] Blocked: 'fetch_page' was called 6 times")
    expect(story).toContain('model: The page gives nothing that settles it')
    expect(story).toContain('Call 7 never reached the agent')
  })

  it('prints colours only on a terminal', async () => {
    const terminal = captureTerminal({ isInteractive: true })
    await demo(terminal)
    expect(terminal.printed).toContain('\u001b[33mCAUTION\u001b[0m')
    expect(terminal.printed).toContain('\u001b[31mSTOP   \u001b[0m')
    expect(terminal.printed).toContain('\u001b[36mLOOP   \u001b[0m')
    const plain = captureTerminal({ isInteractive: true, env: { NO_COLOR: '1' } })
    await demo(plain)
    expect(plain.printed).not.toContain('\u001b')
  })
})
