/** The package's export `agent-governor/overflow`: reads what a provider says when a request is too large. */
export { type Classified, type ClassifyOptions, classify } from './classify.ts'
export { type Overflow, RECOVERIES, type Recovery, type StatedNumbers, statedNumbers } from './meaning.ts'
export type { QuotedRequest } from './quotes.ts'
export { type Groups, type LinearPattern, type Meaning, ROWS, type Row } from './rows.ts'
export type { RawReply } from './unwrap.ts'
