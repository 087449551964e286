import { describe, expect, it } from 'vitest'
import { labelIn } from '../../src/core/conversation/label.ts'
import { conversationOf, registry, said, system, user } from './transcript.ts'

const labelOf = (messages: Parameters<typeof conversationOf>[0], labels: 'folder' | 'task' = 'folder') =>
  labelIn(conversationOf(messages), registry, labels)

describe('the label of a session', () => {
  it.each([
    ['<cwd>/home/me/shop</cwd>', 'shop'],
    ['Working directory: /home/me/shop\nDate: today', 'shop'],
    ['Current working directory (/home/me/shop) Files', 'shop'],
    ['working directory is: ~/code/shop/', 'shop'],
    ['Working directory: C:\\Users\\me\\shop\n', 'shop'],
    ["I'm currently working in the directory: /home/me/shop\n", 'shop'],
    ['workspace directories:\n  - /home/me/shop\n  - /tmp', 'shop'],
    ['Working directory: ~/\n', ''],
    ['Working directory: C:\\\n', ''],
    ['Working directory: /home/../..\n', ''],
    ['<cwd>/home/..</cwd>', ''],
    ['Working directory: /home/of the user\n', ''],
    ['Read /home/me/shop first.', ''],
  ])('is the last segment of the folder that an agent states: %j gives %j', (text, label) => {
    expect(labelOf([system(text), user('Go.')])).toBe(label)
  })

  it('is cut off after 48 characters', () => {
    expect(labelOf([system(`<cwd>/${'a'.repeat(60)}</cwd>`), user('Go.')])).toBe('a'.repeat(48))
  })

  it('comes from what a harness writes beside the words of its user, and never from these', () => {
    const written = '<environment_context><cwd>/home/me/shop</cwd></environment_context>'
    expect(labelOf([user(written), user('Go.')])).toBe('shop')
    expect(labelOf([user('My <cwd>/home/me/shop</cwd> is broken.')])).toBe('')
    expect(labelOf([said(written), user('Go.')])).toBe('')
    expect(labelOf([...new Array(8).fill(user('Go.')), user(written)])).toBe('')
  })

  it('is the first words of the task without the last one where that is asked for, else the folder', () => {
    const folder = system('<cwd>/home/me/shop</cwd>')
    expect(labelOf([folder, user('Fix the  broken\nbuild please')], 'task')).toBe('Fix the broken build…')
    expect(labelOf([folder, user('Go')], 'task')).toBe('shop')
    expect(labelOf([folder, user('Go'), user('Fix it now')], 'task')).toBe('Fix it…')
    const exact = `${'a'.repeat(23)} ${'b'.repeat(23)} c d`
    expect(labelOf([user(exact)], 'task')).toBe(`${'a'.repeat(23)} ${'b'.repeat(23)}…`)
    expect(labelOf([user(`${'a'.repeat(23)} ${'b'.repeat(24)} c d`)], 'task')).toBe(`${'a'.repeat(23)}…`)
    expect(labelOf([user('Go')], 'task')).toBe('')
  })
})
