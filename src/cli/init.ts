/** `governor init`: writes a short configuration after four questions. */

import { existsSync, writeFileSync } from 'node:fs'
import { createInterface } from 'node:readline/promises'
import { Readable } from 'node:stream'
import { errorOf } from '../core/thrown.ts'
import { PROGRAM } from '../program.ts'
import { DEFAULT_JOURNAL } from '../telemetry/journal.ts'
import { type Call, CommandError, dollarsIn, type Terminal } from './command.ts'

const FILE = 'governor.yaml'
const ADDRESS = 'http://127.0.0.1:8787'

const CLIENTS = [
  { name: 'Claude Code', use: 'governor run -- claude' },
  { name: 'codex', use: 'governor run -- codex' },
  { name: 'opencode', use: 'governor run -- opencode' },
  { name: 'OpenAI SDK', use: `OPENAI_BASE_URL=${ADDRESS}/v1` },
  { name: 'Anthropic SDK', use: `ANTHROPIC_BASE_URL=${ADDRESS}` },
  { name: 'another client', use: `its base URL: ${ADDRESS}/v1, or ${ADDRESS} for Anthropic's API` },
] as const

const MODES = ['enforce', 'observe'] as const

const DEFAULTS = { client: CLIENTS[0], dollars: 5, perDay: 20, mode: 'enforce' }

/**
 * Asks until there is an answer that can be read; an empty line takes the default, and so does none, unless a person
 * left the questions with Ctrl-D. Throws `CommandError` then.
 */
async function askQuestions(terminal: Terminal) {
  const input = createInterface({ input: Readable.from(terminal.input()) })
  const lines = input[Symbol.asyncIterator]()
  const answer = async <Value>(
    question: string,
    otherwise: Value,
    expects: string,
    read: (text: string) => Value | undefined,
  ) => {
    for (;;) {
      terminal.out(question)
      const { value, done } = await lines.next()
      if (done && terminal.isInteractive) {
        terminal.out('\n')
        throw new CommandError(`${FILE} is not written: a question has no answer; --yes takes all defaults`)
      }
      const text = done ? '' : value.trim()
      const chosen = text === '' ? otherwise : read(text)
      if (chosen !== undefined) return chosen
      terminal.out(`${JSON.stringify(text)}: expected ${expects}\n`)
    }
  }
  const amount = 'dollars, such as 5 or 0.25'
  const names = CLIENTS.map(({ name }, at) => `  ${at + 1} ${name}\n`).join('')
  const client = await answer(
    `Which client?\n${names}[1] `,
    DEFAULTS.client,
    `a number from 1 to ${CLIENTS.length}`,
    (text) => CLIENTS[Number(text) - 1],
  )
  const dollars = await answer(
    'Dollars that one task may cost, 0 for no limit? [5] ',
    DEFAULTS.dollars,
    amount,
    dollarsIn,
  )
  const mode = await answer(
    'enforce the limits, or only observe? [enforce] ',
    DEFAULTS.mode,
    'enforce or observe',
    (text) => MODES.find((one) => one.startsWith(text.toLowerCase())),
  )
  const perDay = await answer(
    'Most dollars a day, all tasks together, 0 for no limit? [20] ',
    DEFAULTS.perDay,
    amount,
    dollarsIn,
  )
  input.close()
  return { client, dollars, perDay, mode }
}

/** Writes the file. Throws `CommandError` if there is one already, or it can't be written. */
export async function init({ flags: { yes } }: Call, terminal: Terminal): Promise<number> {
  if (existsSync(FILE)) throw new CommandError(`${FILE} is here already: change it, or move it away`)
  const { client, dollars, perDay, mode } = yes ? DEFAULTS : await askQuestions(terminal)
  const { name, use } = client
  const text = `# Governor in front of ${name}: ${use}
# governor check-config says what is wrong here, governor --help names the commands.
mode: ${mode.padEnd(22)}# enforce; or observe: count and report, change nothing
budget:
  max_iterations: 300       # model calls from one human message to the next
  run: { max_cost_usd: ${dollars} }  # dollars in the same time; 0: no limit
  day: { max_cost_usd: ${perDay} } # dollars a day, all together; governor budget shows them
usage:
  journal: ${DEFAULT_JOURNAL} # governor report adds it up
`
  try {
    writeFileSync(FILE, text, { flag: 'wx' })
  } catch (error) {
    throw new CommandError(`${FILE} can't be written: ${errorOf(error).message}`)
  }
  const isRun = use.startsWith('governor run')
  terminal.out(`\nWrote ${FILE}. ${isRun ? 'Now:' : 'Now start governor, and set'} ${use}\n`)
  const typed = `node ${/\s/.test(PROGRAM) ? `'${PROGRAM}'` : PROGRAM}`
  if (client.name === 'Claude Code') {
    const command = JSON.stringify(`${typed} statusline`)
    terminal.out(
      `For its status line, in ~/.claude/settings.json:\n  "statusLine": {"type": "command", "command": ${command}}\n`,
    )
  }
  terminal.out(`\`governor\` stands for ${typed}, in every folder; governor doctor checks everything.\n`)
  return 0
}
