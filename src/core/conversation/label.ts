/** What a session is about, for people: the folder of its project, or the first words of its task; never more of it. */

import type { HarnessRegistry } from '../harness/match.ts'
import type { Conversation } from './conversation.ts'
import { userText } from './transcript.ts'

/** What labels show, as `sessions.labels` opts into it. */
export const LABELS = ['none', 'folder', 'task'] as const

export type Labels = (typeof LABELS)[number]

/** The most characters of a path and of a label. */
const MAX_PATH = 256
const MAX_LABEL = 48

/**
 * How agents write the working directory into their prompts: what stands before the path, which goes from its root on
 * (`/a/b`, `~/b`, `C:\\a\\b`), and what after it.
 */
const PATTERNS = [
  // codex
  { before: '<cwd>', after: '</cwd>' },
  // Claude Code, opencode, pi, Copilot CLI, cline, gemini-cli: `Working directory: /a/b`, `working directory is: /a/b`
  { before: 'working directory(?: is)?[:(]? ?[(`"\']?', after: '[)`"\']?\\.?[ \\t]{0,8}(?:$|\\n|Files\\b)' },
  // qwen-code, and gemini-cli before: `I'm currently working in the directory: /a/b`
  { before: 'working in the directory: ?[`"\']?', after: '[`"\']?\\.?[ \\t]{0,8}(?:$|\\n)' },
  // gemini-cli: the first entry of a list
  { before: 'workspace directories:(?:\\*\\*)?\\s{0,8}- ', after: '(?:$|\\n)' },
].map(({ before, after }) => new RegExp(`${before}((?:~?/|[a-z]:[\\\\/])[^\\n<>"'\`()]{1,${MAX_PATH}}?)${after}`, 'i'))

/** Messages that are read, and characters of each text: the folder stands in the first ones. */
const MAX_MESSAGES = 8
const MAX_TEXT = 65_536

/** Returns the last segment of the working directory that a text names; `undefined` if it names no such path. */
function folderIn(text: string): string | undefined {
  for (const pattern of PATTERNS) {
    const [, path = ''] = pattern.exec(text.slice(0, MAX_TEXT)) ?? []
    const name = path
      .trim()
      .split(/[\\/]+/)
      .findLast((segment) => segment !== '')
    // A name with white space may be the words of a sentence.
    if (name !== undefined && !/^[~.]+$|^[a-z]:$|\s/i.test(name)) return name.slice(0, MAX_LABEL)
  }
  return undefined
}

function folderOf(conversation: Conversation, registry: HarnessRegistry): string | undefined {
  const found = folderIn(conversation.systemText())
  if (found !== undefined) return found
  for (let at = 0; at < Math.min(conversation.length, MAX_MESSAGES); at++) {
    const role = conversation.role(at)
    if (role !== 'system' && role !== 'user') continue
    const said = userText(conversation, at, registry)?.trim() ?? ''
    for (const text of conversation.texts(at)) {
      // A harness writes it before the human's words.
      if (text.trim() === '' || said.includes(text.trim())) continue
      const folder = folderIn(said === '' ? text : (text.split(said, 1)[0] ?? ''))
      if (folder !== undefined) return folder
    }
  }
  return undefined
}

/** Returns the first words of what a human said first, and never the last one of them: a label is no whole prompt. */
function taskOf(conversation: Conversation, registry: HarnessRegistry): string | undefined {
  for (let at = 0; at < Math.min(conversation.length, MAX_MESSAGES); at++) {
    const words =
      userText(conversation, at, registry)
        ?.slice(0, 4 * MAX_LABEL)
        .trim()
        .split(/\s+/) ?? []
    let label = ''
    for (const word of words.slice(0, -1)) {
      if (label.length + 1 + word.length >= MAX_LABEL) break
      label += `${label === '' ? '' : ' '}${word}`
    }
    if (label !== '') return `${label}…`
  }
  return undefined
}

/** Returns the label of a conversation; empty if it shows none. Throws `TooMuchToRead`. */
export function labelIn(conversation: Conversation, registry: HarnessRegistry, labels: Labels): string {
  const task = labels === 'task' ? taskOf(conversation, registry) : undefined
  return task ?? folderOf(conversation, registry) ?? ''
}
