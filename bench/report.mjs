/** Results as Markdown tables, padded so that they read well on a terminal too. */

function isNumber(text) {
  return /^[−-]?\d/.test(text)
}

function line(cells, widths, isRight) {
  const padded = cells.map((cell, at) => (isRight[at] ? cell.padStart(widths[at]) : cell.padEnd(widths[at])))
  return `| ${padded.join(' | ')} |`
}

/** A table of texts; columns of numbers are flush right. */
export function renderTable({ title, columns, rows, notes = [] }) {
  const widths = columns.map((name, at) => Math.max(3, name.length, ...rows.map((row) => row[at].length)))
  const isRight = columns.map((_, at) => rows.some((row) => isNumber(row[at])))
  const rule = widths.map((width, at) => (isRight[at] ? `${'-'.repeat(width - 1)}:` : '-'.repeat(width)))
  const lines = [columns, rule, ...rows].map((cells) => line(cells, widths, isRight))
  return `### ${title}\n\n${lines.join('\n')}\n${notes.map((note) => `\n${note}\n`).join('')}`
}

/** The goals that were measured as a table, and in a sentence which are not met. */
export function renderGoals(goals) {
  const measured = goals.filter(({ value }) => value !== undefined)
  const missed = measured.filter(({ isMet }) => !isMet)
  const count = `${measured.length - missed.length} of ${measured.length} are met.`
  return renderTable({
    title: 'Goals',
    columns: ['goal', 'measured', 'wanted', 'met'],
    rows: measured.map(({ name, measured, wanted, isMet }) => [name, measured, wanted, isMet ? 'yes' : 'no']),
    notes: [missed.length === 0 ? count : `${count} Not met: ${missed.map(({ name }) => name).join('; ')}.`],
  })
}

/** What the figures were measured on, and how. */
export function renderFacts({ date, machine, versions, command, missing }) {
  const facts = [
    ['Date', date],
    ['Machine', machine],
    ['Versions', versions],
    ['Command', `\`${command}\``],
    ...missing.map(({ label, missing: reason }) => ['Left out', `${label}: ${reason}`]),
  ]
  return facts.map(([name, text]) => `- ${name}: ${text}\n`).join('')
}

/** The whole of RESULTS.md. */
export function renderResults(facts, goals, tables) {
  const intro = 'Written by `npm run bench`; [README.md](README.md) says what the figures mean.'
  return `# Results\n\n${intro}\n\n${renderFacts(facts)}\n${[renderGoals(goals), ...tables.map(renderTable)].join('\n')}`
}
