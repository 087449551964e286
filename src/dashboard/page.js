/** The live page: asks the API for sessions, follows its events, and draws what changed. Text from outside is only ever text. */
const WORDS = {
  asking: 'asking',
  working: 'working',
  going_round: 'going round',
  near_limit: 'near its limit',
  answered: 'answered',
  idle: 'idle',
  stopped: 'stopped',
  completed: 'completed',
  no_response: 'no response',
  context_overflow: 'overflow',
}
const AT_WORK = ['asking', 'working', 'going_round', 'near_limit', 'answered']
const MAX_ROWS = 200
const STALE_MS = 12_000
const SORT_MS = 1_000
const RELOAD_MS = 60_000

const find = (id) => document.getElementById(id)
const state = {
  // Only here, so that nothing else in this origin can read it: it is asked for again after a reload.
  token: '',
  rows: new Map(),
  drawn: new Map(),
  changed: new Set(),
  isScheduled: false,
  sortedAt: Number.NEGATIVE_INFINITY,
  /** All sessions were loaded once. */
  isListed: false,
  /** False if Governor could not read its store to the end. */
  isComplete: true,
  loadAgainAt: Number.POSITIVE_INFINITY,
  selected: undefined,
  detail: undefined,
  lastEventId: '',
  lastHeard: 0,
  isConnected: false,
  /** Aborted when Governor refuses access: whatever is under way by then draws nothing any more. */
  visit: new AbortController(),
}

function element(name, { text, class: className, ...attributes } = {}, ...children) {
  const made = document.createElement(name)
  if (text !== undefined) made.textContent = text
  if (className) made.className = className
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value)
  made.append(...children)
  return made
}

function drawing(name, attributes, ...children) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name)
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value)
  made.append(...children)
  return made
}

/** Returns `$1.20`; with a sign where some of it is missing (≥) or estimated (~), and `?` where nothing is known. */
function money(dollars, { price_known: isKnown, cost_estimated: isEstimated }) {
  if (dollars === null) return '?'
  const sign = isKnown ? '' : isEstimated ? '~' : '≥'
  return `${sign}$${dollars < 100 ? dollars.toFixed(2) : Math.round(dollars)}`
}
const span = (seconds) =>
  seconds < 60
    ? `${Math.round(seconds)} s`
    : seconds < 5_400
      ? `${Math.round(seconds / 60)} min`
      : `${Math.round(seconds / 3_600)} h`
const short = (row) => row.name ?? row.id.slice(0, 12)

/** Sends a request. The first refusal shows the form to sign in, and ends all that the page does until then. */
async function ask(path, options = {}) {
  const { visit } = state
  const headers = { ...options.headers, ...(state.token ? { authorization: `Bearer ${state.token}` } : {}) }
  const response = await fetch(path, { ...options, headers, cache: 'no-store', signal: visit.signal })
  if (response.status === 401) signOut(visit)
  visit.signal.throwIfAborted()
  return response
}

async function askJson(path, options) {
  const response = await ask(path, options)
  const json = await response.json()
  if (!response.ok) throw new Error(json.error?.message ?? `HTTP ${response.status}`)
  return json
}

function tellProblem(text) {
  find('problem').textContent = text
  find('problem').hidden = text === ''
}

// The list.

function sparkPath(tokens) {
  const most = Math.max(1, ...tokens)
  const step = 90 / Math.max(1, tokens.length - 1)
  const points = tokens.map((one, at) => `${(at * step).toFixed(1)},${(17 - (16 * one) / most).toFixed(1)}`)
  return points.length > 1 ? `M${points.join('L')}` : ''
}

function fillBar(bar, used, max) {
  const share = max > 0 ? Math.min(1, used / max) : 0
  const kind = `bar${share >= 1 ? ' full' : share >= 0.8 ? ' high' : ''}`
  if (bar.className !== kind) bar.className = kind
  bar.hidden = max === 0
  bar.firstChild.style.width = `${share * 100}%`
}

function newBar(used = 0, max = 0) {
  const bar = element('span', { 'aria-hidden': 'true' }, element('i'))
  fillBar(bar, used, max)
  return bar
}

