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

const POLL_NAME = word('status|poll|polling|wait|watch|tail|sleep|delay')

/** What names of tools begin with that only look, whatever they look at: `get_order` places none. */
const LOOKING =
  'get|list|search|find|read|view|show|query|fetch|check|describe|count|lookup|look|inspect|is|has|can'

/** `update_order_status` writes it. */
const WRITES_STATUS = new RegExp(
  `^(?:.{0,120}__)?(?:(?!(?:${LOOKING})[_.-])[a-z0-9]{1,32}[_.-])?(?:update|set|change|modify|edit|write|create|add|delete|remove|cancel|toggle|reset)[_.-]`,
  'i',
)

/** `{"action": "poll"}`: what a tool for several things is asked to do. */
const asked = (words: string) =>
  new RegExp(`"(?:action|command|operation|op|method|mode)" {0,4}: {0,4}"(?:${words})"`, 'i')

const POLL_ACTION = asked('status|poll|wait|watch|tail|sleep')

/** Programs that wait and watch by a word that stands further on: `kubectl rollout status`, `gh run watch`. */
const CONSOLES =
  'kubectl|oc|helm|argocd|docker|podman|gh|glab|aws|gcloud|az|heroku|fly|flyctl|nomad|terraform|databricks|pm2'

/** After a pipe, `tail` only shortens what there is: it must be a command's first word. */
const POLL_COMMAND = new RegExp(
  String.raw`${START}(?:(?:sleep|tail|watch|wait|poll)(?![\w=])|(?!select )[\w./-]{1,64} {1,4}status(?![\w=])` +
    String.raw`|(?:${CONSOLES})(?: {1,4}[\w./=-]{1,64}){0,3} {1,4}(?:status|wait|watch)(?![\w=]))`,
  'i',
)

