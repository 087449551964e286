/** Globs of names: `*` stands for any text, `?` for one character, everything else for itself. */

/** True if any of the globs matches the whole `name`. */
export function matchesAny(globs: readonly string[], name: string): boolean {
  return globs.some((glob) => globMatches(glob, name))
}

/** True if the whole `name` matches; case counts. Takes at most `glob.length * name.length` steps. */
export function globMatches(glob: string, name: string): boolean {
  let at = 0
  let from = 0
  // The newest star and the end of the text that it stands for: only this star is tried again with more text.
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