const secondsLeft = ({ asking }) => Math.max(0, Math.round((Date.parse(asking.until) - Date.now()) / 1000))

function stateText(row) {
  if (row.stopping) return 'stopping'
  if (row.asking) return `asking: ${span(secondsLeft(row))} left`
  return row.state === 'stopped' ? `stopped: ${row.terminal_reason}` : WORDS[row.state]
}

function doing({ loop, last_tool: tool }) {
  if (loop) return `${loop.tools.join(' + ') || tool || loop.pattern} ×${loop.count}`
  return tool ?? ''
}

/** Sets text and attributes where they differ: a browser lays out again whatever is set. */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text
}

function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value)
}

/** Makes the line of a session, and what brings it up to date. */
function newLine(id) {
  const [name, doingText] = [element('bdi'), element('bdi')]
  const open = element('button', { type: 'button', title: id }, name)
  open.addEventListener('click', () => select(id))
  const condition = element('span')
  const bar = newBar()
  const path = drawing('path', {})
  const spark = drawing('svg', { class: 'spark', viewBox: '0 0 90 18', role: 'img' }, path)
  const [count, cost, rate, left, agents] = Array.from({ length: 5 }, () => element('span'))
  const cell = (attributes, ...content) => element('td', { role: 'cell', ...attributes }, ...content)
  const labelled = (label, ...content) => cell({ 'data-label': label }, ...content)
  const last = cell({}, doingText)
  const line = element(
    'tr',
    { role: 'row' },
    cell({}, open),
    cell({}, condition),
    labelled('Iterations', bar, count),
    labelled('Cost', cost),
    labelled('$/min', rate),
    labelled('To limit', left),
    cell({ class: 'spark-cell' }, spark),
    labelled('Agents', agents),
    last,
  )
  const update = (row) => {
    const { iteration, max_iterations: max, seconds_to_limit: seconds, tokens_per_iteration: tokens } = row
    setText(name, short(row))
    setAttribute(condition, 'class', `state ${row.state}`)
    setText(condition, stateText(row))
    fillBar(bar, iteration, max)
    setText(count, max > 0 ? `${iteration}/${max}` : String(iteration))
    setText(cost, money(row.cost_usd, row))
    setText(rate, money(row.cost_usd_per_minute, row))
    setText(left, seconds === null ? '–' : span(seconds))
    setAttribute(path, 'd', sparkPath(tokens))
    const newest = tokens.length > 0 ? `tokens per iteration, newest ${tokens.at(-1)}` : 'no tokens yet'
    setAttribute(spark, 'aria-label', newest)
    setText(agents, `${row.agents.alive}/${row.agents.total}`)
    setText(doingText, doing(row))
    setAttribute(last, 'title', doing(row).slice(0, 200))
    setAttribute(line, 'aria-current', String(id === state.selected))
  }
  return { line, update }
}

function isShown(row) {
  const wanted = find('filter').value
  return wanted === '' || (wanted === 'work' ? AT_WORK.includes(row.state) : row.state === wanted)
}

function drawRow(id) {
  const row = state.rows.get(id)
  if (row) state.drawn.get(id)?.update(row)
}

/** Returns the rows that are shown, the one with the highest risk first. */
function rowsInOrder() {
  const rows = [...state.rows.values()].filter(isShown)
  return rows.sort((a, b) => b.risk - a.risk || (a.last_at < b.last_at ? 1 : -1))
}

/** Puts lines in order by as few moves as it sees at once; the one with the focus keeps it. */
function placeLines(ids) {
  const body = find('list').tBodies[0]
  const focused = document.activeElement
  let next = body.firstElementChild
  for (const id of ids) {
    const { line } = state.drawn.get(id)
    // The line that stands here belongs further down: it is moved when it is its turn.
    if (next && next !== line && next.nextElementSibling === line) next = line
    if (next === line) next = line.nextElementSibling
    else body.insertBefore(line, next)
  }
  if (document.activeElement !== focused && body.contains(focused)) focused.focus({ preventScroll: true })
}

