/** Text as a terminal shows it: cut, broken into lines, aligned, coloured, and without control characters. */
import type { Terminal } from './command.ts'

/** Control characters, characters that change the direction of text, and invisible characters. */
const UNSEEN = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/gu

/** Returns a text in one line that a terminal shows as it is: with a dot for each character nobody sees. */
export const visible = (text: string) => text.replace(UNSEEN, '·')

/** Returns a text with escapes, as in JSON, in place of the characters that a pattern with `g` finds. */
export function escaped(text: string, pattern: RegExp): string {
  return text.replace(pattern, (found) => {
    let escapes = ''
    for (let at = 0; at < found.length; at++) escapes += `\\u${found.charCodeAt(at).toString(16).padStart(4, '0')}`
    return escapes
  })
}

/** Returns a value as a line of JSON that a terminal shows as it is: with characters nobody sees as escapes. */
export function jsonLine(value: unknown): string {
  return `${escaped(JSON.stringify(value), UNSEEN)}\n`
}

/** Characters that take two columns, roughly. */
const WIDE =
  /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60\uffe0-\uffe6]|\p{Emoji_Presentation}/u

const widthOf = (character: string) => (WIDE.test(character) ? 2 : /\p{M}/u.test(character) ? 0 : 1)

/** Pads or cuts a text to so many columns; what clients and models chose may hold anything. */
export function fitted(text: string, columns: number): string {
  const characters = [...visible(text.slice(0, 4 * columns + 8))]
  let width = 0
  for (const character of characters) width += widthOf(character)
  let ending = ''
  if (width > columns) {
    while (width > columns - 1) width -= widthOf(characters.pop() ?? '')
    ending = '…'
    width++
  }
  return characters.join('') + ending + ' '.repeat(columns - width)
}

/** Breaks a text into lines of at most so many columns, anywhere. */
export function wrapped(text: string, columns: number): readonly string[] {
  const lines: string[] = []
  let line = ''
  let width = 0
  for (const one of text) {
    if (width + widthOf(one) > columns) {
      lines.push(line)
      line = ''
      width = 0
    }
    line += one
    width += widthOf(one)
  }
  return [...lines, line]
}

/** Breaks a text between words into lines of at most `width` characters. */
export function wordLines(text: string, width: number): readonly string[] {
  const lines: string[] = []
  for (const word of text.split(/\s+/)) {
    const line = lines.at(-1)
    if (line !== undefined && line.length + 1 + word.length <= width) lines[lines.length - 1] = `${line} ${word}`
    else lines.push(word)
  }
  return lines
}

/** Returns the lines of a text, without characters that a terminal acts on. */
export function plainLines(text: string): readonly string[] {
  return text.split('\n').map((line) => visible(line.replace(/\s/g, ' ')))
}

/** Pads the cells of each column to one width; the columns in `right` are aligned to the right. */
export function aligned(rows: readonly (readonly string[])[], right: readonly number[]) {
  const widths: number[] = []
  for (const row of rows)
    for (const [column, cell] of row.entries()) widths[column] = Math.max(widths[column] ?? 0, cell.length)
  const pad = (cell: string, column: number) =>
    right.includes(column) ? cell.padStart(widths[column] ?? 0) : cell.padEnd(widths[column] ?? 0)
  return rows.map((row) => row.map(pad))
}

/** `1 run`, `1,200 runs`. */
export const counted = (count: number, noun: string) => `${count.toLocaleString('en')} ${noun}${count === 1 ? '' : 's'}`

const COLOURS = { bold: 1, red: 31, green: 32, yellow: 33, magenta: 35, cyan: 36, grey: 90 } as const

export type Colour = keyof typeof COLOURS

/** Returns a text in a colour; as it is if `hasColours` is false. */
export function coloured(text: string, colour: Colour, hasColours: boolean): string {
  return hasColours ? `\u001b[${COLOURS[colour]}m${text}\u001b[0m` : text
}

/** True if a human watches, and did not switch colours off. */
export function showsColours({ isInteractive, env }: Terminal): boolean {
  return isInteractive && !env['NO_COLOR'] && env['TERM'] !== 'dumb'
}
