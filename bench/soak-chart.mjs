/** Draws the memory of a soak as an SVG: the process and its heap over the requests. */

const WIDTH = 760
const HEIGHT = 300
const LEFT = 56
const RIGHT = 34
const TOP = 34
const BOTTOM = 44

/** A round step of which at most six fit below `most`. */
function stepFor(most) {
  const rough = most / 6
  const size = 10 ** Math.floor(Math.log10(rough))
  return [1, 2, 5, 10].map((factor) => factor * size).find((step) => step >= rough)
}

function ticks(most) {
  const step = stepFor(most)
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, at) => at * step)
}

/** Returns the drawing of samples `{ requests, rss, heap }`, memory in MB. */
export function drawSoak(samples) {
  const total = samples.at(-1).requests
  const most = Math.max(...samples.map(({ rss }) => rss)) * 1.15
  const x = (requests) => LEFT + (requests / total) * (WIDTH - LEFT - RIGHT)
  const y = (mb) => HEIGHT - BOTTOM - (mb / most) * (HEIGHT - TOP - BOTTOM)
  const line = (key, colour) => {
    const points = samples.map((one) => `${x(one.requests).toFixed(1)},${y(one[key]).toFixed(1)}`)
    return `<polyline fill="none" stroke="${colour}" stroke-width="1.5" points="${points.join(' ')}"/>`
  }
  const text = (at, height, anchor, words, fill = '#57606a') =>
    `<text x="${at}" y="${height}" text-anchor="${anchor}" fill="${fill}">${words}</text>`
  const rows = ticks(most).flatMap((mb) => [
    `<line x1="${LEFT}" x2="${WIDTH - RIGHT}" y1="${y(mb)}" y2="${y(mb)}" stroke="#d0d7de"/>`,
    text(LEFT - 8, y(mb) + 4, 'end', `${mb} MB`),
  ])
  const columns = ticks(total).map((requests) =>
    text(x(requests), HEIGHT - BOTTOM + 18, 'middle', requests.toLocaleString('en')),
  )
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${HEIGHT}" font-family="sans-serif" font-size="12" role="img" aria-label="Memory over requests">
<rect width="${WIDTH}" height="${HEIGHT}" fill="#fff"/>
${rows.join('\n')}
${columns.join('\n')}
${text(WIDTH / 2, HEIGHT - 6, 'middle', 'requests')}
${text(LEFT, 20, 'start', 'resident memory', '#0969da')}
${text(LEFT + 130, 20, 'start', 'heap used', '#bc4c00')}
${line('rss', '#0969da')}
${line('heap', '#bc4c00')}
</svg>
`
}