function drawOrder() {
  state.sortedAt = performance.now()
  const rows = rowsInOrder()
  const ids = rows.slice(0, MAX_ROWS).map(({ id }) => id)
  const kept = new Set(ids)
  for (const [id, { line }] of state.drawn) {
    if (kept.has(id)) continue
    line.remove()
    state.drawn.delete(id)
  }
  for (const id of ids) {
    if (state.drawn.has(id)) continue
    state.drawn.set(id, newLine(id))
    drawRow(id)
  }
  placeLines(ids)
  setText(find('more'), moreText(rows.length))
  find('list-box').hidden = state.rows.size === 0
  find('empty').hidden = state.rows.size > 0 || !state.isListed
}

function moreText(count) {
  if (!state.isComplete) return 'sessions may be missing: Governor could not read its store to the end'
  if (count > MAX_ROWS) return `and ${count - MAX_ROWS} more with less risk`
  return count === 0 && state.rows.size > 0 ? 'no session is in this state now' : ''
}

function draw() {
  state.isScheduled = false
  for (const id of state.changed) drawRow(id)
  state.changed.clear()
  if (performance.now() - state.sortedAt >= SORT_MS) drawOrder()
}

function schedule() {
  if (state.isScheduled) return
  state.isScheduled = true
  requestAnimationFrame(draw)
}

function take(row) {
  state.rows.set(row.id, row)
  state.changed.add(row.id)
  if (row.id === state.selected) loadDetail(row.id)
  schedule()
}

let isListLoading = false
/** Loads all sessions; the first page is shown while others are on their way. */
async function loadList() {
  if (isListLoading) return
  isListLoading = true
  try {
    await loadPages()
  } finally {
    isListLoading = false
  }
}

async function loadPages() {
  const began = performance.now()
  const rows = new Map()
  let cursor = ''
  state.isComplete = true
  do {
    const page = await askJson(`sessions?limit=200${cursor ? `&cursor=${cursor}` : ''}`)
    for (const row of page.sessions) rows.set(row.id, row)
    cursor = page.next
    state.isComplete &&= page.complete
    if (state.rows.size === 0) showRows(rows)
  } while (cursor && rows.size < 10_000)
  state.isListed = true
  showRows(rows)
  // States and rates change as time goes by, also where no event comes. A long list is loaded less often.
  state.loadAgainAt = performance.now() + Math.max(RELOAD_MS, 50 * (performance.now() - began))
}

function showRows(rows) {
  state.rows = rows
  for (const id of state.drawn.keys()) state.changed.add(id)
  state.sortedAt = Number.NEGATIVE_INFINITY
  draw()
}

// One session.

let isLoading = false
let isAskedAgain = false
async function loadDetail(id) {
  if (isLoading) {
    isAskedAgain = true
    return
  }
  isLoading = true
  try {
    const detail = await askJson(`sessions/${encodeURIComponent(id)}`)
    if (id === state.selected) drawDetail(detail)
    const said = detail.transcript
      ? await askJson(`sessions/${encodeURIComponent(id)}/transcript`)
      : undefined
    if (id === state.selected) drawTranscript(said)
  } catch (error) {
    find('said').textContent = error.message
  }
  isLoading = false
  if (!isAskedAgain) return
  isAskedAgain = false
  if (state.selected) loadDetail(state.selected)
}

async function select(id) {
  const before = state.selected
  state.selected = id
  for (const one of [before, id]) if (one) drawRow(one)
  find('detail').hidden = id === undefined
  if (id === undefined) return state.drawn.get(before)?.line.querySelector('button').focus()
  find('said').textContent = ''
  find('detail-title').textContent = 'loading…'
  find('transcript').hidden = true
  await loadDetail(id)
  find('detail').focus()
}

function loopCard({ loop, thread }) {
  const names = loop.tools.join(' + ') || loop.pattern
  const what = `${names} ×${loop.count}, nothing new since iteration ${loop.since}`
  const told = loop.blocked ? 'its calls are blocked' : `the model was told ${loop.warnings} times`
  return element('div', { class: 'card', text: `Agent ${thread}: ${what}; ${told}` })
}

function questionCard({ asking, thread }) {
  const reached = `the limit of ${asking.max} ${asking.limit.replace('_', ' ')} is reached`
  const text = `Agent ${thread}: ${reached}. Its request waits: extend or stop, or the run is stopped.`
  return element('div', { class: 'card warned', text })
}

