/** A regular expression of src; `file` is its path in there. */
export interface Pattern {
  readonly file: string
  readonly source: string
  readonly flags: string
}

/** Returns each regular expression of src once per file. @throws if one is made in a way that is not found. */
export function patternsOf(): Promise<Pattern[]>
