/** Globs over names: `*` stands for any text, `?` for one character, everything else for itself. */

/** Does the whole of `name` match? Case counts. Takes at most `glob.length * name.length` steps, whatever the glob. */
export function globMatches(glob: string, name: string): boolean {
  let at = 0
  let from = 0
  // Where the newest star is and what it stood for so far: only that one is ever tried again with more.
  let star = -1
  let starEnd = 0
  while (from < name.length) {
    if (glob[at] === '*') {
      star = at++
      starEnd = from
    } else if (at < glob.length && (glob[at] === '?' || glob[at] === name[from])) {
      at++
      from++
    } else if (star !== -1) {
      at = star + 1
      from = ++starEnd
    } else return false
  }
  while (glob[at] === '*') at++
  return at === glob.length
}
