/**
 * What is counted, by the values of its labels: kept here and handed over when somebody asks, as prom-client checks and
 * hashes labels at every step.
 */
import { Counter, Histogram, type Registry } from 'prom-client'

type Labels = Readonly<Record<string, string>>

/** One combination of values; `below`: those that go on from it with one more. */
class Node<Cell> {
  readonly below = new Map<string, Node<Cell>>()
  cell: Cell | undefined
}

/** Finds what is kept for a combination of values without making a name of them. */
class ByLabels<Cell> {
  /** In the order in which they were first asked for. */
  readonly cells: Cell[] = []
  readonly #root = new Node<Cell>()
  readonly #names: readonly string[]
  readonly #make: (labels: Labels) => Cell

  constructor(names: readonly string[], make: (labels: Labels) => Cell) {
    this.#names = names
    this.#make = make
  }

  cellOf(values: readonly string[]): Cell {
    let node = this.#root
    for (const value of values) {
      let next = node.below.get(value)
      if (!next) {
        next = new Node()
        node.below.set(value, next)
      }
      node = next
    }
    node.cell ??= this.#begin(values)
    return node.cell
  }

  #begin(values: readonly string[]): Cell {
    const cell = this.#make(Object.fromEntries(this.#names.map((name, at) => [name, values[at] ?? ''])))
    this.cells.push(cell)
    return cell
  }
}

/** A counter. */
export class Tally {
  readonly #counts: ByLabels<{ readonly labels: Labels; count: number }>

  constructor(registry: Registry, name: string, help: string, labelNames: readonly string[]) {
    const counts = new ByLabels(labelNames, (labels) => ({ labels, count: 0 }))
    this.#counts = counts
    new Counter({
      name,
      help,
      labelNames: [...labelNames],
      registers: [registry],
      collect() {
        this.reset()
        for (const { labels, count } of counts.cells) this.inc(labels, count)
      },
    })
  }

  add(amount: number, ...values: readonly string[]): void {
    this.#counts.cellOf(values).count += amount
  }
}

interface Spread {
  readonly labels: Labels
  /** How many were found in each bucket and in none below it; one more for those beyond the last. */
  readonly counts: number[]
  sum: number
}

/** A histogram. It counts for itself and tells what prom-client would have. */
export class Spreads extends Histogram {
  readonly #name: string
  readonly #help: string
  readonly #bounds: readonly number[]
  readonly #spreads: ByLabels<Spread>

  constructor(
    registry: Registry,
    name: string,
    help: string,
    bounds: readonly number[],
    labelNames: readonly string[],
  ) {
    super({ name, help, buckets: [...bounds], labelNames: [...labelNames], registers: [registry] })
    this.#name = name
    this.#help = help
    this.#bounds = bounds
    this.#spreads = new ByLabels(labelNames, (labels) => ({
      labels,
      counts: new Array<number>(bounds.length + 1).fill(0),
      sum: 0,
    }))
    // Without labels there is one from the beginning.
    if (labelNames.length === 0) this.#spreads.cellOf([])
  }

  add(value: number, ...values: readonly string[]): void {
    const spread = this.#spreads.cellOf(values)
    const bounds = this.#bounds
    let at = 0
    while (at < bounds.length && value > (bounds[at] ?? 0)) at++
    spread.counts[at] = (spread.counts[at] ?? 0) + 1
    spread.sum += value
  }

  /** Asked by the registry, and by `get`. */
  getForPromString() {
    const values = this.#spreads.cells.flatMap((spread) => this.#told(spread))
    return Promise.resolve({
      name: this.#name,
      help: this.#help,
      type: 'histogram',
      values,
      aggregator: 'sum',
    })
  }

  #told({ labels: sharedLabels, counts, sum }: Spread) {
    const named = (what: string, value: number, labels: Readonly<Record<string, string | number>> = {}) => ({
      metricName: `${this.#name}_${what}`,
      labels,
      sharedLabels,
      value,
    })
    let count = 0
    const buckets = counts.map((more, at) => {
      count += more
      return named('bucket', count, { le: this.#bounds[at] ?? '+Inf' })
    })
    return [...buckets, named('sum', sum), named('count', count)]
  }
}