function cardsOf(detail) {
  const cards = [
    ...detail.threads.filter(({ asking }) => asking).map(questionCard),
    ...detail.threads.filter(({ loop }) => loop).map(loopCard),
  ]
  for (const one of detail.iterations.filter(({ overflow }) => overflow).slice(-5)) {
    const ended = one.status === 200 ? 'recovered' : `status ${one.status}`
    cards.push(
      element('div', {
        class: 'card warned',
        text: `Iteration ${one.iteration} was too large for the model: ${one.overflow}, ${ended}`,
      }),
    )
  }
  const { acknowledged, ignored } = detail.warnings
  if (acknowledged + ignored > 0)
    cards.push(
      element('div', { class: 'card quiet', text: `Warnings: ${acknowledged} heeded, ${ignored} ignored` }),
    )
  if (detail.terminal) {
    const { terminal_state, terminal_reason, budget_used, budget_max } = detail.terminal
    cards.push(
      element('div', {
        class: 'card quiet',
        text: `Ended: ${terminal_state}, ${terminal_reason}, ${budget_used} of ${budget_max}`,
      }),
    )
  }
  return cards
}

function lanesOf(detail) {
  const times = detail.iterations.flatMap(({ at, duration_ms: took }) => [
    Date.parse(at),
    Date.parse(at) + took,
  ])
  const start = Math.min(...times)
  const length = Math.max(1, Math.max(...times) - start)
  return detail.threads.map((agent) => {
    const own = detail.iterations.filter(({ thread }) => thread === agent.thread)
    const boxes = own.map((one) => {
      const x = ((Date.parse(one.at) - start) / length) * 1000
      const kind = one.status === 200 ? one.verdict : 'failed'
      return drawing('rect', {
        class: kind,
        x: x.toFixed(1),
        y: 3,
        width: Math.max(3, (one.duration_ms / length) * 1000).toFixed(1),
        height: 12,
      })
    })
    const name = `${agent.name ?? `agent ${agent.thread}`}${agent.parent ? ` of ${agent.parent}` : ''}: ${WORDS[agent.state]}`
    const label = `${name}, ${own.length} iterations`
    const lane = drawing(
      'svg',
      { viewBox: '0 0 1000 18', preserveAspectRatio: 'none', role: 'img', 'aria-label': label },
      ...boxes,
    )
    return element('div', { class: 'lane' }, element('bdi', { text: name, title: name.slice(0, 200) }), lane)
  })
}

function metersOf(detail) {
  return detail.threads.flatMap(({ thread, meters }) =>
    meters
      .filter(({ max }) => max > 0)
      .map(({ name, used, max }) =>
        element(
          'li',
          {},
          newBar(used, max),
          `agent ${thread}: ${name.replace('_', ' ')} ${used === null ? '?' : Math.round(used * 100) / 100} of ${max}`,
        ),
      ),
  )
}

function tailRow(one) {
  const verdict = [one.verdict, one.tier, one.loop].filter(Boolean).join(' · ')
  const texts = [new Date(one.at).toLocaleTimeString(), `#${one.thread}`, one.iteration]
  const rest = [
    one.status || 'none',
    `${(one.duration_ms / 1000).toFixed(1)} s`,
    `${one.usage.input} + ${one.usage.output}`,
  ]
  return element(
    'tr',
    {},
    ...texts.map((text) => element('td', { text: String(text) })),
    element('td', { class: one.verdict, text: verdict }),
    ...rest.map((text) => element('td', { text: String(text) })),
    element('td', {}, element('bdi', { text: one.tools.join(' ') })),
  )
}

function drawDetail(detail) {
  state.detail = detail
  find('detail-title').textContent = `${short(detail)} · ${stateText(detail)}`
  find('cards').replaceChildren(...cardsOf(detail))
  find('lanes').replaceChildren(...lanesOf(detail))
  const meters = metersOf(detail)
  find('meters').replaceChildren(...(meters.length > 0 ? meters : [element('li', { text: 'no limits' })]))
  find('tail').tBodies[0].replaceChildren(...detail.iterations.slice(-20).reverse().map(tailRow))
  const { final_answer: answer } = detail
  const note = answer?.truncated ? [element('p', { text: 'The first 64 KiB of it.' })] : []
  find('answer').replaceChildren(
    ...(answer
      ? [element('h3', { text: 'Final answer' }), element('pre', { text: answer.text }), ...note]
      : []),
  )
  document.querySelector('[data-action=stop]').disabled = detail.stopping || detail.state === 'stopped'
}