/** Code that waits. In a longer program that may be one thing of many. */
const POLL_CODE = /\b(?:(?:time|asyncio)\.sleep|setTimeout|waitForTimeout)\(/
const SHORT_CODE = 300

/** What goes on, in the words of job queues, builds and clusters. */
const GOING_ON =
  '(?:running|pending|queued|processing|waiting|working|validating|preparing|initiali[sz]ing|provisioning|scheduled|building|deploying|creating|starting|started|submitted|executing|rendering|indexing|training|uploading|downloading|in[ _-]progress)'

/** What it may be that goes on. */
const WORK = '(?:job|task|build|export|import|pipeline|workflow|deployment)'

const UNFINISHED_WORDS: readonly string[] = [
  // Job 7: running; the build is queued
  String.raw`${WORK}(?: [\w#-]{1,40})?(?::| is| are) ${GOING_ON}(?! (?:an?|the|my|your|[a-z]+s)\b)`,
  `still (?:running|working|waiting|processing|in progress)`,
  'process running',
  '(?:running|processing|waiting) (?:for|since)',
  `currently ${GOING_ON}`,
  `not (?:ready|finished|complete|completed|done)`,
  // What a program has not learnt yet is no work that goes on.
  'not yet(?! (?:implemented|supported|defined|declared|installed|configured))',
  '(?:nothing|no [a-z ]{1,32}) yet',
  "(?:has|have)(?:n't| not) (?:been )?(?:finished|completed|started|run|built|sent|processed|arrived) yet",
  'please wait',
  'wait longer',
  '(?:running|executing) in (?:the )?background',
  `(?:is|are) being (?!used|ignored)(?:[a-z]{1,20}ed|built|sent|made|run)`,
  // `0/1     ContainerCreating`
  String.raw`\d{1,4}/\d{1,4} {1,16}(?:pending|containercreating|podinitializing|terminating|init:\d)`,
]

const STILL_GOING: readonly string[] = [
  String.raw`\b(?:${UNFINISHED_WORDS.join('|')})\b`,
  String.raw`\b(?:done|ready|finished)["']? ?[:=] ?["']?false\b`,
  String.raw`\bprogress["']?[ :=]{1,4}["']?\d{1,2}(?:\.\d{1,4})? ?%`,
  String.raw`(?<![\d.])\d{1,2}(?:\.\d{1,4})? ?% (?:complete|done|finished)`,
]

/** `"status": "running"`, `life_cycle_state=PENDING`; or that word alone. */
const GOING_ON_BY_STATUS: readonly string[] = [
  String.raw`(?:status|state|phase)["']?[ :=>]{1,4}["']?(?:[a-z]{1,20}_)?${GOING_ON}\b`,
  String.raw`^\W{0,4}(?:[a-z]{1,20}_)?${GOING_ON}\W{0,4}$`,
]

/** What tools answer while the work that was asked about goes on. */
const UNFINISHED = new RegExp([...STILL_GOING, ...GOING_ON_BY_STATUS].join('|'), 'i')
/** The same of tools that change something: `status: queued` is all that they had to do. */
const CHANGE_UNFINISHED = new RegExp(STILL_GOING.join('|'), 'i')

const CHANGE_NAME = word(
  'edit|write|patch|apply|replace|insert|append|create|add|update|modify|change|rewrite|delete|remove|install|uninstall|move|rename|copy|set|reset|toggle|turn|enable|disable|grant|revoke|connect|disconnect|reboot|restart|start|stop|fix|save|commit|submit|send|upload|book|cancel',
)

/** Words that are nouns as well, so that they must say what is done: at the beginning, or after the name of a server. */
const ACTION_NAME = new RegExp(
  `^(?:.{0,120}__)?(?:(?!(?:${LOOKING})[_.-])[a-z0-9]{1,32}[_.-]){0,2}` +
    '(?:(?:re|un|de|dis)?(?:activate|acknowledge|adjust|approve|archive|assign|attach|attack|build|buy|call_service|charge|clear|click|clone|close|complete|configure|control|craft|deploy|detach|dismiss|dispatch|draft|drag|drop|equip|escalate|exchange|fill|finali[sz]e|flush|fork|format|fulfill?|import|invite|invoke|kill|launch|link|lock|mark|merge|migrate|mount|mute|mutate|navigate|notify|pause|pay|pick|make|place|play|provision|purge|post|press|publish|pull|push|put|register|reply|resize|resolve|respond|rotate|schedule|scale|sell|share|shut_?down|skip|snooze|subscribe|suspend|swipe|switch|sync|tap|terminate|transfer|transition|trigger|truncate|type|upgrade|upsert)|re(?:boot|fuel|fund|ject|lease|load|run|seat|store|sume|turn|vert)|roll_?back|scroll|select_option|undo)(?:$|[^a-z])',
  'i',
)

/** Names that begin like an action and name a thing, or end in what is done with it: `exchange_rate`, `pull_request_read`. */
const THING_NAME = new RegExp(
  '^(?:.{0,120}__)?(?:(?:pull_requests?|press_releases?|release_notes)(?:$|[^a-z]))' +
    '|^(?!(?:.{0,120}[_.-])?(?:archive|clear|close|complete|fill|flush|make|mark|merge|post|publish|purge|push|put|rotate|share|sync|truncate)[_.-]).{1,200}[_.-](?:status|logs?|list|history)$' +
    '|[_.-](?:get|read|search|find|lookup|info|details?|preview|stats|check|date|policy|definition|hierarchy)$|(?:^|[_.-])(?:exchange_rates?|share_prices?)$' +
    '|(?:^|[_.-])resolve[_.-](?!issue|ticket|conflict|thread|comment|incident|alert|dispute|case|review)',
  'i',
)

const CHANGE_ACTION = asked(
  'edit|write|patch|put|post|replace|str_replace|insert|append|create|add|update|delete|remove|move|rename|undo_edit|click|left_click|double_click|type|key|press|fill|drag|left_click_drag|navigate',
)

/** What such programs only show; `deploy` is what `kubectl get deploy` calls a thing. */
const SHOWS = 'describe|diff|events|explain|get|history|inspect|list|logs?|ls|ps|search|show|status|top|view'

const CHANGE_COMMAND = new RegExp(
  START +
    String.raw`(?:(?:mv|cp|rm|mkdir|touch|chmod|chown|ln|tee|patch|sed -i|perl -p?i|tar -?x\w*|unzip(?! -[lvtz])|kill(?! -0)|pkill|killall|insert into|update|delete from|create|drop|alter)(?: |\\n)` +
    // Before another command it only says how that is to be run.
    String.raw`|export [^&;|"\\]{1,200}\\?"` +
    String.raw`|(?:(?:python3? -m )?pip3?|npm|pnpm|yarn|apt|apt-get|brew|bun|bundle|composer|conda|cargo|dnf|go|gem|mvn|poetry|uv|yum) (?:-\S{1,20} )?(?:install|add|ci|i|get|uninstall|remove|sync|update)(?![\w=-])` +
    String.raw`|git (?:add|am|apply|checkout|cherry-pick|clean|clone|commit|fetch|merge|pull|push|rebase|reset|restore|revert|rm|stash(?! (?:list|show))|switch)(?![\w=-])` +
    String.raw`|(?:${CONSOLES})(?!(?: {1,4}[\w./=:-]{1,64}){0,3} {1,4}(?:${SHOWS})(?:-[\w-]{1,64})?(?![\w/]))(?: {1,4}[\w./=:-]{1,64}){0,4} {1,4}(?:apply|close|cp|create|delete|deploy|drain|edit|invoke|merge|mv|patch|put|replace|reset|restart|rm|rollback|scale|set|start|stop|sync|terminate|update)(?:-[\w-]{1,64})?(?![\w=/])` +
    String.raw`|ansible-playbook |dbt (?:build|run|seed)(?![\w=-])|make (?:clean|deploy|install|migrate)(?![\w=-])|(?:docker|podman)(?: compose)? (?:build|cp|kill|pull|restart|rm|run|start|stop|up|down)(?![\w=-])` +
    String.raw`|(?:systemctl|service)(?: {1,4}[\w.-]{1,64})? (?:start|stop|restart|reload|enable|disable)(?![\w=-])|(?:helm|terraform) (?:apply|destroy|install|upgrade)(?![\w=-])|curl [^|;]{0,200}-X ?(?:POST|PUT|PATCH|DELETE)\b|(?:npx )?(?:prettier|eslint|ruff|biome|stylelint|rubocop|gofmt) [^|;]{0,200}-(?:-write|-fix|w|a)(?![\w=-])` +
    '|(?:cat|echo|printf) [^|;&"]{0,200}>)',
  'i',
)

/** The output of a shell command that goes to a file. */
const REDIRECTED =
  /"(?:command|cmd|script)" {0,4}:[^>]{1,1000} >{1,2} {0,2}(?!\/dev\/)[\w~$./-]{0,64}(?:\/|\.[a-z])/i

/** A line of a program that writes a file, or takes one away. */
const CHANGE_CODE =
  /open\([^()]{1,200}, {0,2}(?:mode=)?\\?["'](?:w|a|x|r\+)b?\\?["']|\.write_(?:text|bytes)\(|(?:write|append)File(?:Sync)?\(|\.to_(?:csv|json|parquet|excel|sql|pickle)\(|(?:shutil\.(?:copy|move|rmtree)|os\.(?:remove|rename|replace|makedirs|mkdir|unlink))/

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
  const isAction = isNamed(tool, ACTION_NAME) && !isNamed(tool, THING_NAME)
  const isChange = isAction || isNamed(tool, CHANGE_NAME)
  const isPoll = isNamed(tool, POLL_NAME) && !isNamed(tool, WRITES_STATUS)
  const named = { isPoll, isChange }
  if (known.size >= MAX_NAMES) known.clear()
  if (tool.length <= MAX_NAME) known.set(tool, named)
  return named
}

/** By its name or its arguments, does this call ask how something is going, or wait for it? */
export function looksLikePoll(tool: string, argumentsText: string): boolean {
  const named = namedBy(tool)
  if (named.isPoll) return true
  const head = argumentsText.slice(0, HEAD)
  if (POLL_ACTION.test(head) || POLL_COMMAND.test(head)) return true
  // Code that is written into a file does not run.
  return !named.isChange && argumentsText.length <= SHORT_CODE && POLL_CODE.test(argumentsText)
}

/** By its name or its arguments, does this call change something that other calls may then see? */
export function looksLikeChange(tool: string, argumentsText: string): boolean {
  if (namedBy(tool).isChange) return true
  const head = argumentsText.slice(0, HEAD)
  return (
    CHANGE_ACTION.test(head) || CHANGE_COMMAND.test(head) || CHANGE_CODE.test(head) || REDIRECTED.test(head)
  )
}

/** What must stand in a text for it to say so, in JSON as in plain, by its bytes: a character takes up to three, or an escape. */
const MAYBE_UNFINISHED = new RegExp(
  String.raw`still [rwpi]|process running|${WORK}[ :]|ing (?:for|since)|currently |not [yrfcd]| yet|please wait|wait longer|in (?:the )?background|(?:is|are) being |/\d{1,4} {1,16}[pcti]|false|progress|% ?[cdf]|(?:status|state|phase)[\\"' :=>]{1,9}[a-z]|^"(?:\\u[0-9a-f]{4}|\\.|[^a-z\\]){0,12}(?:[a-z]{1,20}_)?${GOING_ON}`,
  'i',
)

/** What a character of a text takes in JSON at most. */
export const JSON_BYTES = 6
const HEAD_AS_JSON = JSON_BYTES * HEAD + 2

/** May the text say that something is going on, to judge by its JSON? */
export function maySayUnfinished(json: string): boolean {
  return json.length <= HEAD_AS_JSON && MAYBE_UNFINISHED.test(json)
}

/** Does the tool answer that something is going on? Only short answers: a document may say anything. */
export function saysUnfinished(result: string, tool: string): boolean {
  return result.length <= HEAD && (namedBy(tool).isChange ? CHANGE_UNFINISHED : UNFINISHED).test(result)
}

/** What stands for a picture, which says much. */
const PICTURE = /\[\w{1,40} [g-v]{32}\]/

/** The length of a result up to which it may say no more than that something was done. */
export const BRIEF = 200

/** May the tool have answered no more than that something was done? */
export function saysLittle(result: string): boolean {
  return result.length <= BRIEF && !PICTURE.test(result)
}
