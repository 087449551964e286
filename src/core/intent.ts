/**
 * What a call seems to be made for: to see how something is going, which may well be repeated, or to change something,
 * after which looking again is no repetition. Guesses from words; a wrong one makes a warning come later or sooner.
 */

/** How much of a text is looked at. */
const HEAD = 2_000

/** A word of a tool's name, which may be written_so, written-so or writtenSo. */
const word = (words: string) => new RegExp(`(?:^|[^a-z])(?:${words})(?:$|[^a-z])`, 'i')

/** Where a shell command, an SQL statement or a line of code begins in JSON text. */
const START = String.raw`(?:["\n;&(]|\\n) {0,8}(?:sudo {1,4})?`

const POLL_NAME = word('status|poll|polling|wait|watch|tail|sleep')

/** `{"action": "poll"}`: what a tool for several things is asked to do. */
const asked = (words: string) =>
  new RegExp(`"(?:action|command|operation|op|method|mode)" {0,4}: {0,4}"(?:${words})"`, 'i')

const POLL_ACTION = asked('status|poll|wait|watch|tail|sleep')

/** After a pipe, `tail` only shortens what there is: it must be a command's first word. */
const POLL_COMMAND = new RegExp(
  String.raw`${START}(?:(?:sleep|tail|watch|wait|poll)(?![\w=])|(?!select )[\w./-]{1,64} {1,4}status(?![\w=]))`,
  'i',
)

/** What tools answer while the work that was asked about goes on. */
const UNFINISHED =
  /\b(?:still (?:running|working|waiting|processing|in progress)|process running|not (?:yet )?(?:ready|finished|complete|completed|done)|(?:status|state)["']?[ :=>]{1,4}["']?(?:running|pending|queued|processing|in[ _-]progress))\b/i

const CHANGE_NAME = word(
  'edit|write|patch|apply|replace|insert|append|create|add|update|modify|change|rewrite|delete|remove|install|uninstall|move|rename|copy|set|reset|toggle|turn|enable|disable|grant|revoke|connect|disconnect|reboot|restart|start|stop|fix|save|commit|submit|send|upload|book|cancel',
)

const CHANGE_ACTION = asked(
  'edit|write|patch|replace|str_replace|insert|append|create|add|update|delete|remove|move|rename|undo_edit',
)

const CHANGE_COMMAND = new RegExp(
  START +
    String.raw`(?:(?:mv|cp|rm|mkdir|touch|chmod|chown|ln|tee|patch|sed -i|perl -p?i|insert into|update|delete from|create|drop|alter)(?: |\\n)` +
    String.raw`|(?:pip3?|npm|pnpm|yarn|apt|apt-get|brew|conda|cargo|go|gem|poetry|uv) (?:-\S{1,20} )?(?:install|add|i|get|uninstall|remove|update)(?![\w=-])` +
    String.raw`|git (?:add|am|apply|checkout|cherry-pick|clean|commit|merge|pull|rebase|reset|restore|revert|rm|stash|switch)(?![\w=-])` +
    '|(?:cat|echo|printf) [^|;&"]{0,200}>)',
  'i',
)

function isNamed(tool: string, words: RegExp): boolean {
  return words.test(tool.slice(0, HEAD).replace(/([a-z])([A-Z])/g, '$1_$2'))
}

/** What the name of a tool says of its calls. */
interface Named {
  readonly isPoll: boolean
  readonly isChange: boolean
}

/** Agents have few tools and call them all the time: so many names are remembered, of so many characters at most. */
const MAX_NAMES = 1_024
const MAX_NAME = 128

const known = new Map<string, Named>()

function namedBy(tool: string): Named {
  const before = known.get(tool)
  if (before) return before
  const named = { isPoll: isNamed(tool, POLL_NAME), isChange: isNamed(tool, CHANGE_NAME) }
  if (known.size >= MAX_NAMES) known.clear()
  if (tool.length <= MAX_NAME) known.set(tool, named)
  return named
}

/** By its name or its arguments, does this call ask how something is going, or wait for it? */
export function looksLikePoll(tool: string, argumentsText: string): boolean {
  if (namedBy(tool).isPoll) return true
  const head = argumentsText.slice(0, HEAD)
  return POLL_ACTION.test(head) || POLL_COMMAND.test(head)
}

/** By its name or its arguments, does this call change something that other calls may then see? */
export function looksLikeChange(tool: string, argumentsText: string): boolean {
  if (namedBy(tool).isChange) return true
  const head = argumentsText.slice(0, HEAD)
  return CHANGE_ACTION.test(head) || CHANGE_COMMAND.test(head)
}

/** What must stand in a text for it to say so, in JSON as in plain. */
const MAYBE_UNFINISHED = /still [rwpi]|not (?:yet )?[rfcd]|running|pending|queued|processing|in[ _-]progress/i

/** In JSON, a character takes six bytes at most. */
const HEAD_AS_JSON = 6 * HEAD + 2

/** May the text say that something is going on, to judge by its JSON? */
export function maySayUnfinished(json: string): boolean {
  return json.length <= HEAD_AS_JSON && MAYBE_UNFINISHED.test(json)
}

/** Does the tool answer that something is going on? Only short answers: a document may say anything. */
export function saysUnfinished(result: string): boolean {
  return result.length <= HEAD && UNFINISHED.test(result)
}