/** What was drawn of each text: those that stay the same keep their place and what is selected in them. */
const drawnTexts = new WeakMap()

function textItem({ thread, role, text, truncated, at, terminal_state: ended }) {
  const about = [role, `agent ${thread}`, new Date(at).toLocaleTimeString(), ended && `ended: ${ended}`]
  const rest = truncated ? [element('p', { text: 'There was more of it.' })] : []
  return element(
    'li',
    { class: role },
    element('p', { text: about.filter(Boolean).join(' · ') }),
    element('pre', { text, dir: 'auto' }),
    ...rest,
  )
}

function drawTranscript(said) {
  const list = find('texts')
  const entries = said?.entries ?? []
  find('transcript').hidden = entries.length === 0
  find('dropped').hidden = !said?.truncated
  for (const [at, entry] of entries.entries()) {
    const shown = JSON.stringify(entry)
    const old = list.children[at]
    if (old && drawnTexts.get(old) === shown) continue
    const item = textItem(entry)
    drawnTexts.set(item, shown)
    if (old) old.replaceWith(item)
    else list.append(item)
  }
  while (list.children.length > entries.length) list.lastElementChild.remove()
}

// Actions.

const ACTIONS = {
  stop: {
    text: 'Stop this session? Its next request gets its last answer, and nothing that it did is lost.',
    path: '/stop',
    method: 'POST',
    body: {},
  },
  extend: {
    text: 'Raise the limits of its current runs by 25 %?',
    path: '/extend',
    method: 'POST',
    body: { by: '25%' },
  },
  observe: {
    text: 'Let loops go on from here? Governor only counts them in this session.',
    path: '/loop-guard',
    method: 'PATCH',
    body: { mode: 'observe' },
  },
  reset: {
    text: 'Begin its current runs anew, with a fresh budget?',
    path: '/reset',
    method: 'POST',
    body: {},
  },
}

async function confirmed(text) {
  const dialog = find('confirm')
  find('confirm-text').textContent = text
  dialog.returnValue = 'no'
  dialog.showModal()
  await new Promise((resolve) => dialog.addEventListener('close', resolve, { once: true }))
  return dialog.returnValue === 'yes'
}

function curlOf(id) {
  const address = new URL(`sessions/${encodeURIComponent(id)}`, location.href)
  return `curl -H "Authorization: Bearer $GOVERNOR_ADMIN_TOKEN" ${address}`
}

async function act(name) {
  const id = state.selected
  if (!id) return
  if (name === 'close') return select(undefined)
  if (name === 'curl') {
    const text = curlOf(id)
    await navigator.clipboard?.writeText(text).then(
      () => undefined,
      () => undefined,
    )
    find('said').textContent = text
    return
  }
  const action = ACTIONS[name]
  if (!(await confirmed(action.text))) return
  try {
    const headers = {
      'content-type': 'application/json',
      'idempotency-key': crypto.randomUUID?.() ?? String(Math.random()),
    }
    const options = { method: action.method, headers, body: JSON.stringify(action.body) }
    drawDetail(await askJson(`sessions/${encodeURIComponent(id)}${action.path}`, options))
    find('said').textContent = `${name}: done`
  } catch (error) {
    find('said').textContent = `${name}: ${error.message}`
  }
}

// The connection.

/** Shows the form to sign in and nothing else, until somebody does. */
function signOut(visit) {
  if (visit.signal.aborted) return
  visit.abort()
  tellProblem(state.token ? 'Governor does not know this token.' : '')
  state.token = ''
  state.isConnected = false
  state.isListed = false
  showAccess(false)
  showRows(new Map())
  select(undefined)
  find('confirm').close('no')
  drawConnection()
  find('token').focus()
}

