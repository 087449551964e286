/** `sessions.labels`: what people see of what an agent does, and who never sees it. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { type Labels, labelIn } from '../../src/core/conversation/label.ts'
import { buildRegistry } from '../../src/core/harness/match.ts'
import { HARNESS_TEXTS, SUMMARY_REQUESTS } from '../../src/core/harness/texts.ts'
import { labelOf } from '../../src/ops/sessions/labels.ts'
import { conversationOf } from '../core/transcript.ts'
import { ask, listed } from '../support/admin.ts'
import { callModel, runAgent } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { runaway } from '../support/provider.ts'

const registry = buildRegistry(HARNESS_TEXTS, SUMMARY_REQUESTS)

function labelled(labels: Labels, system: string, ...users: readonly string[]): string {
  const messages = [{ role: 'system', content: system }, ...users.map((content) => ({ role: 'user', content }))]
  return labelIn(conversationOf(messages), registry, labels)
}

/** How agents write their working directory into a prompt. */
const FORMS: Readonly<Record<string, (path: string) => readonly [system: string, ...users: string[]]>> = {
  'Claude Code': (path) => [
    `You are a coding agent. Do not change the working directory: use absolute paths.\n` +
      `You have been invoked in the following environment: \n - Primary working directory: ${path}\n - Is a git repository: true`,
    'Fix it.',
  ],
  'Claude Code, older': (path) => [`<env>\nWorking directory: ${path}\nIs directory a git repo: No\n</env>`, 'Fix it.'],
  opencode: (path) => [
    `Here is the environment:\n<env>\n  Working directory: ${path}\n  Platform: linux\n</env>`,
    'Go.',
  ],
  codex: (path) => [
    'You are Codex.',
    `<environment_context>\n  <cwd>${path}</cwd>\n  <shell>bash</shell>\n</environment_context>`,
    'Go.',
  ],
  pi: (path) => [
    `You are an expert coding assistant.\nCurrent date: 2026-11-27\nCurrent working directory: ${path}`,
    'Go.',
  ],
  'Copilot CLI': (path) => [
    `<environment_context>\n* Current working directory: ${path}\n</environment_context>`,
    'Go.',
  ],
  cline: (path) => [
    'You are Cline.',
    `<environment_details>\n# Current Working Directory (${path}) Files\na.ts\n</environment_details>`,
  ],
  'qwen-code': (path) => [
    'You are Qwen.',
    `This is the Qwen Code. We are setting up the context for our chat.\nI'm currently working in the directory: ${path}\n`,
  ],
  'gemini-cli': (path) => [
    'You are.',
    `<session_context>\n- **Workspace Directories:**\n  - ${path}\n</session_context>`,
  ],
}

/** A name of a folder: no separators, no quotes, no white space. */
const folderName = fc
  .stringMatching(/^[\p{L}\d_@+-][\p{L}\d_.@+-]{0,30}[\p{L}\d_@+-]$/u)
  .filter((name) => !/^[a-z]:$/i.test(name))
const segments = fc.array(folderName, { minLength: 1, maxLength: 6 })

describe('the folder of a label', () => {
  it.each(Object.keys(FORMS))('is the last segment of the path, and never more, as %s writes it', (agent) => {
    fc.assert(
      fc.property(segments, fc.constantFrom('/', '~/', 'C:\\'), (names, root) => {
        const separator = root === 'C:\\' ? '\\' : '/'
        const [system = '', ...users] = FORMS[agent]?.(root + names.join(separator)) ?? []
        expect(labelled('folder', system, ...users)).toBe(names.at(-1)?.slice(0, 48))
      }),
    )
  })

  it('is no part of any other text: of a path that goes on in a sentence, of a root, of words alone', () => {
    for (const text of [
      'working directory: /home/me/app and then the secret plan',
      'working directory: /',
      'working directory: ~/',
      'working directory: C:\\',
      'Stay in your current working directory throughout the session.',
      'working directory: relative/path',
      `working directory: /${'a/'.repeat(3_000)}b`,
    ])
      expect(labelled('folder', text, 'Go.'), text.slice(0, 60)).toBe('')
  })

  it("is not read out of a human's words", () => {
    expect(labelled('folder', 'You help.', 'The working directory: /home/me/secret\n')).toBe('')
  })

  it('never has a separator and never more than 48 characters, whatever the text', () => {
    const path = fc.string({ unit: 'grapheme', maxLength: 200 })
    fc.assert(
      fc.property(fc.constantFrom(...Object.keys(FORMS)), path, (agent, text) => {
        const [system = '', ...users] = FORMS[agent]?.(`/${text}`) ?? []
        const label = labelled('folder', system, ...users)
        expect(label.length).toBeLessThanOrEqual(48)
        expect(label).not.toMatch(/[\\/\s]/)
      }),
    )
  })
})