function signIn(token) {
  state.token = token
  state.lastEventId = ''
  tellProblem('')
  state.visit = new AbortController()
  showAccess(true)
  run(state.visit)
}

function showAccess(hasAccess) {
  find('sign-in').hidden = hasAccess
  for (const one of document.querySelectorAll('[data-needs-access]')) one.hidden = !hasAccess
}

async function takeEvent(fields) {
  if (fields.id) state.lastEventId = fields.id
  state.lastHeard = performance.now()
  state.isConnected = true
  if (fields.event === 'session') take(JSON.parse(fields.data))
  else if (fields.event === 'reload') await loadList()
  drawConnection()
}

function fieldsOf(text) {
  return Object.fromEntries(
    text.split('\n').map((line) => {
      const at = line.indexOf(': ')
      return [line.slice(0, at), line.slice(at + 2)]
    }),
  )
}

async function follow() {
  const headers = state.lastEventId ? { 'last-event-id': state.lastEventId } : {}
  const response = await ask('events', { headers })
  if (!response.ok || !response.body) throw new Error(`HTTP ${response.status}`)
  tellProblem('')
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader()
  let text = ''
  for (;;) {
    const { value, done } = await reader.read()
    if (done) return
    text += value
    for (let end = text.indexOf('\n\n'); end !== -1; end = text.indexOf('\n\n')) {
      await takeEvent(fieldsOf(text.slice(0, end)))
      text = text.slice(end + 2)
    }
  }
}

function connectionText(silence) {
  if (state.visit.signal.aborted) return 'not signed in'
  if (!state.isConnected) return 'disconnected: trying again'
  return silence ? `last event ${span(silence / 1000)} ago` : 'live'
}

function drawConnection() {
  const quiet = performance.now() - state.lastHeard
  const isStale = quiet > STALE_MS
  const status = find('connection')
  setText(status, connectionText(isStale && quiet))
  status.classList.toggle('lost', !state.isConnected || isStale)
}

async function run(visit) {
  let wait = 500
  while (!visit.signal.aborted) {
    try {
      await follow()
      wait = 500
    } catch (error) {
      if (visit.signal.aborted) return
      tellProblem(`Governor can't be reached: ${error.message}`)
    }
    state.isConnected = false
    drawConnection()
    await new Promise((resolve) => setTimeout(resolve, wait))
    wait = Math.min(10_000, wait * 2)
  }
}

// The list is laid out by grids, which makes some browsers forget that it is a table.
const ROLES = { '': 'table', thead: 'rowgroup', tbody: 'rowgroup', 'thead tr': 'row', th: 'columnheader' }
for (const [part, role] of Object.entries(ROLES))
  for (const one of document.querySelectorAll(`#list ${part}`)) one.setAttribute('role', role)
find('filter').addEventListener('change', drawOrder)
for (const button of document.querySelectorAll('[data-action]'))
  button.addEventListener('click', () => act(button.dataset.action))
document.addEventListener('keydown', ({ key }) => {
  if (key === 'Escape' && !find('confirm').open && state.selected) select(undefined)
})
find('sign-in').addEventListener('submit', (event) => {
  event.preventDefault()
  signIn(find('token').value)
  find('token').value = ''
})
/** Counts the time of questions down; one whose time is over may have ended without an event, as its client has left. */
function drawQuestions() {
  for (const row of state.rows.values()) {
    if (!row.asking) continue
    state.changed.add(row.id)
    if (secondsLeft(row) > 0) continue
    row.asking = null
    askJson(`sessions/${encodeURIComponent(row.id)}`).then(take, () => undefined)
  }
  const { detail } = state
  if (detail?.asking) find('detail-title').textContent = `${short(detail)} · ${stateText(detail)}`
}

setInterval(() => {
  drawConnection()
  if (state.isConnected && !document.hidden && performance.now() > state.loadAgainAt) {
    state.loadAgainAt = Number.POSITIVE_INFINITY
    loadList().catch(() => undefined)
  }
  drawQuestions()
  if (state.changed.size > 0 || performance.now() - state.sortedAt > SORT_MS * 5) schedule()
}, 1_000)
run(state.visit)