describe('the task of a label', () => {
  it('is the first words of the first human message, without what a harness wrote', () => {
    const reminder = '<system-reminder>Be careful.</system-reminder>'
    expect(labelled('task', '', reminder, 'fix the parser of dates, please', 'and then more')).toBe(
      'fix the parser of dates,…',
    )
  })

  it('is never a whole prompt, and never more than 48 characters, whatever a human says', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'grapheme', maxLength: 300 }), (said) => {
        const label = labelled('task', '', said)
        const shown = label.replace(/…$/, '')
        expect(label.length).toBeLessThanOrEqual(48)
        expect(shown.split(/\s+/).length).toBeLessThanOrEqual(Math.max(1, said.trim().split(/\s+/).length - 1))
        if (shown !== '') expect(said.trim().replace(/\s+/g, ' ').startsWith(shown)).toBe(true)
      }),
    )
  })

  it('is the folder where the human said one word', () => {
    expect(labelled('task', 'Working directory: /home/me/app\n', 'Continue')).toBe('app')
  })
})

const SYSTEM = { role: 'system', content: 'Working directory: /home/me/quiet-harbour\nPlatform: linux' } as const
const START = [SYSTEM, { role: 'user', content: 'repair the crooked lighthouse today' }] as const

describe('a label', () => {
  it.each([
    ['folder', 'quiet-harbour'],
    ['task', 'repair the crooked lighthouse…'],
  ] as const)('is shown in the list, and by nothing that is kept or sent elsewhere: %s', async (labels, label) => {
    const config = { sessions: { labels }, budget: { max_iterations: 3 } }
    const { url, logs, events } = await startBoth(runaway(), config)
    await runAgent(url, [...START], { max: 4 })
    const [row] = await listed(url)
    expect(row).toMatchObject({ label, name: null })
    expect(row && labelOf(row)).toContain(` · ${label} · `)
    expect(await listed(url, '?q=harbour')).toHaveLength(labels === 'folder' ? 1 : 0)
    const metrics = (await ask(url, '/metrics')).text
    const elsewhere = JSON.stringify(events) + logs.join('') + metrics
    expect(elsewhere).not.toMatch(/harbour|lighthouse/)
  })

  it('is not there unless it is opted into', async () => {
    const { url } = await startBoth(runaway())
    await runAgent(url, [...START], { max: 2 })
    const { text } = await ask(url, '/governor/sessions')
    expect(text).not.toMatch(/harbour|lighthouse/)
    expect((await listed(url))[0]).toMatchObject({ label: null })
  })

  it('is hidden as names are', async () => {
    const token = 'an-operators-token'
    const ops = { admin_token: token, names: 'token' }
    const { url } = await startBoth(runaway(), { ops, sessions: { labels: 'folder' } })
    await callModel(url, [...START], { headers: { 'x-governor-session': 'one' } })
    expect((await ask(url, '/governor/sessions')).text).not.toContain('harbour')
    const [row] = await listed(url, '', { authorization: `Bearer ${token}` })
    expect(row).toMatchObject({ label: 'quiet-harbour' })
  })
})
